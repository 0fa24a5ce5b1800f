package redlock

import (
	"context"
	"errors"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/hashicorp/go-multierror"
)

// A round is one question to all instances, and their votes. Its caller waits
// until its goal is reached and goes; answers that come later are still counted,
// by the workers that bring them.
//
// Rounds are pooled, with a count of references: the caller's, and one of each
// instance that was asked. A batch that is out points into its rounds, so a
// round is not used again before every batch with it has come back, however long
// a client takes for that.
type round struct {
	locker  *Locker
	op      op
	lock    *Lock
	start   time.Time // before the first byte was sent
	ttl     int64     // of the lock key, in ms
	keep    int64     // of the fence key, in ms
	shorter bool      // of an extend: it brings the expiry nearer
	tell    bool      // of a release: it wakes who waits elsewhere
	hedge   int       // and the instance that wakes a second one, too
	since   int64     // of an acquire or a look: since when its caller waits, in µs of the wall clock; 0 if it does not
	next    *Lock     // of a release: who is handed the resource; while that one wants it, nobody is told
	token   uint64    // the seed of an acquire, else the fencing token
	ctx     context.Context
	refs    atomic.Int32

	mu       sync.Mutex
	tally    tally
	votes    []vote
	fences   []uint64
	leases   []int64
	errs     []error
	took     []time.Duration // until each answer; nil where nobody observes
	goal     func(tally) bool
	waiting  bool     // the caller waits, and has not been woken
	kept     *keeping // whose renewal it is: the keeper waits, in place of a caller
	healing  bool     // a majority confirmed the extend: an instance that lost the key gets it back
	gaveUp   bool     // some did not answer in time
	issued   uint64   // the fencing token that it decided
	cleaning bool     // a release from the clean-up list, which looks after itself
	attended bool     // its caller waits for it as soon as it is sent
	inline   bool     // and is to read the answer itself

	wake  chan struct{} // of one place: wakes the caller
	timer *time.Timer
}

// newRound returns a round with one reference, the caller's.
func (l *Locker) newRound(ctx context.Context, op op, lock *Lock) *round {
	r, _ := l.rounds.Get().(*round)
	if r == nil {
		n := len(l.instances)
		r = &round{
			locker: l,
			votes:  make([]vote, n),
			fences: make([]uint64, n),
			leases: make([]int64, n),
			errs:   make([]error, n),
			wake:   make(chan struct{}, 1),
			timer:  time.NewTimer(never),
		}
		r.timer.Stop()
		if l.dispatcher != nil {
			r.took = make([]time.Duration, n)
		}
	}
	r.op, r.lock, r.ctx, r.shorter, r.tell, r.since, r.next = op, lock, ctx, false, false, 0, nil
	r.tally = tally{n: len(l.instances)}
	clear(r.votes)
	clear(r.fences)
	clear(r.leases)
	clear(r.errs)
	clear(r.took)
	r.waiting, r.healing, r.cleaning, r.gaveUp, r.issued = false, false, false, false, lock.token
	r.attended, r.inline = false, false
	r.ttl, r.keep, r.token = 0, 0, 0
	if op == opRelease {
		r.hedge = int(l.jitter(time.Duration(len(l.instances))))
	}
	r.refs.Store(1)
	return r
}

// leave gives up one reference. The last one out reports the round and puts it
// back.
func (r *round) leave() {
	if r.refs.Add(-1) > 0 {
		return
	}
	r.locker.observeRound(r)
	r.lock, r.next, r.ctx, r.goal, r.kept = nil, nil, nil, nil, nil
	r.locker.rounds.Put(r)
}

// send queues r at every instance whose vote is pending. It never blocks: an
// instance that can't take it has failed.
func (r *round) send(now time.Time) {
	r.refs.Add(int32(r.tally.pending())) //nolint:gosec // at most 64
	for i, in := range r.locker.instances {
		if r.votes[i] == pending {
			r.sendTo(in, now)
		}
	}
}

// sendWith queues r, a release, and next, an acquire, at every instance, so that
// both are in one script.
func (r *round) sendWith(next *round, now time.Time) {
	n := int32(len(r.votes)) //nolint:gosec // at most 64
	r.refs.Add(n)
	next.refs.Add(n)
	for _, in := range r.locker.instances {
		err, errNext := in.enqueueBoth(r, next, now)
		r.sent(in, err, now)
		next.sent(in, errNext, now)
	}
}

