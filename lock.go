package redlock

import (
	"context"
	"errors"
	"math"
	"sync"
	"sync/atomic"
	"time"
)

// A Lock is one acquisition of one resource: an owner, a validity window and a
// fencing token. Its methods are safe for concurrent use; those of a nil Lock
// return zero values and errors.
type Lock struct {
	locker   *Locker
	resource string
	key      string // the lock key
	fence    string // the fence key; empty where the quorum issues no tokens
	owner    string // a new one for each round
	token    uint64
	maxHold  time.Duration // 0: no limit

	// What the workers of the instances need to know, without waiting for mu.
	phase  atomic.Uint32
	until  atomic.Int64  // the end of the window, since Locker.born
	lease  atomic.Int64  // the longest ttl that was asked for
	onIt   atomic.Uint64 // bit i: instance i may have been sent a grant
	unsure atomic.Uint64 // bit i: an extend to a shorter ttl may still reach instance i
	onList atomic.Uint64 // bit i: the clean-up list of instance i has it
	onWay  atomic.Uint64 // bit i: an extend or a heal is on its way to instance i

	// When each instance last set the expiry; made by the first extend, and then of
	// the instances' workers, one each.
	sightings []sighting

	releasing sync.Mutex // one Release at a time

	mu        sync.Mutex
	ttl       time.Duration // that was last asked for
	window    window
	asked     time.Time  // before its acquire was sent
	won       time.Time  // when that was decided
	granted   uint64     // bit i: instance i had granted it then
	shortened int        // extends that were to bring the expiry nearer
	late      bool       // the window was over when it was first released
	reason    LostReason // once it is final how the lock ended
	cause     error      // what showed it
	released  bool       // a release was sent
	keeping   *keeping   // nil when it is not kept alive
	history   *history   // for the observer; nil without

	next, prev *Lock // the Locker's list of held locks
}

// Phases of a Lock.
const (
	asking uint32 = iota // its acquire is not decided
	held
	over // given up: by its holder, by a lost vote, by Close
)

// Resource returns what was locked.
func (k *Lock) Resource() string {
	if k == nil {
		return ""
	}
	return k.resource
}

// Owner returns the random value that marks this acquisition: the value of the
// lock key on the instances.
func (k *Lock) Owner() string {
	if k == nil {
		return ""
	}
	return k.owner
}

// FencingToken returns the number of this acquisition, larger than that of every
// acquisition of the resource that completed before; 0 when fencing is off. Send
// it with every write to the resource, which must refuse one that is smaller
// than the largest it has seen.
func (k *Lock) FencingToken() uint64 {
	if k == nil {
		return 0
	}
	return k.token
}

// ValidUntil returns the end of the validity window on the wall clock, to show;
// it is never later than the expiry of a majority of the lock's keys. Whether
// the lock still holds is for [Lock.Remaining] to say.
func (k *Lock) ValidUntil() time.Time {
	if k == nil {
		return time.Time{}
	}
	k.mu.Lock()
	defer k.mu.Unlock()
	return k.window.end()
}

// Remaining returns what is left of the validity window; zero or less once it is
// over or the lock was released or lost. It asks nobody.
func (k *Lock) Remaining() time.Duration {
	if k == nil {
		return 0
	}
	k.mu.Lock()
	defer k.mu.Unlock()
	left := k.window.remaining(k.locker.now())
	if k.released {
		return min(left, 0)
	}
	return left
}

// Extend makes the lock hold for ttl from now. It succeeds when a majority of
// the instances confirms that it held the lock without a gap; instances that
// lost the key get it back then.
//
// An error that matches [ErrLost] is final: the window is over, or a majority
// said that the lock is not ours. Any other leaves the window as it is, and
// Extend may be tried again; but a shorter ttl that was asked for in vain
// shortens the window all the same, as instances may have obeyed it. One that a proxy
// repeats in silence would cut a later, longer extend short on its instance. Extend
// returns when ctx ends, with an error that matches that of ctx. Where too few
// instances answer the error matches [ErrNoQuorum]. A ttl below 10 ms or above 365
// days is refused, before any I/O.
func (k *Lock) Extend(ctx context.Context, ttl time.Duration) error {
	if k == nil {
		return errNilLock
	}
	if ctx == nil {
		return errNilContext
	}
	l := k.locker
	if err := l.checkTTL(ttl); err != nil {
		return err
	}
	l.asksFor(ttl)
	if err := ctx.Err(); err != nil {
		return &endedError{op: "extend", resource: k.resource, ctx: ctx}
	}

	if err := l.enter(); err != nil {
		return k.afterClose()
	}
	defer l.exit()
	x, err := k.startExtend(ctx, ttl)
	if err != nil {
		return err
	}
	defer x.round.leave()
	defer k.reschedule()
	if err := x.round.wait(ctx, min(l.voteLimit(ttl), k.Remaining()), settled); errors.Is(err, ErrClosed) {
		return k.afterClose()
	}
	err = k.concludeExtend(ctx, x)
	k.observeExtend(x, false, err)
	return err
}

