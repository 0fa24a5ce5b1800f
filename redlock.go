package redlock

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"
)

// maxResource bounds the length of a resource in bytes.
const maxResource = 64 << 10

// A Locker locks resources on N independent instances. It is safe for concurrent
// use; one for each set of instances serves a whole program.
type Locker struct {
	config
	instances  []*instance
	owned      bool      // Open built the clients
	born       time.Time // the origin of Lock.until
	seeds      seeds
	tokens     *sourceGuard // nil: the quorum issues the tokens, or nobody does
	keeper     keeper
	waitlists  waitlists
	name       string      // of this Locker among those that wait
	mark       string      // the key that says that somebody waits
	dispatcher *dispatcher // nil: nobody observes
	rounds     sync.Pool   // of *round
	waiting    atomic.Int64

	ctx      context.Context //nolint:containedctx // of the calls to the instances
	cancel   context.CancelFunc
	closing  context.Context //nolint:containedctx // ends, with ErrClosed, when Close begins
	shut     context.CancelCauseFunc
	closed   chan struct{} // closed when Close returns
	closeErr error

	longestTTL atomic.Int64 // that was asked for

	inside   atomic.Int64 // calls in progress; more than shutting once Close has begun
	leftOnce sync.Once

	mu     sync.Mutex
	runIDs []string // of the instances, as far as they tell
	isShut bool
	left   chan struct{} // closed when Close has begun and no call is left
	locks  Lock          // the head of the ring of held locks
	sweep  *Lock         // where register looks next for forgotten ones
}

// A request is what a caller wants to lock, and how.
type request struct {
	resource    string
	key, fence  string
	ttl         time.Duration
	maxWait     time.Duration // never: no bound
	minValidity time.Duration
	maxHold     time.Duration // 0: no limit
	start       time.Time
	waiting     time.Time // when it began to wait for its turn; zero before
	account     *account  // for the observer; nil without
}

// TryAcquire asks for the lock of resource in one round: it wins, or says why
// not. The lock holds for ttl, less the drift, from before the first byte was
// sent, unless it is extended.
//
// The errors: [ErrTaken], somebody else holds it; [ErrNoQuorum], too few instances
// answered within the instance time-out; [ErrExpired], they answered too late. All
// are a *[QuorumError] that names the cause at each instance. When ctx ends,
// TryAcquire returns at once, with an error that matches ctx's too. A round that
// is not won is released on all instances, in the background.
//
// A ttl below 10 ms or above 365 days, a resource that is empty, larger than 64 KiB
// or shaped like another key of this library (a fence key, or one that ends with
// "{}:waiting"), and a bad option are refused before any I/O.
func (l *Locker) TryAcquire(ctx context.Context, resource string, ttl time.Duration, opts ...AcquireOption) (*Lock, error) {
	q, err := l.newRequest(ctx, resource, ttl, opts)
	if err != nil {
		return nil, err
	}
	if err := l.enter(); err != nil {
		return nil, err
	}
	defer l.exit()
	a := l.attempt(ctx, q, explained)
	return l.acquired(ctx, q, a.lock, a.close(ctx))
}

// acquired tells the observer what came of a call, and returns that.
func (l *Locker) acquired(ctx context.Context, q *request, k *Lock, err error) (*Lock, error) {
	l.observeAcquire(ctx, q, k, err)
	return k, err
}

