package redlock

import (
	"context"
	"sync/atomic"
	"time"
)

// An Observer is told what happens. Each function is optional. They are called
// one after the other on a goroutine of their own, a moment later: an observer
// that blocks or panics breaks no lock. Events that pile up behind one that
// blocks, more than 10,000, are dropped; the next event says how many. Close waits
// a moment for the last events; a slow observer may get some after it.
type Observer struct {
	// Round is called for each question to the instances, when the last of them
	// has answered or failed.
	Round func(RoundEvent)
	// Instance is called when the state of an instance changes.
	Instance func(InstanceEvent)
}

// A RoundEvent tells how the instances voted.
type RoundEvent struct {
	Context  context.Context // of the call, for its trace
	Op       string          // "acquire", "raise", "extend", "heal" or "release"
	Resource string
	Start    time.Time // before the question was sent
	End      time.Time // when the last instance had answered or failed
	Token    uint64    // the fencing token; of an acquire, if the round decided it; 0 without
	Won      bool      // a quorum granted, counting late answers; for a heal, of one instance: it was done
	Votes    []InstanceVote
	Dropped  int // events that were dropped before this one
}

// Thin returns how many instances hold the lock with a fence beyond its token:
// they granted more than the quorum decided on, and will confirm no extend.
func (e RoundEvent) Thin() int {
	n := 0
	for _, v := range e.Votes {
		if e.Token > 0 && v.Fence > e.Token {
			n++
		}
	}
	return n
}

// An InstanceVote is one instance's answer.
type InstanceVote struct {
	Instance string
	Vote     string // "granted", "refused", "failed", or "pending" when it was not asked
	Fence    uint64 // the instance's fence value, where it granted or it is beyond the token
	Err      error  // why it refused or failed
}

// An InstanceChange says what an [InstanceEvent] is about.
type InstanceChange string

// The changes of an instance.
const (
	InstanceDown        InstanceChange = "down"              // no connection, or silence: its votes fail at once, and it is probed
	InstanceUp          InstanceChange = "up"                // it answers again
	CleanUpOverflow     InstanceChange = "clean-up overflow" // an owner may stay on it until its ttl ends
	CleanUpLeft         InstanceChange = "clean-up left"     // Close ended before it was clean: owners may stay on it until their ttl ends
	InstanceDuplicate   InstanceChange = "duplicate"         // it is another instance under a second name: its grants fail
	InstanceQuarantined InstanceChange = "quarantined"       // it restarted, or took over: its votes fail for a while (see [QuarantineError] in Err)
	QuarantineOff       InstanceChange = "quarantine off"    // it does not tell its uptime: after a restart it counts at once
	ClockOff            InstanceChange = "clock off"         // its clock is too far from ours: its grants fail
	ClockAstray         InstanceChange = "clock astray"      // it counted another time than ours since a lock was last extended: it jumped, or runs fast or slow
	ClockUnknown        InstanceChange = "clock unknown"     // it does not tell its time
)

// An InstanceEvent tells that the state of an instance changed.
type InstanceEvent struct {
	Instance string
	Change   InstanceChange
	At       time.Time
	Err      error // the cause; of an up, nil
	Dropped  int   // events that were dropped before this one
}

const (
	maxEvents     = 10_000
	observerGrace = 100 * time.Millisecond
)

// A dispatcher hands events to an Observer.
type dispatcher struct {
	Observer
	events  chan func(dropped int)
	dropped atomic.Int64
	quit    chan struct{}
	done    chan struct{}
}

func newDispatcher(o Observer) *dispatcher {
	d := &dispatcher{
		Observer: o,
		events:   make(chan func(int), maxEvents),
		quit:     make(chan struct{}),
		done:     make(chan struct{}),
	}
	go d.run()
	return d
}

func (d *dispatcher) run() {
	ended := false
	defer func() {
		if !ended { // an observer that called runtime.Goexit
			go d.run()
			return
		}
		close(d.done)
	}()
	for {
		select {
		case f := <-d.events:
			d.call(f)
		case <-d.quit:
			for len(d.events) > 0 {
				d.call(<-d.events)
			}
			ended = true
			return
		}
	}
}

func (d *dispatcher) call(f func(int)) {
	defer func() { _ = recover() }() // a panic of an observer breaks nothing
	f(int(d.dropped.Swap(0)))
}

func (d *dispatcher) add(f func(dropped int)) {
	select {
	case d.events <- f:
	default:
		d.dropped.Add(1)
	}
}

// stop hands out what is left, as far as the observer takes it in time.
func (d *dispatcher) stop() {
	close(d.quit)
	timer := time.NewTimer(observerGrace)
	defer timer.Stop()
	select {
	case <-d.done:
	case <-timer.C:
	}
}

func (l *Locker) observeRound(r *round) {
	d := l.dispatcher
	if d == nil || d.Round == nil || r.cleaning {
		return
	}
	e := RoundEvent{
		Context: r.ctx, Op: r.op.String(), Resource: r.lock.resource, Start: r.start, End: l.now(),
		Token: r.issued, Won: r.tally.outcome() == won || r.op == opHeal && r.tally.granted > 0, Votes: make([]InstanceVote, len(r.votes)),
	}
	for i, v := range r.votes {
		e.Votes[i] = InstanceVote{Instance: l.instances[i].name, Vote: v.String(), Err: r.errs[i]}
		if v != refused {
			e.Votes[i].Fence = r.fences[i]
		} else if r.leases[i] > 0 {
			e.Votes[i].Err = newLeaseError(r.leases[i])
		}
	}
	d.add(func(dropped int) {
		e.Dropped = dropped
		d.Round(e)
	})
}

func (l *Locker) observeInstance(in *instance, change InstanceChange, err error) {
	d := l.dispatcher
	if d == nil || d.Instance == nil {
		return
	}
	e := InstanceEvent{Instance: in.name, Change: change, At: l.now(), Err: err}
	d.add(func(dropped int) {
		e.Dropped = dropped
		d.Instance(e)
	})
}
