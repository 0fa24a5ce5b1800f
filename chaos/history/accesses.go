package history

import (
	"cmp"
	"fmt"
	"slices"
	"sort"
)

// A Stale is an access that a resource applied after one of a newer holder: one with
// a larger token, or that asked for its lock when the older had got its own already.
type Stale struct {
	Access, Newer Access
	// InTime says that the older holder's lease was not over. A stale access in time
	// takes two holders; one that is late only a holder that did not stop.
	InTime bool
}

func (s Stale) String() string {
	when := "after its lease"
	if s.InTime {
		when = "within its lease"
	}
	return fmt.Sprintf("%s of %s by client %d, token %d, %s, after that of client %d, token %d",
		s.Access.Kind, s.Access.Resource, s.Access.Client, s.Access.Token, when, s.Newer.Client, s.Newer.Token)
}

// StaleAccesses returns the accesses that were applied although they were stale.
// Tokens alone don't tell: where they may be out of order, the guard of the resource
// is what they deceive.
func StaleAccesses(holds []Hold, accesses []Access) []Stale {
	var found []Stale
	of := newOwners(holds)
	for _, applied := range appliedByResource(accesses) {
		var largest, latest Access // of the accesses so far: with the largest token, and of the hold that was asked for last
		var asked int64
		for _, a := range applied {
			h, known := of.hold(a)
			_, until, _ := h.Held()
			inTime := known && a.Committed < until
			switch {
			case a.Token < largest.Token:
				found = append(found, Stale{a, largest, inTime})
			case known && h.Answered < asked:
				found = append(found, Stale{a, latest, inTime})
			}
			if a.Token > largest.Token {
				largest = a
			}
			if known && h.Sent > asked {
				latest, asked = a, h.Sent
			}
		}
	}
	return found
}

// A LostUpdate is an update computed from a value that another write had replaced. A
// counter misses a step then, and a job that must run once has run twice.
type LostUpdate struct {
	Replaced, Update Access
}

func (l LostUpdate) String() string {
	return fmt.Sprintf("client %d, token %d, set %s to %d from %d, and it was %d by client %d, token %d", l.Update.Client, l.Update.Token,
		l.Update.Resource, l.Update.Value, l.Update.Base, l.Replaced.Value, l.Replaced.Client, l.Replaced.Token)
}

// LostUpdates returns the updates that have overwritten what they did not know of. A
// resource begins with 0.
func LostUpdates(accesses []Access) []LostUpdate {
	var found []LostUpdate
	for _, applied := range appliedByResource(accesses) {
		var last Access
		for _, a := range applied {
			if a.Kind == Update && a.Base != last.Value {
				found = append(found, LostUpdate{last, a})
			}
			if a.Kind != Read {
				last = a
			}
		}
	}
	return found
}

// WrongRefusals returns the accesses that a guard refused although no larger token
// can have reached it before: a guard that keeps out the current holder.
func WrongRefusals(accesses []Access) []Access {
	type sent struct {
		at    int64
		token uint64 // the largest until then
	}
	of := map[string][]sent{}
	for resource, as := range accessesByResource(accesses, func(a Access) bool { return a.Result != Refused }) {
		slices.SortFunc(as, func(a, b Access) int { return cmp.Compare(a.Sent, b.Sent) })
		var largest uint64
		for _, a := range as {
			largest = max(largest, a.Token)
			of[resource] = append(of[resource], sent{a.Sent, largest})
		}
	}
	var found []Access
	for _, a := range accesses {
		if a.Result != Refused {
			continue
		}
		before := of[a.Resource]
		n := sort.Search(len(before), func(i int) bool { return before[i].at > a.Answered })
		if n == 0 || before[n-1].token <= a.Token {
			found = append(found, a)
		}
	}
	return found
}

func accessesByResource(accesses []Access, which func(Access) bool) map[string][]Access {
	of := map[string][]Access{}
	for _, a := range accesses {
		if which(a) {
			of[a.Resource] = append(of[a.Resource], a)
		}
	}
	return of
}

// appliedByResource returns what the resources applied, in their order.
func appliedByResource(accesses []Access) map[string][]Access {
	of := accessesByResource(accesses, func(a Access) bool { return a.Seq > 0 })
	for _, as := range of {
		slices.SortFunc(as, func(a, b Access) int { return cmp.Compare(a.Seq, b.Seq) })
	}
	return of
}

// owners finds the hold that an access belongs to.
type owners map[clientResource][]Hold

type clientResource struct {
	client   int
	resource string
}

func newOwners(holds []Hold) owners {
	of := owners{}
	for _, h := range holds {
		if h.Result == OK {
			key := clientResource{h.Client, h.Resource}
			of[key] = append(of[key], h)
		}
	}
	for _, holds := range of {
		slices.SortFunc(holds, func(a, b Hold) int { return cmp.Compare(a.Answered, b.Answered) })
	}
	return of
}

// hold returns the client's last one before the access was sent.
func (of owners) hold(a Access) (Hold, bool) {
	holds := of[clientResource{a.Client, a.Resource}]
	n := sort.Search(len(holds), func(i int) bool { return holds[i].Answered > a.Sent })
	if n == 0 {
		return Hold{}, false
	}
	return holds[n-1], true
}
