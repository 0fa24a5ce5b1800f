package control

import (
	"context"
	"time"

	"github.com/quorumlock/redlock"
	"github.com/quorumlock/redlock/fence"
)

// A register is the resource. It takes every write; or, with a guard, those whose
// token is not smaller than one that it has seen.
type register struct {
	guard  *fence.HighWater
	newest *Holder // who has tried to write
}

// A Holder is somebody who was granted the lock.
type Holder struct {
	x     *Stage
	n     int // in the order in which they asked
	token uint64

	lock *redlock.Lock // nil: it is a naive one
	// Of a naive one.
	owner string
	until time.Time // what it believes
}

func (x *Stage) holder(token uint64) *Holder {
	x.holders++
	return &Holder{x: x, n: x.holders, token: token}
}

// Believes reports whether, by all that the holder can know, it has the lock.
func (h *Holder) Believes() bool {
	if h.lock != nil {
		return h.lock.Remaining() > 0
	}
	return time.Now().Before(h.until)
}

// Write writes, without a look at the clock. It is harm if it is accepted after a
// newer holder has tried to write: the newer one has lost its update, or was refused
// it.
func (h *Holder) Write() {
	r := &h.x.resource
	if err := r.write(h); err != nil {
		h.x.outcome.Refusal = err
		return
	}
	if h.n < r.newest.n {
		h.x.Harm(h.Believes() && r.newest.Believes())
	}
}

// Harm notes that a write of an older holder was accepted after one of a newer one.
func (x *Stage) Harm(both bool) {
	x.outcome.Harm = "stale write"
	if both {
		x.outcome.Harm = "two holders"
	}
}

func (r *register) write(h *Holder) error {
	if r.newest == nil || h.n > r.newest.n {
		r.newest = h
	}
	if r.guard == nil {
		return nil
	}
	return r.guard.Do(h.x.ctx, resource, h.token, func(context.Context) error { return nil })
}
