package redlock

import (
	"context"
	"time"
)

// An Observer is told what happens. Each function is optional. They are called
// one after the other on a goroutine of their own, a moment later: an observer
// that blocks or panics breaks no lock. Events that pile up behind one that
// blocks, more than 10,000, are dropped; the next event says how many. There is
// room for 1,000 more of those that tell of harm. Close waits a moment for the last
// events; a slow observer may get some after it.
//
// What there is now, such as how many locks are held, no sum of events tells for
// long: that is in [Locker.Stats].
type Observer struct {
	// Opened is called first, with a Locker that has this Observer; Closed is called
	// last, when its Close is about to return.
	Opened, Closed func(*Locker)

	// Acquire is called when a call of Acquire, TryAcquire or Do has its lock, or
	// returns without. Calls that are refused before any I/O raise no event.
	Acquire func(AcquireEvent)
	// Extend is called when an Extend, or a renewal of KeepAlive, has ended.
	Extend func(ExtendEvent)
	// Lost is called for a lock that ended before its holder released it, once, when
	// that is found out.
	Lost func(LostEvent)
	// Outlived is called for a holder that has not released its lock by the end of its
	// lease, once: what it does from then on, another one may be doing too.
	//
	// It is told at that end if the lock was kept alive, and otherwise when it is known:
	// at the late Release, or, if that never comes, when the Locker comes across the
	// lock at a later acquire. [Stats.Overdue] counts those that are not found yet.
	Outlived func(OutlivedEvent)
	// Release is called when a Release has ended: the hold is over. One that finds
	// nothing to release any more raises no event.
	Release func(ReleaseEvent)

	// Round is called for each question to the instances, when the last of them
	// has answered or failed.
	Round func(RoundEvent)
	// Instance is called when the state of an instance changes.
	Instance func(InstanceEvent)
}

// silent reports whether nobody listens.
func (o *Observer) silent() bool {
	return o.Opened == nil && o.Closed == nil && o.Acquire == nil && o.Extend == nil && o.Lost == nil &&
		o.Outlived == nil && o.Release == nil && o.Round == nil && o.Instance == nil
}

// MultiObserver returns an Observer that tells each of observers, in this order.
// One that panics keeps nothing from the others; one that blocks does, as they share
// a goroutine.
func MultiObserver(observers ...Observer) Observer {
	return Observer{
		Opened:   toEach(observers, func(o Observer) func(*Locker) { return o.Opened }),
		Closed:   toEach(observers, func(o Observer) func(*Locker) { return o.Closed }),
		Acquire:  toEach(observers, func(o Observer) func(AcquireEvent) { return o.Acquire }),
		Extend:   toEach(observers, func(o Observer) func(ExtendEvent) { return o.Extend }),
		Lost:     toEach(observers, func(o Observer) func(LostEvent) { return o.Lost }),
		Outlived: toEach(observers, func(o Observer) func(OutlivedEvent) { return o.Outlived }),
		Release:  toEach(observers, func(o Observer) func(ReleaseEvent) { return o.Release }),
		Round:    toEach(observers, func(o Observer) func(RoundEvent) { return o.Round }),
		Instance: toEach(observers, func(o Observer) func(InstanceEvent) { return o.Instance }),
	}
}

// toEach returns a function that calls one of each observer; nil if none has it, so
// that its events are not even made.
func toEach[E any](observers []Observer, of func(Observer) func(E)) func(E) {
	var all []func(E)
	for _, o := range observers {
		if f := of(o); f != nil {
			all = append(all, f)
		}
	}
	if all == nil {
		return nil
	}
	return func(e E) {
		for _, f := range all {
			func() {
				defer func() { _ = recover() }()
				f(e)
			}()
		}
	}
}

// An Outcome says how a call ended.
type Outcome string

// The outcomes of the calls.
const (
	OutcomeAcquired  Outcome = "acquired"
	OutcomeExtended  Outcome = "extended"
	OutcomeReleased  Outcome = "released"  // of an extend: the lock had been released meanwhile
	OutcomeTaken     Outcome = "taken"     // ErrTaken: somebody else holds the lock
	OutcomeNoQuorum  Outcome = "no quorum" // ErrNoQuorum: too few instances answered
	OutcomeExpired   Outcome = "expired"   // ErrExpired: a majority granted the lock, too late
	OutcomeLost      Outcome = "lost"      // ErrLost: the lock was no longer ours
	OutcomeCancelled Outcome = "cancelled" // the call's ctx ended
	OutcomeClosed    Outcome = "closed"    // ErrClosed: the Locker was closed
	OutcomeFailed    Outcome = "failed"    // the fencing source gave no token
)