// Acquire asks for the lock of resource until it has it, ctx ends, or the time of
// [WithMaxWait] is over. Callers of one Locker are served in their order: only the
// first of them asks, and a [Lock.Release] hands the lock over to it. It asks again
// when a release in another process wakes it, when the leases in its way run out,
// and after a random time (see [WithRetryDelay]).
//
// When ctx ends the error matches that of ctx and the last real reason, at the
// end of WithMaxWait the last real reason alone. Otherwise as [Locker.TryAcquire].
func (l *Locker) Acquire(ctx context.Context, resource string, ttl time.Duration, opts ...AcquireOption) (*Lock, error) {
	q, err := l.newRequest(ctx, resource, ttl, opts)
	if err != nil {
		return nil, err
	}
	if err := l.enter(); err != nil {
		return nil, err
	}
	defer l.exit()
	if q.maxWait == 0 {
		a := l.attempt(ctx, q, explained)
		return l.acquired(ctx, q, a.lock, a.close(ctx))
	}
	var a attempt
	w := l.waitlists.join(ctx, q, false, nil)
	if w == nil {
		// Nobody waits here: ask.
		if a = l.attemptOf(ctx, q, false); a.lock != nil || a.final {
			return l.acquired(ctx, q, a.lock, a.close(ctx))
		}
		w = l.waitlists.join(ctx, q, true, a.why())
	}
	k, err := l.wait(w, a)
	return l.acquired(ctx, q, k, err)
}

// newRequest checks the arguments of an acquire, and completes them.
func (l *Locker) newRequest(ctx context.Context, resource string, ttl time.Duration, opts []AcquireOption) (*request, error) {
	if l == nil {
		return nil, errNilLocker
	}
	if ctx == nil {
		return nil, errNilContext
	}
	q := &request{resource: resource, key: l.prefix + resource, ttl: ttl, maxWait: never}
	for i, o := range opts {
		if o == nil {
			return nil, fmt.Errorf("redlock: acquire option %d is nil", i+1)
		}
		if err := o(q); err != nil {
			return nil, fmt.Errorf("redlock: %w", err)
		}
	}
	if err := l.checkTTL(ttl); err != nil {
		return nil, err
	}
	if full := validity(ttl, l.driftFactor, l.driftBase); q.minValidity >= full {
		return nil, fmt.Errorf("redlock: WithMinValidity: %v is not less than the %v that a ttl of %v leaves", q.minValidity, full, ttl)
	}
	if q.maxHold > 0 && q.minValidity > q.maxHold {
		return nil, fmt.Errorf("redlock: WithMinValidity: %v is more than the %v of WithMaxHold", q.minValidity, q.maxHold)
	}
	if err := l.checkResource(resource, q.key); err != nil {
		return nil, err
	}
	if l.fenced() {
		q.fence = fenceKey(l.prefix, resource)
	}
	if ctx.Err() != nil {
		return nil, &endedError{op: "acquire", resource: resource, ctx: ctx}
	}
	l.asksFor(ttl)
	q.start = l.now()
	return q, nil
}

func (l *Locker) checkTTL(ttl time.Duration) error {
	switch {
	case ttl < minTTL:
		return fmt.Errorf("redlock: a ttl of %v is below %v", ttl, minTTL)
	case ttl > maxTTL:
		return fmt.Errorf("redlock: a ttl of %v is above %v", ttl, maxTTL)
	case validity(ttl, l.driftFactor, l.driftBase) <= 0:
		return fmt.Errorf("redlock: the drift leaves nothing of a ttl of %v", ttl)
	}
	return nil
}

func (l *Locker) checkResource(resource, key string) error {
	switch {
	case resource == "":
		return errors.New("redlock: the resource is empty")
	case len(resource) > maxResource:
		return fmt.Errorf("redlock: the resource has %d bytes, more than 64 KiB", len(resource))
	case strings.HasSuffix(key, waitSuffix):
		return fmt.Errorf("redlock: the resource %s has the shape of a key of those that wait", quote(resource))
	case isFenceKey(key):
		return fmt.Errorf("redlock: the resource %s has the shape of a fence key", quote(resource))
	case l.fenced() && l.sharded() && !canShareSlot(key):
		return fmt.Errorf("redlock: the resource %s has a } but no hash tag: on a cluster, no fence key can share its slot", quote(resource))
	}
	return nil
}

// An attempt is one round for a lock and what came of it.
type attempt struct {
	lock  *Lock  // nil when it was not won
	round *round // the votes, until drop
	err   error  // why it was not won, where the votes alone don't tell
	final bool   // trying again is of no use

	lingered time.Duration // after it was lost; a part of the pause
}