func (r *round) sendTo(in *instance, now time.Time) {
	r.sent(in, in.enqueue(r, now), now)
}

// sent takes what came of queueing r.
func (r *round) sent(in *instance, err error, now time.Time) {
	if err != nil {
		in.undelivered(r, now)
		r.answer(in, answer{vote: failed, err: err})
		r.leave()
	}
}

// answer counts the first answer of an instance. Later ones, and those after
// the caller gave the instance up, change nothing.
func (r *round) answer(in *instance, a answer) {
	r.mu.Lock()
	i := in.index
	if r.votes[i] != pending {
		r.mu.Unlock()
		return
	}
	if a.vote == granted && r.op == opExtend && r.lock.unsureOf(i) {
		a = answer{vote: failed, err: errUnsure}
	}
	r.votes[i], r.fences[i], r.leases[i], r.errs[i] = a.vote, a.fence, a.lease, a.err
	r.tally.add(a.vote)
	r.timeLocked(i)
	var decided *keeping
	if r.waiting && r.goal(r.tally) {
		r.waiting = false
		if decided = r.kept; decided == nil {
			r.wake <- struct{}{}
		}
	}
	heal := r.healing && errors.Is(a.err, errAbsent)
	r.mu.Unlock()
	if heal {
		r.lock.heal(r, in)
	}
	if decided != nil {
		r.locker.keeper.hurry(decided)
	}
}

// skip counts an instance that was not asked because the lock is given up or has
// expired. That of an acquire for which nobody waits any more stays pending.
func (r *round) skip(in *instance) {
	r.mu.Lock()
	waiting := r.waiting
	r.mu.Unlock()
	if waiting || r.op != opAcquire {
		r.answer(in, answer{vote: failed, err: errGivenUp})
	}
}

func (r *round) concluded() bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	return confirmed(r.tally)
}

func (r *round) won() bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.tally.outcome() == won
}

// decidedOn notes the fencing token for the observer.
func (r *round) decidedOn(token uint64) {
	r.mu.Lock()
	r.issued = token
	r.mu.Unlock()
}

// wait returns when goal is reached, ctx ends, or limit is over since r.start:
// then the instances that have not answered have failed. It returns the error
// of a ctx that ended or of a Locker that closed, and nil otherwise.
func (r *round) wait(ctx context.Context, limit time.Duration, goal func(tally) bool) error {
	reached, err := r.await(ctx, limit-elapsed(r.start, r.locker.now()), goal)
	if !reached && err == nil {
		r.giveUp(&timeoutError{limit})
	}
	return err
}

// await returns whether goal is reached within d, and the error of a ctx that
// ended or of a Locker that closed before.
func (r *round) await(ctx context.Context, d time.Duration, goal func(tally) bool) (reached bool, err error) {
	if r.inline {
		r.inline = false
		began := time.Now()
		r.locker.instances[0].attend()
		d -= time.Since(began)
	}
	r.mu.Lock()
	r.goal = goal
	r.waiting = !goal(r.tally)
	waiting := r.waiting
	r.mu.Unlock()
	if !waiting {
		return true, nil
	}

	closing := r.locker.closing.Done()
	if r.op == opRelease {
		closing = nil // Close waits for it
	}
	r.timer.Reset(d)
	select {
	case <-r.wake:
		reached = true
	case <-r.timer.C:
	case <-ctx.Done():
		err = ctx.Err()
	case <-closing:
		err = ErrClosed
	}
	r.timer.Stop()
	r.locker.resume(r.ctx)
	if reached {
		return true, nil
	}

	r.mu.Lock()
	defer r.mu.Unlock()
	if !r.waiting {
		<-r.wake // reached in the meantime
		return true, nil
	}
	r.waiting = false
	return false, err
}

// notify has the keeper look at g when goal is reached.
func (r *round) notify(goal func(tally) bool, g *keeping) {
	r.mu.Lock()
	r.goal, r.kept = goal, g
	r.waiting = g != nil && !goal(r.tally)
	reached := g != nil && !r.waiting
	r.mu.Unlock()
	if reached {
		r.locker.keeper.hurry(g)
	}
}

