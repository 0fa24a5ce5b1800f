package sim

import (
	"cmp"
	"fmt"
	"regexp"
	"slices"
	"time"
)

// A timeline is what happened, in the order of the virtual instants. What happens at
// one instant is sorted, as it has no order.
type timeline struct{ events []event }

type event struct {
	at   time.Duration
	lane string
	text string
}

func (l *timeline) add(at time.Duration, lane, text string) {
	l.events = append(l.events, event{at, lane, text})
}

// owners are what the library makes of random bits, 26 letters and digits.
var owners = regexp.MustCompile(`\b[A-Z2-7]{26}\b`)

// lines returns the events as text. Owners, which are new in each run, are numbered as
// they appear.
func (l *timeline) lines() []string {
	if l == nil {
		return nil
	}
	masked := make(map[event]string, len(l.events))
	for _, e := range l.events {
		masked[e] = owners.ReplaceAllString(e.text, "")
	}
	slices.SortStableFunc(l.events, func(a, b event) int {
		return cmp.Or(cmp.Compare(a.at, b.at), cmp.Compare(a.lane, b.lane), cmp.Compare(masked[a], masked[b]))
	})
	names := map[string]string{}
	var lines []string
	for _, e := range l.events {
		text := owners.ReplaceAllStringFunc(e.text, func(owner string) string {
			if names[owner] == "" {
				names[owner] = fmt.Sprintf("owner%d", len(names)+1)
			}
			return names[owner]
		})
		lines = append(lines, fmt.Sprintf("%14.6f  %-18s %s", ms(e.at), e.lane, text))
	}
	return lines
}
