package fence

import (
	"errors"
	"fmt"
)

// What a guard refuses, for [errors.Is].
var (
	// ErrStale: the resource has seen a larger token. The holder is late and must
	// stop; trying again is in vain. Errors that match it are a *[StaleError].
	ErrStale = errors.New("fence: stale")
	// ErrNoToken: the number is no fencing token. It is 0, as that of a lock without
	// fencing is, or not below 2^53, up to which a double counts exactly.
	ErrNoToken = errors.New("fence: no token")
)

// A StaleError is a guard's refusal of a token. It matches [ErrStale].
type StaleError struct {
	Resource string
	Token    uint64 // the one that was refused
	Current  uint64 // the largest that the guard has seen
}

func (e *StaleError) Error() string {
	return fmt.Sprintf("%v: %s: token %d is smaller than %d", ErrStale, quote(e.Resource), e.Token, e.Current)
}

// Unwrap returns ErrStale.
func (e *StaleError) Unwrap() error { return ErrStale }

const maxToken = 1 << 53

var errNoResource = errors.New("fence: the name of the resource is empty")

// Validate returns an error if resource is empty or token is none, and that
// matches [ErrNoToken] then. Every guard asks it first.
func Validate(resource string, token uint64) error {
	switch {
	case resource == "":
		return errNoResource
	case token == 0:
		return fmt.Errorf("%w: %s: it is 0", ErrNoToken, quote(resource))
	case token >= maxToken:
		return fmt.Errorf("%w: %s: %d is not below 2^53", ErrNoToken, quote(resource), token)
	}
	return nil
}

// quote returns s for an error's text: on one line, and short.
func quote(s string) string {
	const most = 64
	if len(s) <= most {
		return fmt.Sprintf("%q", s)
	}
	return fmt.Sprintf("%q... (%d bytes)", s[:most], len(s))
}