// reached reports whether the goal of notify is.
func (r *round) reached() bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	return !r.waiting
}

// lingerTime is how long a round that was lost at once, because instances are known
// to be down, waits for the answers of the others: its error is to tell how they
// stand.
const lingerTime = 10 * time.Millisecond

// linger waits a moment for the answers that are still open, if too few
// instances answered.
func (r *round) linger(ctx context.Context) {
	r.mu.Lock()
	short := r.tally.unreachable() && r.tally.pending() > 0
	r.mu.Unlock()
	if short && ctx.Err() == nil {
		_, _ = r.await(ctx, lingerTime, func(t tally) bool { return t.pending() == 0 })
	}
}

// giveUp makes every pending vote a failed one.
func (r *round) giveUp(cause error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for i, v := range r.votes {
		if v == pending {
			r.votes[i], r.errs[i], r.gaveUp = failed, cause, true
			r.tally.add(failed)
			r.timeLocked(i)
		}
	}
}

// timeLocked notes for the observer how long the answer of instance i took.
func (r *round) timeLocked(i int) {
	if r.took != nil {
		r.took[i] = r.locker.now().Sub(r.start)
	}
}

var (
	errPending = errors.New("no answer yet")
	errDecided = errors.New("not waited for: it was decided")
	errGivenUp = errors.New("not asked: the lock was given up")
	errUnsure  = errors.New("an extend to a shorter ttl may still reach it")
)

// reason returns why the round was not won, as an error for its caller.
func (r *round) reason(ctx context.Context, sentinel error) error {
	if sentinel == nil {
		r.mu.Lock()
		sentinel = ErrNoQuorum
		if r.op != opExtend && r.tally.taken() {
			sentinel = ErrTaken
		}
		r.mu.Unlock()
	}
	err := r.quorumError(sentinel)
	if ctx.Err() == nil {
		return err
	}
	return &endedError{op: err.Op, resource: err.Resource, ctx: ctx, last: err}
}

// quorumError tells how the vote stands.
func (r *round) quorumError(sentinel error) *QuorumError {
	r.mu.Lock()
	defer r.mu.Unlock()
	op := r.op
	if op == opRaise {
		op = opAcquire // of which it is a part
	}
	e := &QuorumError{
		Op: op.String(), Resource: r.lock.resource, Instances: r.tally.n, Needed: r.tally.quorum(),
		Granted: r.tally.granted, Refused: r.tally.refused, reason: sentinel, held: r.oneHolderLocked(), vacant: len(r.absentLocked()) >= r.tally.quorum(),
	}
	var errs []error
	for i, v := range r.votes {
		cause := r.errs[i]
		switch v {
		case granted:
			continue
		case pending:
			if cause = errPending; r.tally.outcome() != undecided {
				cause = errDecided
			}
		case refused:
			if r.leases[i] > 0 {
				cause = newLeaseError(r.leases[i])
			}
		}
		errs = append(errs, &InstanceError{Instance: r.locker.instances[i].name, Op: r.op.String(), Err: cause})
	}
	if errs != nil {
		e.Errs = &multierror.Error{Errors: errs, ErrorFormat: oneLine}
	}
	return e
}

// oneHolderLocked reports whether a quorum refused for one grant of another's: their
// fences are the same, as a grant leaves them.
func (r *round) oneHolderLocked() bool {
	for i, v := range r.votes {
		same := 0
		for j, f := range r.fences {
			if v == refused && r.votes[j] == refused && f == r.fences[i] && f > 0 {
				same++
			}
		}
		if same >= r.tally.quorum() {
			return true
		}
	}
	return false
}

// lostReasonLocked tells how a lock that was refused was lost.
func (r *round) lostReasonLocked() LostReason {
	if slices.Contains(r.errs, errForeign) {
		return LostTakenOver
	}
	return LostExpired
}

// foundFree reports whether r is a look, to which a majority said that nobody has the
// lock.
func (r *round) foundFree() bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.op == opLook && len(r.absentLocked()) >= r.tally.quorum()
}

// absentLocked returns the instances that said that the key is gone.
func (r *round) absentLocked() []*instance {
	var absent []*instance
	for i, err := range r.errs {
		if errors.Is(err, errAbsent) {
			absent = append(absent, r.locker.instances[i])
		}
	}
	return absent
}