// attempt asks for the lock once: all instances at once, under a new owner, until
// goal is reached. An owner is never used twice: a release of this round that
// comes late can't touch the next one.
func (l *Locker) attempt(ctx context.Context, q *request, goal func(tally) bool) attempt {
	r := l.begin(ctx, q)
	r.attended = true
	r.send(r.start)
	return l.finish(ctx, q, r, goal)
}

// attemptOf is the attempt of one that waits: where it is refused it queues up, to be
// told when the lock is free. It may only look, and not ask for it.
func (l *Locker) attemptOf(ctx context.Context, q *request, look bool) attempt {
	r := l.begin(ctx, q)
	r.since = q.start.UnixMicro()
	if look {
		r.op = opLook
	}
	r.attended = true
	r.send(r.start)
	return l.finish(ctx, q, r, decided)
}

// begin returns a round that asks for the lock, to be sent at once.
func (l *Locker) begin(ctx context.Context, q *request) *round {
	k := &Lock{locker: l, resource: q.resource, key: q.key, fence: q.fence, owner: rand.Text(), ttl: q.ttl, maxHold: q.maxHold}
	k.lease.Store(int64(q.ttl))
	now := l.now()
	k.asked = now
	if l.dispatcher != nil {
		k.history = &history{ctx: ctx}
	}
	k.window = k.clip(window{now, validity(q.ttl, l.driftFactor, l.driftBase)})

	r := l.newRound(ctx, opAcquire, k)
	r.start = now
	r.ttl, r.keep = serverTTL(q.ttl), l.keep(q.ttl)
	if l.fenced() {
		r.token = l.seeds.next(now)
	}
	return r
}

// finish takes the votes of a round that was sent.
func (l *Locker) finish(ctx context.Context, q *request, r *round, goal func(tally) bool) attempt {
	k := r.lock
	a := attempt{round: r}
	a.err = r.wait(ctx, q.limit(l, r.start), goal)
	q.note(r)
	if a.err == nil {
		a = l.decide(ctx, q, k, a)
	}
	if a.lock == nil {
		lost := l.now()
		a.round.linger(ctx)
		a.lingered = elapsed(lost, l.now())
		if a.round.op == opLook {
			k.phase.Store(over) // nothing was asked for
		} else {
			k.abandon(ctx, a.round)
		}
	}
	return a
}

// decide counts the votes of a round, and makes k the caller's if it is won in
// time: with a fencing token that a quorum holds, and with validity left.
func (l *Locker) decide(ctx context.Context, q *request, k *Lock, a attempt) attempt {
	r := a.round
	r.mu.Lock()
	t := r.tally
	token, count := top(r.votes, r.fences)
	highest := slices.Max(r.fences)
	var grants uint64
	for i, v := range r.votes {
		if v == granted {
			grants |= 1 << i
		}
	}
	r.mu.Unlock()
	if highest > r.token {
		l.seeds.learn(highest, r.start)
	}
	if t.outcome() != won {
		return a
	}
	if l.fenced() && count < t.quorum() {
		// The instances have counted to different numbers: bring them to the
		// largest, in a second round trip.
		raise := r.raise(token)
		a.round = raise
		a.err = raise.wait(ctx, q.limit(l, r.start)-elapsed(r.start, raise.start), explained)
		q.note(raise)
		r.leave()
		if !raise.won() {
			return a
		}
	}
	k.token = token
	a.round.decidedOn(token)
	if l.tokens != nil {
		if k.token, a.err, a.final = l.askSource(ctx, q, k); a.err != nil {
			return a
		}
	}
	now := l.now()
	if left := k.window.remaining(now); left <= 0 || left < q.minValidity {
		a.err = ErrExpired
		return a
	}
	k.won, k.granted = now, grants
	_ = k.setWindowLocked(k.window) // nobody else has k yet
	k.phase.Store(held)             // in this order: a held lock without a window is nobody's
	if a.err = l.register(k, now); a.err == nil {
		a.lock = k
	}
	return a
}

