package redlock

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"slices"
	"sync"
	"time"
)

// This file makes events and hands them to the Observer. Without one, each place where
// something happens costs a look at a nil pointer.

const (
	maxEvents     = 10_000
	reserved      = 1000 // more, for events that tell of harm: those are few
	observerGrace = 100 * time.Millisecond
	nap           = time.Millisecond
	maxTallies    = 32          // rounds that an acquire remembers
	reactionTime  = signalEarly // that a holder gets when its loss is signalled before its end
)

// A dispatcher hands events to an Observer.
//
// It takes a nap before it looks at what has come: woken for each event, it would take
// the processor from callers and workers in the midst of a batch.
type dispatcher struct {
	Observer

	mu      sync.Mutex
	events  []event // that came since it last looked
	dropped int

	wake chan struct{} // of one place: there are events
	quit chan struct{}
	done chan struct{}

	turn []event // of its goroutine: what is being handed out,
	next int     // and from where on
}

// An event is handed out with the number of those that were dropped before it.
type event interface{ tell(dropped int) }

func newDispatcher(o Observer) *dispatcher {
	d := &dispatcher{
		Observer: o,
		wake:     make(chan struct{}, 1),
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
	d.handOut() // what such a one has left
	timer := time.NewTimer(never)
	defer timer.Stop()
	for {
		select {
		case <-d.wake:
		case <-d.quit:
			d.take()
			d.handOut()
			ended = true
			return
		}
		timer.Reset(nap)
		select {
		case <-timer.C:
		case <-d.quit:
		}
		d.take()
		d.handOut()
	}
}

// take makes what has come the next turn.
func (d *dispatcher) take() {
	clear(d.turn)
	d.mu.Lock()
	d.events, d.turn, d.next = d.turn[:0], d.events, 0
	d.mu.Unlock()
}

func (d *dispatcher) handOut() {
	for d.next < len(d.turn) {
		e := d.turn[d.next]
		d.next++
		d.call(e)
	}
}

func (d *dispatcher) call(e event) {
	defer func() { _ = recover() }() // a panic of an observer breaks nothing
	d.mu.Lock()
	dropped := d.dropped
	d.dropped = 0
	d.mu.Unlock()
	e.tell(dropped)
}

// add queues an event, and drops it when too many are waiting. Those of harm find room
// for longer: what they tell must not be lost in the noise of an overload.
func (d *dispatcher) add(harm bool, e event) {
	most := maxEvents
	if harm {
		most += reserved
	}
	d.mu.Lock()
	n := len(d.events)
	if n < most {
		d.events = append(d.events, e)
	} else {
		d.dropped++
	}
	d.mu.Unlock()
	if n == 0 {
		select {
		case d.wake <- struct{}{}:
		default:
		}
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

// A plainEvent is one that is about no lock.
type plainEvent func(dropped int)

func (f plainEvent) tell(dropped int) { f(dropped) }

// A lockEvent is one about a lock, or about a call that got none: then lock is nil.
type lockEvent[E any, P interface {
	*E
	base() *LockEvent
}] struct {
	event E
	lock  *Lock
	to    func(E)
}

// base is what an event has of its [LockEvent].
func (e *LockEvent) base() *LockEvent { return e }

func (e *lockEvent[E, P]) tell(dropped int) {
	base := P(&e.event).base()
	base.Dropped = dropped
	if e.lock != nil {
		// Here, on the observer's goroutine, and once for each lock.
		h := e.lock.history
		if h.digest == "" {
			h.digest = OwnerDigest(e.lock.owner)
		}
		base.Owner = h.digest
	}
	e.to(e.event)
}

// send queues an event about k for the function to of the Observer.
func send[E any, P interface {
	*E
	base() *LockEvent
}](d *dispatcher, harm bool, k *Lock, to func(E), e E) {
	d.add(harm, &lockEvent[E, P]{event: e, lock: k, to: to})
}

// observeOpened and observeClosed are the first event and the last one.
func (l *Locker) observeOpened() {
	if d := l.dispatcher; d.Opened != nil {
		d.add(true, plainEvent(func(int) { d.Opened(l) }))
	}
}

func (l *Locker) observeClosed() {
	if d := l.dispatcher; d.Closed != nil {
		d.add(true, plainEvent(func(int) { d.Closed(l) }))
	}
}

// OwnerDigest returns a digest of the owner that is safe to log: events carry it, and
// nobody can release a lock with it. It is the first 16 hexadecimal digits of
// the SHA-256 of [Lock.Owner].
func OwnerDigest(owner string) string {
	sum := sha256.Sum256([]byte(owner))
	var text [16]byte
	hex.Encode(text[:], sum[:8])
	return string(text[:])
}

// A history is what a lock remembers for the observer.
type history struct {
	ctx      context.Context //nolint:containedctx // of the acquire
	extends  account
	early    bool          // its loss was signalled before the end of its window
	lost     bool          // its loss was told
	outlived bool          // that its holder outlived it was told
	letGo    time.Time     // when its holder first called Release; zero before
	late     time.Duration // how long after the end of the lease that was
	used     float64       // the share of the ttl that had gone by then
	released bool          // that was told
	digest   string        // of the owner; of the observer's goroutine
}

// event is the part that all events about k have; the rest of it is added later.
func (k *Lock) event(ctx context.Context) LockEvent {
	return LockEvent{Context: ctx, Resource: k.resource, Token: k.token}
}

// tallied returns how the votes of r stand at now.
func (r *round) tallied(now time.Time) RoundTally {
	r.mu.Lock()
	defer r.mu.Unlock()
	t := r.tally
	return RoundTally{
		Op: r.op.String(), Start: r.start, End: now,
		Granted: t.granted, Refused: t.refused, Failed: t.failed, Pending: t.pending(),
	}
}

// An account is what is remembered of the rounds of an acquire, or of the extends of a
// lock.
type account struct {
	rounds int
	last   []RoundTally
}

func (a *account) add(t RoundTally) {
	a.rounds++
	if len(a.last) == maxTallies {
		a.last = a.last[:copy(a.last, a.last[1:])]
	}
	a.last = append(a.last, t)
}

// note remembers a round of the acquire.
func (q *request) note(r *round) {
	d := r.locker.dispatcher
	if d == nil || d.Acquire == nil {
		return
	}
	if q.account == nil {
		q.account = &account{}
	}
	q.account.add(r.tallied(r.locker.now()))
}

func (l *Locker) observeAcquire(ctx context.Context, q *request, k *Lock, err error) {
	d := l.dispatcher
	if d == nil || d.Acquire == nil {
		return
	}
	e := AcquireEvent{
		LockEvent: LockEvent{Context: ctx, Resource: q.resource}, Outcome: classify(err, OutcomeAcquired), Err: err,
		Start: q.start, End: l.now(), TTL: q.ttl,
	}
	if !q.waiting.IsZero() {
		e.Waited = elapsed(q.waiting, e.End)
	}
	if q.account != nil {
		e.Rounds, e.Last = q.account.rounds, q.account.last
	}
	if k != nil {
		e.LockEvent, e.Remaining = k.event(ctx), max(k.Remaining(), 0)
	}
	send(d, false, k, d.Acquire, e)
}

// observeExtend tells of an extend whose votes were just taken.
func (k *Lock) observeExtend(x extension, renewal bool, err error) {
	d := k.locker.dispatcher
	if d == nil || d.Extend == nil && d.Release == nil {
		return
	}
	now := k.locker.now()
	tally := x.round.tallied(now)
	k.mu.Lock()
	k.history.extends.add(tally)
	k.mu.Unlock()
	if d.Extend == nil {
		return
	}
	e := ExtendEvent{
		LockEvent: k.event(x.round.ctx), Outcome: classify(err, OutcomeExtended), Err: err, Renewal: renewal,
		Start: x.round.start, End: now, TTL: x.ttl, Left: max(x.before.remaining(now), 0), Remaining: max(k.Remaining(), 0),
		Round: tally,
	}
	send(d, false, k, d.Extend, e)
}

// observeLossLocked tells how the lock ended, and has its holder watched, if it was
// kept alive: that one may not listen.
func (k *Lock) observeLossLocked(reason LostReason, cause error) {
	h := k.history
	if h == nil || h.lost || reason == LostReleased {
		return
	}
	h.lost = true
	now := k.locker.now()
	d := k.locker.dispatcher
	if d.Outlived != nil && h.letGo.IsZero() && reason != LostClosed {
		time.AfterFunc(max(-k.overdueLocked(now), 0)+tick, k.checkHolder)
	}
	if d.Lost == nil {
		return
	}
	e := LostEvent{
		LockEvent: k.event(h.ctx), Reason: reason, Err: &LostError{Resource: k.resource, Reason: reason, cause: cause},
		Acquired: k.won, At: now,
	}
	send(d, true, k, d.Lost, e)
}

// overdueLocked returns how long ago the lease ended at now; less than zero before.
func (k *Lock) overdueLocked(now time.Time) time.Duration {
	over := -k.window.remaining(now)
	if k.history.early {
		over -= reactionTime
	}
	return over
}

// checkHolder tells that the holder of a lock that ended goes on.
func (k *Lock) checkHolder() {
	k.mu.Lock()
	defer k.mu.Unlock()
	if now := k.locker.now(); k.history.letGo.IsZero() && k.overdueLocked(now) > 0 {
		k.observeOutlivedLocked(now)
	}
}

func (k *Lock) observeOutlivedLocked(now time.Time) {
	h, d := k.history, k.locker.dispatcher
	if h.outlived || d.Outlived == nil {
		return
	}
	h.outlived = true
	e := OutlivedEvent{LockEvent: k.event(h.ctx), Acquired: k.won, At: now, By: k.overdueLocked(now), Released: !h.letGo.IsZero()}
	send(d, true, k, d.Outlived, e)
}

// observeForgotten tells of a lock whose window ended, at the latest by now, without
// anybody who was to notice.
func (k *Lock) observeForgotten(now time.Time) {
	if k.history == nil {
		return
	}
	k.mu.Lock()
	defer k.mu.Unlock()
	if k.history.letGo.IsZero() && k.overdueLocked(now) > 0 {
		k.observeOutlivedLocked(now)
		k.observeLossLocked(LostExpired, nil)
	}
}

// letGoLocked notes that the holder gives the lock up at now.
func (k *Lock) letGoLocked(now time.Time) {
	h := k.history
	if h == nil || !h.letGo.IsZero() {
		return
	}
	h.letGo, h.late = now, max(k.overdueLocked(now), 0)
	h.used = float64(elapsed(k.window.start, now)) / float64(k.ttl)
	if h.late > 0 {
		k.observeOutlivedLocked(now)
	}
}

// observeRelease tells of a Release that has ended, with its round if it sent one.
func (k *Lock) observeRelease(ctx context.Context, r *round, err error) {
	h, d := k.history, k.locker.dispatcher
	if h == nil || d.Release == nil {
		return
	}
	now := k.locker.now()
	e := ReleaseEvent{LockEvent: k.event(ctx), Outcome: classify(err, OutcomeReleased), Err: err, Acquired: k.won, Start: now, End: now}
	if r != nil {
		e.Round = r.tallied(now)
		e.Start = r.start
	}
	k.mu.Lock()
	e.Again = h.released
	h.released = true
	e.TTL, e.Used, e.Outlived = k.ttl, h.used, h.late
	e.Extends, e.Last = h.extends.rounds, slices.Clone(h.extends.last)
	if !e.Again {
		e.Start = h.letGo
	}
	k.mu.Unlock()
	if r == nil && e.Again {
		return
	}
	send(d, false, k, d.Release, e)
}

// classify returns what err says; well if there is none.
func classify(err error, well Outcome) Outcome {
	var lost *LostError
	var ended *endedError
	switch {
	case err == nil:
		return well
	case errors.As(err, &lost) && lost.Reason == LostReleased:
		return OutcomeReleased
	case errors.Is(err, ErrLost):
		return OutcomeLost
	case errors.As(err, &ended):
		return OutcomeCancelled
	case errors.Is(err, ErrClosed):
		return OutcomeClosed
	case errors.Is(err, ErrExpired):
		return OutcomeExpired
	case errors.Is(err, ErrTaken):
		return OutcomeTaken
	case errors.Is(err, ErrNoQuorum):
		return OutcomeNoQuorum
	}
	return OutcomeFailed
}

func (l *Locker) observeRound(r *round) {
	d := l.dispatcher
	if d == nil || d.Round == nil || r.cleaning {
		return
	}
	k := r.lock
	e := RoundEvent{
		// The token of the round: that of the lock may just be being set.
		LockEvent: LockEvent{Context: r.ctx, Resource: k.resource, Token: r.issued}, Op: r.op.String(), Start: r.start, End: l.now(),
		Won: r.tally.outcome() == won || r.op == opHeal && r.tally.granted > 0, Votes: make([]InstanceVote, len(r.votes)),
	}
	for i, v := range r.votes {
		e.Votes[i] = InstanceVote{Instance: l.instances[i].name, Vote: v.String(), Took: r.took[i], Err: r.errs[i]}
		if v != refused {
			e.Votes[i].Fence = r.fences[i]
		} else if r.leases[i] > 0 {
			e.Votes[i].Err = newLeaseError(r.leases[i])
		}
		// One that had granted nothing holds it for another as it may: that is contention.
		e.Votes[i].Foreign = r.op == opRelease && k.granted&(1<<i) != 0 && errors.Is(r.errs[i], errForeign)
	}
	send(d, e.Foreign() > 0, k, d.Round, e)
}

func (l *Locker) observeInstance(in *instance, change InstanceChange, err error) {
	d := l.dispatcher
	if d == nil || d.Instance == nil {
		return
	}
	e := InstanceEvent{Instance: in.name, Change: change, At: l.now(), Err: err}
	d.add(true, plainEvent(func(dropped int) {
		e.Dropped = dropped
		d.Instance(e)
	}))
}
