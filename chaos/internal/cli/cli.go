// Package cli is what the subcommands of chaos have in common.
package cli

import "fmt"

// Exit codes.
const (
	OK          = 0
	Failed      = 1   // something was not shown, or was shown to be wrong
	Usage       = 64  // of sysexits.h
	Unavailable = 69  // the same: a server, the source tree or a directory is missing
	Interrupted = 130 // as a shell says of SIGINT
)

// Choose returns those of all whose names are given, in that order, and all if none
// are. What it can't find it calls by its kind.
func Choose[T any](kind string, all []T, name func(T) string, names ...string) ([]T, error) {
	if len(names) == 0 {
		return all, nil
	}
	byName := map[string]T{}
	for _, one := range all {
		byName[name(one)] = one
	}
	var chosen []T
	for _, n := range names {
		one, ok := byName[n]
		if !ok {
			return nil, fmt.Errorf("there is no %s %q; -list shows all", kind, n)
		}
		chosen = append(chosen, one)
	}
	return chosen, nil
}