// raise returns a round that has asked the instances which may have granted less
// than token to raise their fence to it. Instances that hold token already have
// voted for it.
func (r *round) raise(token uint64) *round {
	l := r.locker
	raise := l.newRound(r.ctx, opRaise, r.lock)
	raise.start, raise.token = l.now(), token
	r.mu.Lock()
	for i, v := range r.votes {
		if v == pending || v == granted && r.fences[i] != token {
			continue
		}
		raise.votes[i], raise.fences[i], raise.leases[i], raise.errs[i] = v, r.fences[i], r.leases[i], r.errs[i]
		raise.tally.add(v)
	}
	r.mu.Unlock()
	raise.attended = true
	raise.send(raise.start)
	return raise
}

// askSource asks the external source for a token, within the validity window and
// the caller's patience.
func (l *Locker) askSource(ctx context.Context, q *request, k *Lock) (token uint64, err error, final bool) {
	now := l.now()
	window := k.window.remaining(now) - q.minValidity
	patience := q.patience(now)
	sourceCtx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	defer context.AfterFunc(l.closing, func() { cancel(ErrClosed) })()
	sourceCtx, stop := context.WithTimeoutCause(sourceCtx, min(window, patience), errLate)
	defer stop()

	token, err = l.tokens.token(sourceCtx, q.resource)
	switch cause := context.Cause(sourceCtx); {
	case err == nil:
		return token, nil, false
	case errors.Is(cause, ErrClosed):
		return 0, ErrClosed, true
	case ctx.Err() != nil, errors.Is(cause, errLate) && patience < window:
		err = errPending
	case errors.Is(cause, errLate):
		return 0, ErrExpired, false
	}
	return 0, fmt.Errorf("redlock: acquire %s: fencing source: %w", quote(q.resource), err), true
}

var errLate = errors.New("too late")

// limit returns how long a round that starts at now may take.
func (q *request) limit(l *Locker, now time.Time) time.Duration {
	if q.maxWait == 0 {
		return l.voteLimit(q.ttl)
	}
	return min(l.voteLimit(q.ttl), max(q.patience(now), leastPatience))
}

// leastPatience is what a round gets however short the caller's wait is: less
// would blame instances that nobody has waited for.
const leastPatience = 10 * time.Millisecond

// patience returns how long the caller still wants to wait at now.
func (q *request) patience(now time.Time) time.Duration {
	if q.maxWait == never {
		return never
	}
	return q.maxWait - elapsed(q.start, now)
}

// cutShort reports whether ctx or the caller's patience ended before all had
// answered: then the round before it tells the reason better.
func (a *attempt) cutShort(ctx context.Context, q *request) bool {
	if a.lock != nil || a.final {
		return false
	}
	a.round.mu.Lock()
	defer a.round.mu.Unlock()
	return ctx.Err() != nil && a.round.tally.pending() > 0 ||
		a.round.gaveUp && q.patience(a.round.locker.now()) <= 0
}

// why returns why it was not won, for those that wait behind it.
func (a *attempt) why() error {
	sentinel := a.err
	if !errors.Is(sentinel, ErrExpired) {
		sentinel = nil
	}
	return a.round.reason(context.Background(), sentinel)
}

// drop lets go of the votes.
func (a *attempt) drop() {
	if a.round != nil {
		a.round.leave()
	}
}

// close lets go of the votes and returns why the attempt was not won; nil if it
// was.
func (a *attempt) close(ctx context.Context) error {
	defer a.drop()
	switch {
	case a.lock != nil:
		return nil
	case errors.Is(a.err, ErrClosed), a.final && ctx.Err() == nil:
		return a.err
	case a.final:
		return &endedError{op: "acquire", resource: a.round.lock.resource, ctx: ctx, last: a.err}
	case errors.Is(a.err, ErrExpired):
		return a.round.reason(ctx, ErrExpired)
	}
	return a.round.reason(ctx, nil)
}