// A LockEvent is what all events about one lock tell.
type LockEvent struct {
	Context  context.Context // of the call, for its trace
	Resource string
	Owner    string // the digest of the owner (see [OwnerDigest]), the same in all events about one acquisition; empty without one
	Token    uint64 // the fencing token; 0 without
	Dropped  int    // events that were dropped before this one
}

// An AcquireEvent tells how a call for a lock ended.
type AcquireEvent struct {
	LockEvent
	Outcome   Outcome
	Err       error // that the call returned; it names the resource
	Start     time.Time
	End       time.Time
	TTL       time.Duration // that was asked for
	Remaining time.Duration // of the validity window at End; 0 without a lock
	Waited    time.Duration // for its turn, a part of the time from Start to End; 0 if the first round decided
	Rounds    int           // that it took; two for one with a raise
	Last      []RoundTally  // the last of them, 32 at most
}

// An ExtendEvent tells how an extend ended.
type ExtendEvent struct {
	LockEvent
	Outcome   Outcome
	Err       error // that the call returned, or would have; it names the resource
	Renewal   bool  // by KeepAlive; Context is what that was called with
	Start     time.Time
	End       time.Time
	TTL       time.Duration // that was asked for
	Left      time.Duration // of the window before, at End: how close it was
	Remaining time.Duration // of the window now, at End
	Round     RoundTally
}

// A LostEvent tells that a lock ended before its holder released it.
type LostEvent struct {
	LockEvent // Context is that of the acquire
	Reason    LostReason
	Err       error // a *[LostError] with the cause; it names the resource
	Acquired  time.Time
	At        time.Time
}

// An OutlivedEvent tells of a holder that has not released its lock by the end of
// its lease: the end of its validity window or, if a loss was found before and
// signalled, 5 ms after that.
type OutlivedEvent struct {
	LockEvent // Context is that of the acquire
	Acquired  time.Time
	At        time.Time
	By        time.Duration // since the end of the lease; it may go on
	Released  bool          // it does not go on: a Release came, late
}

// A ReleaseEvent tells how a Release ended, and with it the hold.
type ReleaseEvent struct {
	LockEvent
	Outcome  Outcome
	Err      error     // that the call returned; it names the resource
	Acquired time.Time // the hold is from here
	Start    time.Time // to here, when Release was called
	End      time.Time
	TTL      time.Duration // that was last asked for
	Used     float64       // the share of the ttl that had gone by at Start since it was last set; above 1: too much
	Outlived time.Duration // how long after the end of its lease the holder came; 0: in time
	Again    bool          // a Release before did not work: the hold has been told
	Extends  int           // of the hold, renewals and those that failed included
	Last     []RoundTally  // of the last of them, 32 at most
	Round    RoundTally    // of the release; zero if the lock had been lost before: then nothing is asked
}

// A RoundTally is how the votes of a round stood when its caller went on, which is as
// soon as they decide.
type RoundTally struct {
	Op         string // "acquire", "raise", "extend" or "release"
	Start, End time.Time
	Granted    int
	Refused    int
	Failed     int
	Pending    int // had not answered yet
}

// A RoundEvent tells how the instances voted. A raise is the second half of an acquire
// whose instances had counted to different fence values: it brings them to the largest.
// A heal is sent after an extend that a majority confirmed, to an instance that had lost
// the lock.
type RoundEvent struct {
	LockEvent           // the Token of an acquire if the round decided it
	Op        string    // "acquire", "raise", "extend", "heal" or "release"
	Start     time.Time // before the question was sent
	End       time.Time // when the last instance had answered or failed
	Won       bool      // a quorum granted, counting late answers; for a heal, of one instance: it was done
	Votes     []InstanceVote
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

// Foreign returns how many instances had granted the lock, and hold it for another
// owner at its release: the lock ended there before its holder released it.
func (e RoundEvent) Foreign() int {
	n := 0
	for _, v := range e.Votes {
		if v.Foreign {
			n++
		}
	}
	return n
}

// An InstanceVote is one instance's answer.
type InstanceVote struct {
	Instance string
	Vote     string        // "granted", "refused", "failed", or "pending" when it was not asked
	Took     time.Duration // from the start of the round to the answer, the time in our queue included; 0 when a raise did not need to ask
	Fence    uint64        // the instance's fence value, where it granted or it is beyond the token
	Foreign  bool          // of a release: it had granted the lock, and holds it for another owner now
	Err      error         // why it refused or failed
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
	QuarantineOver      InstanceChange = "quarantine over"   // its votes count again
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
	Err      error // the cause; nil of an up and of the end of a quarantine
	Dropped  int   // events that were dropped before this one
}
