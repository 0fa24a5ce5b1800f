package redlock

import (
	"math/bits"
	"time"
)

// Where an instance is near, its answer comes sooner than a goroutine is put to sleep
// and woken again: so a caller that finds nothing out writes its operation, looks for
// the answer, and sleeps only if it does not come. That takes less of the processor
// than to sleep and be woken, too, as long as it lets others run between two looks.

const (
	// lookTime is how long a caller looks: about twice what sleeping and waking takes.
	lookTime = 200 * time.Microsecond
	// Below this distance an answer may well come within lookTime.
	near = 100 * time.Microsecond
	// maxDull bounds how often the worker listens before the next caller looks, where the
	// last ones have looked in vain.
	maxDull = 63
	// reapTime is after how long the worker takes an answer that no caller has come for.
	reapTime = 2 * time.Millisecond
	// attention is how long a caller of the only instance reads for itself, about: after
	// that it listens to its context again, and the worker to the instance.
	attention = time.Millisecond
)

// attend reads the answers that were left to the caller, until goal is reached or they
// do not come: then the workers listen for them.
func (r *round) attend(goal func(tally) bool) {
	began := time.Now()
	open, reached := r.inline, false
	r.inline = 0
	if only := r.locker.instances[0]; len(r.votes) == 1 && !only.looks() {
		only.readOn()
		return
	}
	for open != 0 {
		for rest := open; rest != 0; rest &= rest - 1 {
			if i := bits.TrailingZeros64(rest); r.locker.instances[i].glance(r) {
				open &^= 1 << i
			}
		}
		r.mu.Lock()
		reached = goal(r.tally)
		r.mu.Unlock()
		if open == 0 || reached || time.Since(began) >= lookTime {
			break
		}
		letOthersRun()
	}
	for ; open != 0; open &= open - 1 {
		r.locker.instances[bits.TrailingZeros64(open)].leave(r, reached)
	}
}

// looks reports whether who has the turn looks for the answer before it waits.
func (in *instance) looks() bool {
	switch {
	case in.wire.looker == nil, !in.single, in.distance >= near:
		return false
	case in.listens > 0:
		in.listens--
		return false
	}
	return true
}

// glance takes what has come, without waiting for it. It reports whether the caller has
// passed the turn on.
func (in *instance) glance(r *round) bool {
	in.mu.Lock()
	w := in.wire // it stays while the caller has the turn
	if real := time.Now(); in.readUntil.Sub(real) < attention {
		in.readUntilLocked(real.Add(in.locker.sendLimit()))
	}
	broken := in.broken != nil
	in.mu.Unlock()
	if broken {
		in.passOn()
		return true
	}
	some, err := w.look()
	if !some && err == nil {
		return false
	}
	if some {
		in.dull = 0
	}
	in.receive(w, err)
	in.requeue()
	return in.proceed(r)
}

// proceed sends r's operation if it has waited for an answer that has come, and passes
// the turn on if there is something else to do, or nothing is out.
func (in *instance) proceed(r *round) bool {
	in.mu.Lock()
	defer in.mu.Unlock()
	real := time.Now()
	if len(in.queue) == 1 && in.queue[0] == r && !in.signalled && in.unfit == nil && in.sendableLocked(real) && in.pen.TryLock() {
		in.flyLocked(in.locker.now(), real)
		in.pen.Unlock()
	}
	if in.idleLocked() && len(in.flights) == 1 {
		return false
	}
	in.passOnLocked()
	return true
}

// idleLocked reports whether the worker has nothing to look at.
func (in *instance) idleLocked() bool {
	return !in.signalled && in.broken == nil && len(in.queue) == 0
}

func (in *instance) passOn() {
	in.mu.Lock()
	in.passOnLocked()
	in.mu.Unlock()
}

// passOnLocked gives the turn to the worker, if there is something for it to do.
func (in *instance) passOnLocked() {
	in.turn = nobodys
	if !in.idleLocked() || len(in.flights) > 0 {
		in.turn = workers
		in.knock()
	}
}

// leave is called by a caller that has the turn, and looks no longer.
func (in *instance) leave(r *round, reached bool) {
	in.mu.Lock()
	if !reached {
		in.dull = min(2*in.dull+1, maxDull)
		in.listens = in.dull
	}
	switch {
	case len(in.locker.instances) == 1:
		in.mu.Unlock()
		in.readOn()
		return
	case reached && r.took == nil && in.idleLocked() && len(in.flights) == 1 && len(in.flights[0].batch) == 1:
		// Of one that nobody waits for any more: the next caller takes it, with its own.
		in.turn = unread
		in.reapLocked(reapTime)
	default:
		in.passOnLocked()
	}
	in.mu.Unlock()
}

// readOn reads the answer to the operation that the caller has sent to the only
// instance, and passes the turn on. It returns within a few milliseconds, answered or
// not.
func (in *instance) readOn() {
	in.mu.Lock()
	w := in.wire // it stays while the caller has the turn
	real := time.Now()
	if left := in.readUntil.Sub(real); left < attention || left > 3*attention {
		in.readUntilLocked(real.Add(3 * attention))
	}
	out := in.broken == nil && len(in.flights) > 0
	in.mu.Unlock()
	for out {
		err := w.fill()
		in.receive(w, err)
		in.mu.Lock()
		out = err == nil && in.broken == nil && len(in.flights) > 0
		in.mu.Unlock()
	}
	in.requeue()
	in.passOn()
}

// reapLocked has the worker take an answer for which no caller comes within d.
func (in *instance) reapLocked(d time.Duration) {
	switch {
	case in.reaping:
		return
	case in.reaper == nil:
		in.reaper = time.AfterFunc(d, in.reap)
	default:
		in.reaper.Reset(d)
	}
	in.reaping = true
}

func (in *instance) reap() {
	in.mu.Lock()
	defer in.mu.Unlock()
	in.reaping = false
	if in.turn != unread {
		return
	}
	if left := reapTime - time.Since(in.leftAt); left > 0 {
		in.reapLocked(left)
		return
	}
	in.signalLocked()
}
