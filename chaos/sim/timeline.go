package sim

import (
	"cmp"
	"fmt"
	"regexp"
	"slices"
	"strings"
	"time"
)

// A timeline is what happened, in the order of the virtual instants. What happens at
// one instant is sorted, as it has no order, and so are the operations of a batch.
type timeline struct{ events []note }

type note struct {
	at   time.Duration
	lane string
	text string
	ops  []operation
}

func (l *timeline) add(at time.Duration, lane, text string, ops ...operation) {
	l.events = append(l.events, note{at, lane, text, ops})
}

// owners are what the library makes of random bits, 26 letters and digits.
var owners = regexp.MustCompile(`\b[A-Z2-7]{26}\b`)

// names are the owners' numbers: they are counted as they appear.
type names map[string]string

func (n names) in(text string, known bool) string {
	return owners.ReplaceAllStringFunc(text, func(owner string) string {
		if n[owner] == "" && known {
			return "new"
		}
		if n[owner] == "" {
			n[owner] = fmt.Sprintf("owner%d", len(n)+1)
		}
		return n[owner]
	})
}

// lines returns the events as text.
func (l *timeline) lines() []string {
	if l == nil {
		return nil
	}
	slices.SortStableFunc(l.events, func(a, b note) int {
		return cmp.Or(cmp.Compare(a.at, b.at), cmp.Compare(a.lane, b.lane), cmp.Compare(names{}.in(a.text, true), names{}.in(b.text, true)))
	})
	n := names{}
	var lines []string
	for _, e := range l.events {
		ops := slices.Clone(e.ops)
		slices.SortStableFunc(ops, func(a, b operation) int {
			return cmp.Or(cmp.Compare(a.lock, b.lock), cmp.Compare(n.in(a.String(), true), n.in(b.String(), true)))
		})
		parts := []string{e.text}
		for _, o := range ops {
			parts = append(parts, o.String())
		}
		lines = append(lines, fmt.Sprintf("%14.6f  %-18s %s", ms(e.at), e.lane, n.in(strings.Join(parts, "; "), false)))
	}
	return lines
}