// reschedule tells the keeper that the window has changed, and the ttl with it.
func (k *Lock) reschedule() {
	k.mu.Lock()
	defer k.mu.Unlock()
	if k.keeping != nil {
		k.locker.keeper.add(k.keeping, k.ttl)
	}
}

// An extension is an extend that was sent.
type extension struct {
	round     *round
	ttl       time.Duration
	before    window // that it found
	asked     window // that it is to open
	shortened int    // extends that were to bring the expiry nearer, until then
}

// concludeExtend takes the votes on an extend.
func (k *Lock) concludeExtend(ctx context.Context, x extension) error {
	r := x.round
	r.mu.Lock()
	t := r.tally
	r.healing = t.outcome() == won
	absent, reason := r.absentLocked(), r.lostReasonLocked()
	r.mu.Unlock()

	switch {
	case t.outcome() == won:
		if err := k.confirm(x.asked, x.shortened); err != nil {
			return err
		}
		for _, in := range absent {
			k.heal(r, in)
		}
		return nil
	case t.gone():
		return k.lose(reason, r.quorumError(ErrLost))
	}
	// Released in the meantime, or the window is over?
	switch err := k.whyEnded(r.quorumError(ErrNoQuorum)); {
	case err == nil:
		return r.reason(ctx, ErrNoQuorum)
	case ctx.Err() == nil:
		return err
	default:
		return &endedError{op: "extend", resource: k.resource, ctx: ctx, last: err}
	}
}

// startExtend sends an extend.
func (k *Lock) startExtend(ctx context.Context, ttl time.Duration) (extension, error) {
	l := k.locker
	k.mu.Lock()
	defer k.mu.Unlock()
	now := l.now()
	if err := k.endedLocked(now); err != nil {
		return extension{}, err
	}
	before := k.window
	asked := k.clip(window{now, validity(ttl, l.driftFactor, l.driftBase)})
	// From here on, instances may expire the key at the end of this window: a
	// shorter one counts at once.
	shorter := asked.endsBefore(k.window)
	if shorter {
		if !k.setWindowLocked(asked) {
			return extension{}, k.loseLocked(LostExpired, nil, now)
		}
		k.shortened++
	}
	k.lease.Store(max(k.lease.Load(), int64(ttl)))
	if k.sightings == nil {
		k.sightings = k.firstSightingsLocked()
	}

	k.ttl = ttl
	r := l.newRound(ctx, opExtend, k)
	r.start, r.shorter = now, shorter
	r.ttl, r.keep, r.token = serverTTL(ttl), l.keep(ttl), k.token
	// Under the lock, so that nothing of this owner is queued behind its release.
	r.send(now)
	return extension{r, ttl, before, asked, k.shortened}, nil
}

// firstSightingsLocked returns what the acquire tells of when the instances set the
// expiry.
func (k *Lock) firstSightingsLocked() []sighting {
	s := make([]sighting, len(k.locker.instances))
	for i := range s {
		if k.granted&(1<<i) != 0 {
			s[i] = sighting{from: k.asked, width: elapsed(k.asked, k.won), ttl: milliseconds(serverTTL(k.ttl))}
		}
	}
	return s
}

// confirm takes the window of an extend that a majority confirmed.
func (k *Lock) confirm(asked window, shortened int) error {
	k.mu.Lock()
	defer k.mu.Unlock()
	now := k.locker.now()
	if err := k.endedLocked(now); err != nil {
		return err
	}
	// One that was sent later may have brought the expiry nearer since.
	if shortened < k.shortened || asked.length <= k.window.remaining(asked.start) {
		return nil
	}
	if !k.setWindowLocked(asked) {
		return k.loseLocked(LostExpired, nil, now)
	}
	return nil
}

