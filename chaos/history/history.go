// Package history checks what a run has recorded: who believed to hold a lock when,
// what reached the resources that the locks guard, and which faults there were. It
// knows nothing of how that came about, so one checker judges simulations, real
// servers, and single instances beside quorums.
//
// All instants are nanoseconds on one clock that everybody shares: the wall clock of
// the machine, or the virtual one of a simulation.
package history

import "math"

// Open is the end of an operation that got no answer: it may take effect at any time
// after it was sent, or never.
const Open int64 = math.MaxInt64

// A Result is what the caller of an operation was told.
type Result string

// The results.
const (
	OK      Result = "ok"
	Refused Result = "refused" // a definite no: it is somebody else's, the token is stale
	Unknown Result = "unknown" // no answer, or too few
)

// A History is what a run has recorded.
type History struct {
	Holds     []Hold
	Accesses  []Access
	Faults    []Fault
	Leftovers []Leftover
	Healed    int64 // when the last fault was over and all that was broken worked again; 0: never
}

// A Hold is one try to lock a resource, and the lock until its end if it got one, as
// its client knows it.
type Hold struct {
	Client   int    `json:"client"` // has one lock of a resource at a time
	Resource string `json:"resource"`
	Sent     int64  `json:"sent"`     // before the first byte of the acquire
	Answered int64  `json:"answered"` // when it returned
	Result   Result `json:"result"`
	Token    uint64 `json:"token,omitempty"` // 0: of a lock without fencing

	Until   int64  `json:"until,omitempty"` // the end of the lease, as the client last knew it
	Extends []Step `json:"extends,omitempty"`
	Signal  int64  `json:"signal,omitempty"` // when it was told of the loss; 0: never
	Release Step   `json:"release,omitzero"` // not sent: forgotten
}

// A Step is one further operation on a lock.
type Step struct {
	Sent     int64  `json:"sent"`
	Answered int64  `json:"answered"`
	Result   Result `json:"result"`
}

// Held returns the time in which the client believed to hold the lock: from the
// answer to the end of the lease, to the release or to the signal of loss, whichever
// came first. It reports false if there was no such time.
func (h Hold) Held() (from, to int64, held bool) {
	to = h.Until
	if h.Release.Sent > 0 {
		to = min(to, h.Release.Sent)
	}
	if h.Signal > 0 {
		to = min(to, h.Signal)
	}
	return h.Answered, to, h.Result == OK && h.Answered < to
}

// A Kind of an access is what it did to the value of the resource.
const (
	Read   Kind = "read"   // Value is what it found
	Write  Kind = "write"  // Value is what it left
	Update Kind = "update" // a write of Value that was computed from Base, read before
)

// An Access is one operation at a resource.
type Access struct {
	Client   int    `json:"client"`
	Resource string `json:"resource"`
	Fenced   bool   `json:"fenced,omitempty"` // the resource checks tokens
	Token    uint64 `json:"token,omitempty"`
	Kind     Kind   `json:"kind"`
	Sent     int64  `json:"sent"`
	Answered int64  `json:"answered"` // Open where nobody knows
	Result   Result `json:"result"`
	// Of an access that the resource applied: its place in the order of those of the
	// resource, from 1, and when that was.
	Seq       int64 `json:"seq,omitempty"`
	Committed int64 `json:"committed,omitempty"`

	Base  uint64 `json:"base,omitempty"`
	Value uint64 `json:"value,omitempty"`
}

// A Fault is what was done to a part of the system.
type Fault struct {
	Name   string `json:"name"`
	Target string `json:"target"`
	From   int64  `json:"from"`
	To     int64  `json:"to"`
	// Hits is what it met, in units of its own: requests, connections, keys, locks that
	// were held. One without hits came to nothing and does not count.
	Hits int `json:"hits"`
}

// A Leftover is a lock key that was on a server when none should have been.
type Leftover struct {
	Server string `json:"server"`
	Key    string `json:"key"`
	Left   int64  `json:"left"` // of its ttl, in ns
}

// Ops returns what the holds say about the order of tokens. Extends are a part of it
// only where no instance loses its memory.
func (h *History) Ops(extends bool) []Op {
	var ops []Op
	for _, k := range h.Holds {
		if k.Result != OK || k.Token == 0 {
			continue
		}
		o := Op{Client: k.Client, Resource: k.Resource, Kind: Acquire, Call: k.Sent, Return: k.Answered, Token: k.Token}
		ops = append(ops, o)
		for _, x := range k.Extends {
			if extends && x.Result == OK {
				o.Kind, o.Call, o.Return = Extend, x.Sent, x.Answered
				ops = append(ops, o)
			}
		}
	}
	return ops
}

// Operations returns how many operations the checks judge: locks that were granted,
// their extends and releases, and accesses. Tries in vain are none.
func (h *History) Operations() int {
	n := len(h.Accesses)
	for _, k := range h.Holds {
		if k.Result != OK {
			continue
		}
		n += 1 + len(k.Extends)
		if k.Release.Sent > 0 {
			n++
		}
	}
	return n
}
