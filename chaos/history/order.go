package history

import (
	"cmp"
	"fmt"
	"slices"
)

// A Kind is what an operation did.
type Kind string

// The kinds of operations.
const (
	Acquire Kind = "acquire" // completed, with Token
	Extend  Kind = "extend"  // of the lock with Token, confirmed
)

// An Op is one operation that a client completed, as far as the order of tokens
// goes.
type Op struct {
	Client   int    `json:"client"`
	Resource string `json:"resource"`
	Kind     Kind   `json:"kind"`
	Call     int64  `json:"call"`   // when it began, in ns on a clock that all clients share
	Return   int64  `json:"return"` // when it ended
	Token    uint64 `json:"token"`
}

func (o Op) String() string {
	return fmt.Sprintf("client %d: %s %s [%d, %d] token %d", o.Client, o.Kind, o.Resource, o.Call, o.Return, o.Token)
}

// A Violation is a pair of operations that can't both be right.
type Violation struct {
	Rule          string
	Before, After Op
}

func (v Violation) String() string { return fmt.Sprintf("%s:\n  %v\n  %v", v.Rule, v.Before, v.After) }

// Check returns the violations in ops, the first few of each resource: two
// acquisitions with one token, an acquisition with a token that is not larger than
// that of one which completed before it began, and an extend that was confirmed
// although an acquisition with a larger token had completed before it began.
func Check(ops []Op) []Violation {
	var found []Violation
	for _, ops := range byResource(ops) {
		found = append(found, duplicates(ops)...)
		found = append(found, disorder(ops)...)
	}
	return found
}

func byResource(ops []Op) map[string][]Op {
	of := map[string][]Op{}
	for _, o := range ops {
		of[o.Resource] = append(of[o.Resource], o)
	}
	return of
}

const most = 3 // violations of a rule and resource

func duplicates(ops []Op) []Violation {
	var found []Violation
	seen := map[uint64]Op{}
	for _, o := range ops {
		if o.Kind != Acquire {
			continue
		}
		if first, ok := seen[o.Token]; ok && len(found) < most {
			found = append(found, Violation{"one token twice", first, o})
		}
		seen[o.Token] = o
	}
	return found
}

// disorder goes through the beginnings in their order, and keeps the acquisition
// with the largest token among those that ended before each.
func disorder(ops []Op) []Violation {
	var found []Violation
	calls := slices.SortedFunc(slices.Values(ops), func(a, b Op) int { return cmp.Compare(a.Call, b.Call) })
	ends := slices.SortedFunc(slices.Values(ops), func(a, b Op) int { return cmp.Compare(a.Return, b.Return) })
	var largest Op
	next := 0
	for _, o := range calls {
		for ; ends[next].Return < o.Call; next++ {
			if e := ends[next]; e.Kind == Acquire && e.Token > largest.Token {
				largest = e
			}
		}
		switch {
		case largest.Token == 0 || len(found) == most:
		case o.Kind == Acquire && o.Token <= largest.Token:
			found = append(found, Violation{"a token that is not larger than one before", largest, o})
		case o.Kind == Extend && o.Token < largest.Token:
			found = append(found, Violation{"an extend after a larger token", largest, o})
		}
	}
	return found
}