// heal gives the lock back to an instance that lost its key, in a round whose
// extend a majority confirmed. The instance refuses if somebody else was granted
// the resource there.
func (k *Lock) heal(extend *round, in *instance) {
	k.mu.Lock()
	defer k.mu.Unlock()
	now := k.locker.now()
	if k.endedLocked(now) != nil {
		return
	}
	r := k.locker.newRound(extend.ctx, opHeal, k)
	r.start = now
	r.ttl, r.keep, r.token = extend.ttl, extend.keep, extend.token
	r.refs.Add(1)
	r.sendTo(in, now)
	r.leave()
}

// Release gives the lock up, on every instance, and returns as soon as a majority
// has confirmed it; the rest is cleaned up in the background. It ignores the end
// of ctx, and takes no longer than the instance time-out.
//
// A holder that was already too late gets an error that matches [ErrLost], with
// the reason; what a newer owner holds is never touched. After a Release that
// worked, Release is nil again, so that it can be deferred. A Release that too
// few instances confirmed matches [ErrNoQuorum] and can be tried again.
func (k *Lock) Release(ctx context.Context) error {
	if k == nil {
		return errNilLock
	}
	if ctx == nil {
		return errNilContext
	}
	l := k.locker
	if err := l.enter(); err != nil {
		return k.afterClose().unlessReleased()
	}
	defer l.exit()
	k.releasing.Lock()
	defer k.releasing.Unlock()
	r, first, err := k.startRelease(ctx)
	if r == nil {
		k.observeRelease(ctx, nil, err)
		return err
	}
	defer r.leave()
	_ = r.wait(context.Background(), l.voteLimit(k.longest()), freed)
	if r.tell && r.next == nil {
		l.waitlists.released(k, r.othersWait(), elapsed(r.start, l.now()))
	}
	// Free it is, but a few more answers may tell that it had been lost; and a renewal
	// that has left already is to arrive before this returns.
	if !r.concluded() || k.onWay.Load() != 0 {
		_, _ = r.await(context.Background(), lingerTime, func(t tally) bool { return confirmed(t) && k.onWay.Load() == 0 })
	}
	err = k.finishRelease(r, first)
	k.observeRelease(ctx, r, err)
	return err
}

// startRelease sends a release, and reports whether it is the first. It returns
// no round if the lock has ended before, and how.
func (k *Lock) startRelease(ctx context.Context) (r *round, first bool, err error) {
	k.mu.Lock()
	defer k.mu.Unlock()
	now := k.locker.now()
	k.letGoLocked(now)
	if k.reason != "" {
		return nil, false, k.lostLocked().unlessReleased()
	}
	first = !k.released
	if first {
		k.late = k.window.remaining(now) <= 0
		reason := LostReleased
		switch {
		case k.late && k.heldTooLong(now):
			reason = LostMaxHold
		case k.late:
			reason = LostExpired
		}
		k.giveUpLocked(now, reason, nil)
	}
	if first && !k.late {
		r = k.handOver(ctx, now)
	}
	if r == nil {
		r = k.sendRelease(ctx, now, true, true)
		k.locker.waitlists.freed(k)
	}
	return r, first, nil
}

// handOver sends a release to every instance, and with it an acquire for the first
// who waits in this process; nil if there is nobody to hand over to.
func (k *Lock) handOver(ctx context.Context, now time.Time) *round {
	l := k.locker
	w := l.waitlists.next(k, now)
	if w == nil {
		return nil
	}
	r := l.newRound(ctx, opRelease, k)
	r.start = now
	turn := l.begin(w.ctx, w.q)
	r.tell, r.next = true, turn.lock
	r.sendWith(turn, now)
	w.turn <- turn
	return r
}

// finishRelease counts the votes on a release.
func (k *Lock) finishRelease(r *round, first bool) error {
	r.mu.Lock()
	t, reason := r.tally, r.lostReasonLocked()
	r.mu.Unlock()
	k.mu.Lock()
	defer k.mu.Unlock()
	switch {
	case k.late && k.heldTooLong(r.start):
		k.endLocked(LostMaxHold, nil)
	case k.late, first && t.gone():
		k.endLocked(reason, nil)
	case t.granted+t.refused >= t.quorum():
		// A second Release finds nothing where the first one deleted.
		k.endLocked(LostReleased, nil)
		return nil
	default:
		return r.quorumError(ErrNoQuorum)
	}
	return k.lostLocked()
}

