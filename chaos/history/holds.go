package history

import (
	"cmp"
	"fmt"
	"slices"
	"time"
)

// An Overlap is two holders of a resource at one time, both inside their validity.
type Overlap struct {
	First, Second Hold
	From, To      int64
}

func (o Overlap) String() string {
	return fmt.Sprintf("two holders of %s for %v: clients %d and %d, tokens %d and %d",
		o.First.Resource, time.Duration(o.To-o.From), o.First.Client, o.Second.Client, o.First.Token, o.Second.Token)
}

// Overlaps returns the pairs of holds of a resource that overlap: of each hold, the
// one with that hold before it which lasts longest.
func Overlaps(holds []Hold) []Overlap {
	var found []Overlap
	for _, holds := range heldByResource(holds) {
		var longest Hold
		var end int64
		for _, h := range holds {
			from, to, _ := h.Held()
			if from < end {
				found = append(found, Overlap{longest, h, from, min(to, end)})
			}
			if to > end {
				longest, end = h, to
			}
		}
	}
	return found
}

// heldByResource returns those that were held, in the order of their beginnings.
func heldByResource(holds []Hold) map[string][]Hold {
	of := map[string][]Hold{}
	for _, h := range holds {
		if _, _, held := h.Held(); held {
			of[h.Resource] = append(of[h.Resource], h)
		}
	}
	for _, holds := range of {
		slices.SortFunc(holds, func(a, b Hold) int { return cmp.Compare(a.Answered, b.Answered) })
	}
	return of
}

// Signals is how far before the end of the lease holders were told that they lost
// their lock. Negative is late.
type Signals struct {
	Count                    int
	Earliest, Median, Latest time.Duration
}

// SignalsOf returns that of all holds that were told.
func SignalsOf(holds []Hold) Signals {
	var early []time.Duration
	for _, h := range holds {
		if h.Signal > 0 {
			early = append(early, time.Duration(h.Until-h.Signal))
		}
	}
	if len(early) == 0 {
		return Signals{}
	}
	slices.Sort(early)
	n := len(early)
	return Signals{Count: n, Earliest: early[n-1], Median: early[n/2], Latest: early[0]}
}

// Recovery returns how long after at the first lock was granted that was asked for
// after it, and false if none was.
func Recovery(holds []Hold, at int64) (time.Duration, bool) {
	first := Open
	for _, h := range holds {
		if h.Result == OK && h.Sent >= at {
			first = min(first, h.Answered)
		}
	}
	if first == Open {
		return 0, false
	}
	return time.Duration(first - at), true
}
