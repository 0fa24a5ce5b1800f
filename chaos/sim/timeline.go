package sim

import (
	"fmt"
	"regexp"
	"strings"
	"time"
)

// A timeline is what happened, in its order.
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

func (n names) in(text string) string {
	return owners.ReplaceAllStringFunc(text, func(owner string) string {
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
	n := names{}
	var lines []string
	for _, e := range l.events {
		parts := []string{e.text}
		for _, o := range e.ops {
			parts = append(parts, o.String())
		}
		lines = append(lines, fmt.Sprintf("%14.6f  %-18s %s", ms(e.at), e.lane, n.in(strings.Join(parts, "; "))))
	}
	return lines
}