// sendRelease queues a release at every instance, which tells who waits elsewhere
// or does not.
func (k *Lock) sendRelease(ctx context.Context, now time.Time, tell, attended bool) *round {
	r := k.locker.newRound(ctx, opRelease, k)
	r.start, r.tell, r.attended = now, tell, attended
	r.send(now)
	return r
}

// whyEnded returns how the lock ended, if it did; if its window is over, that is for
// want of the votes of an extend.
func (k *Lock) whyEnded(votes *QuorumError) error {
	k.mu.Lock()
	defer k.mu.Unlock()
	now := k.locker.now()
	if k.reason == "" && !k.released && k.window.remaining(now) <= 0 && !k.heldTooLong(now) && !k.window.stepped(now) {
		return k.loseLocked(LostNoQuorum, votes, now)
	}
	return k.endedLocked(now)
}

// endedLocked returns why the lock can't be extended at now; nil if it can.
func (k *Lock) endedLocked(now time.Time) error {
	switch {
	case k.reason != "":
		return k.lostLocked()
	case k.released:
		return &LostError{Resource: k.resource, Reason: LostReleased}
	case k.window.remaining(now) > 0:
		return nil
	case k.heldTooLong(now):
		return k.loseLocked(LostMaxHold, nil, now)
	case k.window.stepped(now):
		return k.loseLocked(LostExpired, errStepped, now)
	}
	return k.loseLocked(LostExpired, nil, now)
}

// errStepped is the cause of an end that only the wall clock saw.
var errStepped = errors.New("the clock was set forward, or the machine slept")

// lose ends the lock, and frees what is left of it on the instances.
func (k *Lock) lose(reason LostReason, cause error) error {
	k.mu.Lock()
	defer k.mu.Unlock()
	return k.loseLocked(reason, cause, k.locker.now())
}

func (k *Lock) loseLocked(reason LostReason, cause error, now time.Time) error {
	if k.reason == "" && !k.released {
		k.giveUpLocked(now, reason, cause)
		k.sendRelease(context.Background(), now, true, false).leave()
		k.locker.waitlists.freed(k)
	}
	k.endLocked(reason, cause)
	return k.lostLocked()
}

func (k *Lock) endedBy() LostReason {
	k.mu.Lock()
	defer k.mu.Unlock()
	return k.reason
}

// endLocked makes how the lock ended final.
func (k *Lock) endLocked(reason LostReason, cause error) {
	if k.reason == "" {
		k.reason, k.cause = reason, cause
		k.observeLossLocked(reason, cause)
	}
}

// lostLocked returns how the lock ended, as an error.
func (k *Lock) lostLocked() *LostError {
	return &LostError{Resource: k.resource, Reason: k.reason, cause: k.cause}
}

// giveUpLocked ends the window at now, and says why to whom it may concern. From
// here on the workers send nothing of this owner but releases.
func (k *Lock) giveUpLocked(now time.Time, reason LostReason, cause error) {
	k.released = true
	k.phase.Store(over)
	if k.window.remaining(now) > signalEarly { // else it is as good as over: its loss is not told after its end
		k.window.length = elapsed(k.window.start, now)
		if k.history != nil {
			k.history.early = true
		}
	}
	k.locker.forget(k)
	k.signalLocked(reason, cause)
}

// setWindowLocked opens a new window; it reports whether the keys are still there
// for it.
func (k *Lock) setWindowLocked(w window) bool {
	until := k.until.Load()
	if until == claimed || !k.until.CompareAndSwap(until, int64(w.start.Sub(k.locker.born)+w.length)) {
		return false
	}
	k.window = w
	return true
}

// clip ends w where the lock has been held for as long as WithMaxHold allows.
func (k *Lock) clip(w window) window {
	if k.maxHold > 0 {
		w.length = min(w.length, k.maxHold-elapsed(k.asked, w.start))
	}
	return w
}

func (k *Lock) heldTooLong(now time.Time) bool {
	return k.maxHold > 0 && elapsed(k.asked, now) >= k.maxHold
}

// wanted reports whether the keys of the lock have a use at now.
func (k *Lock) wanted(now time.Time) bool {
	switch k.phase.Load() {
	case asking:
		return true
	case held:
		return int64(now.Sub(k.locker.born)) < k.until.Load()
	}
	return false
}

// leaseLeft returns how long the keys of the lock have a use for its holder.
func (k *Lock) leaseLeft(now time.Time) time.Duration {
	until := k.until.Load()
	if k.phase.Load() != held || until == claimed {
		return 0
	}
	return time.Duration(until) - now.Sub(k.locker.born)
}

// claim reports whether the keys of the lock have no use any more, and sees to it
// that they never have again: an extend that was confirmed before the end, and is
// about to say so, finds the lock lost.
func (k *Lock) claim(now time.Time) bool {
	switch k.phase.Load() {
	case asking:
		return false
	case held:
		until := k.until.Load()
		return until <= int64(now.Sub(k.locker.born)) && (until == claimed || k.until.CompareAndSwap(until, claimed))
	}
	return true
}

// claimed is the end of the window of a lock whose keys were claimed.
const claimed = math.MinInt64

// longest returns the longest ttl that the lock was asked for.
func (k *Lock) longest() time.Duration { return time.Duration(k.lease.Load()) }

// touched notes that instance i is sent a grant, and untouched that it has not
// got it; mayBeOn reports whether it may have.
func (k *Lock) touched(i int)      { k.onIt.Or(1 << i) }
func (k *Lock) untouched(i int)    { k.onIt.And(^uint64(1 << i)) }
func (k *Lock) mayBeOn(i int) bool { return k.onIt.Load()&(1<<i) != 0 }

// doubt notes that an extend to a shorter ttl may still reach instance i, after a
// later one, and undo that: i confirms no extend of this lock any more. unsureOf
// reports whether it is so.
func (k *Lock) doubt(i int)         { k.unsure.Or(1 << i) }
func (k *Lock) unsureOf(i int) bool { return k.unsure.Load()&(1<<i) != 0 }

// leaves notes that an extend or a heal is on its way to instance i, and reports whether
// none was before; arrives notes that none is any more.
func (k *Lock) leaves(i int) (first bool) { return k.onWay.Or(1<<i)&(1<<i) == 0 }
func (k *Lock) arrives(i int)             { k.onWay.And(^uint64(1 << i)) }

func (k *Lock) isOnWay(i int) bool { return k.onWay.Load()&(1<<i) != 0 }

// list notes that the lock is on the clean-up list of instance i; listed reports
// whether it is.
func (k *Lock) list(i int)        { k.onList.Or(1 << i) }
func (k *Lock) unlist(i int)      { k.onList.And(^uint64(1 << i)) }
func (k *Lock) listed(i int) bool { return k.onList.Load()&(1<<i) != 0 }

var (
	errNilLocker  = errors.New("redlock: the locker is nil")
	errNilLock    = errors.New("redlock: the lock is nil")
	errNilContext = errors.New("redlock: the context is nil")
	errNilFunc    = errors.New("redlock: the function is nil")
)

// abandon gives up a lock that its round r did not make the caller's, and releases
// it everywhere, in the background. Those that a majority may have refused because of
// it are told.
func (k *Lock) abandon(ctx context.Context, r *round) {
	r.mu.Lock()
	tell := !r.tally.gone()
	r.mu.Unlock()
	k.mu.Lock()
	defer k.mu.Unlock()
	k.phase.Store(over)
	k.sendRelease(ctx, k.locker.now(), tell, false).leave()
}

// shut gives the lock up for a Locker that closes, and returns the release that
// it sent; nil if somebody else gave it up before.
func (k *Lock) shut() *round {
	k.mu.Lock()
	defer k.mu.Unlock()
	if k.reason != "" || k.released {
		return nil
	}
	now := k.locker.now()
	k.endLocked(LostClosed, ErrClosed)
	k.giveUpLocked(now, LostClosed, ErrClosed)
	return k.sendRelease(context.Background(), now, true, false)
}

// afterClose returns what a Release or an Extend gets after Close.
func (k *Lock) afterClose() *LostError {
	k.mu.Lock()
	defer k.mu.Unlock()
	if k.reason == "" {
		return &LostError{Resource: k.resource, Reason: LostClosed, cause: ErrClosed}
	}
	return k.lostLocked()
}
