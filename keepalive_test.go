package redlock_test

import (
	"context"
	"errors"
	"strconv"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"

	"github.com/quorumlock/redlock"
	"github.com/quorumlock/redlock/internal/redistest"
)

// brief is a ttl.
var brief = paced(300*time.Millisecond, time.Second)

// requireCause requires that ctx has ended because the lock was lost for reason.
func requireCause(t *testing.T, ctx context.Context, reason redlock.LostReason) {
	t.Helper()
	require.Error(t, ctx.Err())
	requireLost(t, context.Cause(ctx), reason)
}

func TestAKeptLockOutlivesItsTTL(t *testing.T) {
	t.Parallel()
	l, servers := open(t, 3)
	k, err := l.Acquire(t.Context(), "r", steady)
	require.NoError(t, err)
	ctx := k.KeepAlive(t.Context())
	select {
	case <-ctx.Done():
		require.NoError(t, context.Cause(ctx))
	case <-time.After(3 * steady): // the time is what is tried
	}
	require.Positive(t, k.Remaining())
	for _, s := range servers {
		require.Equal(t, k.Owner(), s.MustDo(t, "GET", "r"))
	}
	require.NoError(t, k.Release(t.Context()))
	<-ctx.Done()
	requireCause(t, ctx, redlock.LostReleased)
	require.NoError(t, k.Release(t.Context()))
}

func TestALockWhoseInstancesAreGoneEndsInTime(t *testing.T) {
	t.Parallel()
	strikes := map[string]func(*redistest.Server) error{
		"stopped": (*redistest.Server).Pause,
		"killed":  (*redistest.Server).Kill,
	}
	for name, strike := range strikes {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			l, servers := open(t, 3)
			c, stop := newControl()
			defer stop()
			k, err := l.TryAcquire(t.Context(), "r", 6*brief)
			require.NoError(t, err)
			ctx := k.KeepAlive(t.Context())
			for _, s := range servers[:2] {
				require.NoError(t, strike(s))
			}
			until := k.ValidUntil()
			<-ctx.Done()
			at := time.Now()
			stop()
			requireCause(t, ctx, redlock.LostNoQuorum)
			var votes *redlock.QuorumError
			require.True(t, errors.As(context.Cause(ctx), &votes), context.Cause(ctx))
			require.LessOrEqual(t, k.Remaining(), time.Duration(0))
			// A renewal may have been confirmed on the way. The tests of losses look closer.
			if end := k.ValidUntil(); end.After(until) {
				until = end
			}
			require.Greater(t, at, until.Add(-50*time.Millisecond))
			if _, slept := c.slept(until.Add(-ranLate), at); !slept {
				require.Less(t, at, until.Add(mostLate))
			}
			requireLost(t, k.Extend(t.Context(), brief), redlock.LostNoQuorum)
			requireLost(t, k.Release(t.Context()), redlock.LostNoQuorum)
			t.Log(context.Cause(ctx))
		})
	}
}

func TestMaxHoldEndsAKeptLock(t *testing.T) {
	t.Parallel()
	l, servers := open(t, 3)
	before := time.Now()
	k, err := l.TryAcquire(t.Context(), "r", brief, redlock.WithMaxHold(4*brief))
	require.NoError(t, err)
	begin := time.Now()
	ctx := k.KeepAlive(t.Context())
	<-ctx.Done()
	requireCause(t, ctx, redlock.LostMaxHold)
	require.Greater(t, time.Since(before), 4*brief-50*time.Millisecond)
	require.Less(t, time.Since(begin), 4*brief+fast) // in virtual time it is exact
	becomes(t, func() bool { return servers[0].MustDo(t, "EXISTS", "r") == int64(0) }, "it is released")
}

func TestKeepAliveOfALockThatIsNotHeldIsAContextThatHasEnded(t *testing.T) {
	t.Parallel()
	l, servers := open(t, 3)
	var none *redlock.Lock
	ctx := none.KeepAlive(t.Context())
	require.Error(t, ctx.Err())
	require.EqualError(t, context.Cause(ctx), "redlock: the lock is nil")

	k, err := l.Acquire(t.Context(), "r", ttl)
	require.NoError(t, err)
	ctx = k.KeepAlive(nil) //nolint:staticcheck // what is tried
	require.Error(t, ctx.Err())
	require.EqualError(t, context.Cause(ctx), "redlock: the context is nil")
	require.Positive(t, k.Remaining(), "that is no loss")
	require.NoError(t, k.Release(t.Context()))
	ctx = k.KeepAlive(t.Context())
	requireCause(t, ctx, redlock.LostReleased)

	k, err = l.Acquire(t.Context(), "r", ttl)
	require.NoError(t, err)
	occupy(t, servers, "r", "somebody else")
	requireLost(t, k.Extend(t.Context(), ttl), redlock.LostTakenOver)
	requireCause(t, k.KeepAlive(t.Context()), redlock.LostTakenOver)
	remove(t, servers, "r")

	k, err = l.Acquire(t.Context(), "r", 10*time.Millisecond)
	require.NoError(t, err)
	becomes(t, func() bool { return k.Remaining() <= 0 }, "it expires")
	requireCause(t, k.KeepAlive(t.Context()), redlock.LostExpired)

	k, err = l.Acquire(t.Context(), "r", ttl)
	require.NoError(t, err)
	require.NoError(t, l.Close())
	ctx = k.KeepAlive(t.Context())
	requireCause(t, ctx, redlock.LostClosed)
	require.ErrorIs(t, context.Cause(ctx), redlock.ErrClosed)
}

// With a ctx that has ended nothing is renewed, and the lock is still there to be
// released.
func TestKeepAliveWithAContextThatHasEndedKeepsNothingAlive(t *testing.T) {
	t.Parallel()
	extends := newEvents("extend")
	l, servers := open(t, 3, redlock.WithObserver(extends.observer()))
	k, err := l.Acquire(t.Context(), "r", brief)
	require.NoError(t, err)
	boom := errors.New("boom")
	ended, cancel := context.WithCancelCause(t.Context())
	cancel(boom)
	until := k.ValidUntil()
	ctx := k.KeepAlive(ended)
	require.Error(t, ctx.Err())
	require.Equal(t, boom, context.Cause(ctx))
	require.Positive(t, k.Remaining())
	becomes(t, func() bool { return k.Remaining() <= 0 }, "it expires")
	require.Equal(t, until, k.ValidUntil())
	requireLost(t, k.Release(t.Context()), redlock.LostExpired)
	require.Empty(t, extends.ch)
	requireNoKeys(t, servers)
}

// All contexts of a lock end with it, and the renewals go on until the last of those
// that KeepAlive was given has ended.
func TestALockIsKeptAliveForAsLongAsSomebodyWantsIt(t *testing.T) {
	t.Parallel()
	l, _ := open(t, 3)
	k, err := l.Acquire(t.Context(), "r", steady)
	require.NoError(t, err)
	first, cancelFirst := context.WithCancel(t.Context())
	second, cancelSecond := context.WithCancel(t.Context())
	defer cancelSecond()
	one, two, again := k.KeepAlive(first), k.KeepAlive(second), k.KeepAlive(second)
	until := k.ValidUntil()
	cancelFirst()
	<-one.Done()
	becomes(t, func() bool { return k.ValidUntil().After(until) }, "the second one still wants it")
	require.NoError(t, two.Err())
	require.NoError(t, again.Err())
	cancelSecond()
	<-two.Done()
	<-again.Done()
	becomes(t, func() bool { return k.Remaining() <= 0 }, "nobody wants it")

	// It can be taken up again, while the lock is held.
	k, err = l.Acquire(t.Context(), "r", steady)
	require.NoError(t, err)
	third, cancelThird := context.WithCancel(t.Context())
	k.KeepAlive(third)
	cancelThird()
	ctx := k.KeepAlive(t.Context())
	until = k.ValidUntil()
	becomes(t, func() bool { return k.ValidUntil().After(until) }, "it is renewed")
	require.NoError(t, k.Release(t.Context()))
	requireCause(t, ctx, redlock.LostReleased)
}

// A foreignContext is none of package context: it has a Done of its own, for which that
// package starts goroutines.
type foreignContext struct {
	context.Context
	done chan struct{}
	err  atomic.Pointer[error]
}

func (c *foreignContext) Done() <-chan struct{} { return c.done }

func (c *foreignContext) Err() error {
	if err := c.err.Load(); err != nil {
		return *err
	}
	return nil
}

func (c *foreignContext) Value(key any) any {
	if key == "whose" {
		return "mine"
	}
	return nil
}

func TestContextsOfAnyTypeAreKept(t *testing.T) {
	l, _ := open(t, 3)
	warm := goleak.IgnoreCurrent()
	k, err := l.Acquire(t.Context(), "r", steady)
	require.NoError(t, err)
	parent := &foreignContext{Context: context.Background(), done: make(chan struct{})}
	ctx := k.KeepAlive(parent)
	require.Equal(t, "mine", ctx.Value("whose"))
	boom := errors.New("boom")
	parent.err.Store(&boom)
	close(parent.done)
	<-ctx.Done()
	require.Equal(t, boom, ctx.Err())
	require.Positive(t, k.Remaining())
	becomes(t, func() bool { return k.Remaining() <= 0 }, "it is not renewed any more")

	// One that never ends leaves nothing behind when the lock does.
	parent = &foreignContext{Context: context.Background(), done: make(chan struct{})}
	k, err = l.Acquire(t.Context(), "r", steady)
	require.NoError(t, err)
	ctx = k.KeepAlive(parent)
	require.NoError(t, k.Release(t.Context()))
	requireCause(t, ctx, redlock.LostReleased)
	require.NoError(t, parent.Err())
	require.NoError(t, l.Close())
	require.NoError(t, goleak.Find(warm))
}

// A renewal belongs to the trace of who wanted the lock kept alive.
func TestTheObserverSeesRenewalsWithTheContextOfKeepAlive(t *testing.T) {
	t.Parallel()
	extends := newEvents("extend")
	l, servers := open(t, 3, redlock.WithObserver(extends.observer()))
	type whose struct{}
	k, err := l.Acquire(context.WithValue(t.Context(), whose{}, "acquire"), "r", steady)
	require.NoError(t, err)
	becomes(t, func() bool { return all(servers, "r", k.Owner()) }, "all have granted")
	k.KeepAlive(context.WithValue(t.Context(), whose{}, "keep-alive"))
	for range 3 {
		e := extends.next(t)
		require.Equal(t, "keep-alive", e.Context.Value(whose{}))
		require.Equal(t, "r", e.Resource)
		require.Equal(t, k.FencingToken(), e.Token)
		require.True(t, e.Won)
		require.Len(t, e.Votes, 3)
	}
	require.NoError(t, k.Release(t.Context()))
}

func TestALockIsKeptWhileAMinorityIsGone(t *testing.T) {
	t.Parallel()
	for name, strike := range map[string]func(*redistest.Server) error{
		"stopped": (*redistest.Server).Pause,
		"killed":  (*redistest.Server).Kill,
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			l, servers := open(t, 3)
			k, err := l.Acquire(t.Context(), "r", steady)
			require.NoError(t, err)
			becomes(t, func() bool { return all(servers, "r", k.Owner()) }, "all have granted")
			ctx := k.KeepAlive(t.Context())
			require.NoError(t, strike(servers[2]))
			select {
			case <-ctx.Done():
				require.NoError(t, context.Cause(ctx))
			case <-time.After(4 * steady): // the time is what is tried
			}
			require.Positive(t, k.Remaining())
			require.NoError(t, k.Release(t.Context()))
		})
	}
}

// Fault: giving up a lease of 10 s after one blip. What fails within the validity is
// tried again.
func TestALockSurvivesAMajorityThatIsAwayForHalfOfItsValidity(t *testing.T) {
	t.Parallel()
	for name, strike := range map[string]func(p *redistest.Proxy, on bool){
		"refuses": func(p *redistest.Proxy, on bool) {
			p.Refuse(on)
			if on {
				p.Break()
			}
		},
		"hangs": (*redistest.Proxy).HoldRequests,
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			g := newRig(t, 3)
			extends := newEvents("extend")
			l := g.open(redlock.WithObserver(extends.observer()))
			warm(t, l, g.servers)
			const ttl = 4 * time.Second
			k, err := l.Acquire(t.Context(), "r", ttl)
			require.NoError(t, err)
			becomes(t, func() bool { return all(g.servers, "r", k.Owner()) }, "all have granted")
			ctx := k.KeepAlive(t.Context())
			for len(extends.ch) > 0 {
				<-extends.ch
			}
			extends.next(t) // it was renewed just now
			for _, p := range g.proxies[:2] {
				strike(p, true)
			}
			until := k.ValidUntil()
			select {
			case <-ctx.Done():
				require.NoError(t, context.Cause(ctx))
			case <-time.After(ttl / 2): // the time is what is tried
			}
			require.Equal(t, until, k.ValidUntil(), "no renewal was confirmed")
			for _, p := range g.proxies[:2] {
				strike(p, false)
			}
			becomes(t, func() bool { return k.ValidUntil().After(until) || ctx.Err() != nil }, "it is renewed")
			require.NoError(t, context.Cause(ctx))
			require.NoError(t, k.Release(t.Context()))
		})
	}
}

func TestADefiniteLossEndsTheContextBeforeTheWindow(t *testing.T) {
	t.Parallel()
	l, servers := open(t, 3)
	k, err := l.Acquire(t.Context(), "r", 6*time.Second)
	require.NoError(t, err)
	becomes(t, func() bool { return all(servers, "r", k.Owner()) }, "all have granted")
	ctx, until := k.KeepAlive(t.Context()), k.ValidUntil()
	occupy(t, servers[:2], "r", "somebody else")
	becomes(t, func() bool { return ctx.Err() != nil }, "the lock is lost")
	require.Greater(t, time.Until(until), time.Second, "the next renewal says it")
	requireCause(t, ctx, redlock.LostTakenOver)
	require.LessOrEqual(t, k.Remaining(), time.Duration(0))
	becomes(t, func() bool { return all(servers[2:], "r", "") }, "the rest of it is freed")
	require.True(t, all(servers[:2], "r", "somebody else"))
}

// The least ttl there is: a renewal each 3.3 ms. A busy machine may lose such a lock at
// any time, and the loss is told like every other.
func TestALockOfTheLeastTTLIsKeptForAsLongAsTheMachineKeepsUp(t *testing.T) {
	const least = 10 * time.Millisecond
	l, _ := open(t, 3)
	begin, longest, losses := time.Now(), time.Duration(0), 0
	for time.Since(begin) < 3*time.Second {
		k, err := l.Acquire(t.Context(), "r", least)
		require.NoError(t, err)
		ctx, from := k.KeepAlive(t.Context()), time.Now()
		select {
		case <-ctx.Done():
			lost, ok := errors.AsType[*redlock.LostError](context.Cause(ctx))
			require.True(t, ok, context.Cause(ctx))
			require.Contains(t, []redlock.LostReason{redlock.LostExpired, redlock.LostNoQuorum}, lost.Reason)
			require.LessOrEqual(t, k.Remaining(), time.Duration(0))
			losses++
		case <-time.After(max(0, 3*time.Second-time.Since(begin))): // the time is what is tried
			_ = k.Release(t.Context())
		}
		longest = max(longest, time.Since(from))
	}
	t.Logf("kept for up to %v, lost %d times", longest, losses)
	require.Greater(t, longest, 10*least)
}

// keptLocks returns the contexts of n locks that are kept alive.
func keptLocks(t *testing.T, l *redlock.Locker, n int, ttl time.Duration) []context.Context {
	t.Helper()
	contexts := make([]context.Context, n)
	errs := make([]error, n)
	var wg sync.WaitGroup
	const callers = 50
	for c := range callers {
		wg.Go(func() {
			for i := c; i < n; i += callers {
				k, err := l.Acquire(t.Context(), "r"+strconv.Itoa(i), ttl)
				if errs[i] = err; err == nil {
					contexts[i] = k.KeepAlive(context.Background())
				}
			}
		})
	}
	wg.Wait()
	require.NoError(t, errors.Join(errs...))
	return contexts
}

func requireAllClosed(t *testing.T, contexts []context.Context) {
	t.Helper()
	for _, ctx := range contexts {
		requireCause(t, ctx, redlock.LostClosed)
		require.ErrorIs(t, context.Cause(ctx), redlock.ErrClosed)
	}
}

func TestCloseEndsAThousandKeptLocksWhileAMajorityHangs(t *testing.T) {
	servers := redistest.StartN(t, 3)
	before := goleak.IgnoreCurrent()
	l, err := redlock.Open(redistest.Addrs(servers), fresh(nil)...)
	require.NoError(t, err)
	contexts := keptLocks(t, l, 1000, time.Minute)
	for _, s := range servers[:2] {
		require.NoError(t, s.Pause())
	}
	begin := time.Now()
	err = l.Close()
	require.Less(t, time.Since(begin), 1500*time.Millisecond+fast)
	require.ErrorIs(t, err, redlock.ErrNoQuorum, "it says what may stay behind")
	requireAllClosed(t, contexts)
	require.NoError(t, goleak.Find(before))
}

func TestCloseWhileRenewalsAreOut(t *testing.T) {
	g := newRig(t, 3)
	l, err := redlock.Open(g.endpoints(), fresh(nil)...)
	require.NoError(t, err)
	contexts := keptLocks(t, l, 100, 3*time.Second)
	var out sync.WaitGroup
	out.Add(len(g.proxies))
	var once [3]sync.Once
	g.onRequest(func(i int, q request) {
		if q.letter == "e" {
			once[i].Do(func() {
				g.proxies[i].HoldReplies(true)
				out.Done()
			})
		}
	})
	out.Wait()
	begin := time.Now()
	go func() {
		for _, ctx := range contexts {
			<-ctx.Done()
		}
		for _, p := range g.proxies {
			p.HoldReplies(false)
		}
	}()
	require.NoError(t, l.Close())
	require.Less(t, time.Since(begin), 1500*time.Millisecond+fast)
	requireAllClosed(t, contexts)
	for i, s := range g.servers {
		require.Empty(t, lockKeys(t, s))
		released := map[string]bool{}
		for _, q := range g.sent(i) {
			require.False(t, q.letter == "e" && released[q.owner], "nothing is renewed after its release")
			released[q.owner] = released[q.owner] || q.letter == "d"
		}
	}
}

func TestKeepAliveEndsWithItsContext(t *testing.T) {
	t.Parallel()
	l, _ := open(t, 3)
	k, err := l.Acquire(t.Context(), "r", steady)
	require.NoError(t, err)
	parent, cancel := context.WithCancelCause(t.Context())
	one, two := k.KeepAlive(parent), k.KeepAlive(t.Context())
	boom := errors.New("boom")
	cancel(boom)
	<-one.Done()
	require.Equal(t, boom, context.Cause(one))
	select {
	case <-two.Done():
		require.NoError(t, context.Cause(two), "the other one is kept alive")
	case <-time.After(2 * steady): // the time is what is tried
	}
	require.NoError(t, k.Release(t.Context()))
	requireCause(t, two, redlock.LostReleased)
	requireCause(t, k.KeepAlive(t.Context()), redlock.LostReleased)
}

// An extend that came to nothing leaves the window as it was, and the lock is still
// renewed before that is over: not at a third of the ttl that was asked for in vain.
func TestAnExtendInVainCostsNoKeptLock(t *testing.T) {
	t.Parallel()
	l, servers := open(t, 3)
	k, err := l.TryAcquire(t.Context(), "r", 3*brief)
	require.NoError(t, err)
	kept := k.KeepAlive(t.Context())
	for _, s := range servers {
		require.NoError(t, s.Pause())
	}
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Millisecond)
	defer cancel()
	require.ErrorIs(t, k.Extend(ctx, time.Hour), context.DeadlineExceeded)
	for _, s := range servers {
		require.NoError(t, s.Resume())
	}
	becomes(t, func() bool { return k.Remaining() > 3*brief }, "it is renewed by the ttl that was last asked for")
	require.NoError(t, kept.Err())
	require.NoError(t, k.Release(t.Context()))
}

// A drift that takes most of the ttl leaves a window that is over before a third of
// the ttl is.
func TestALockOfMuchDriftIsKept(t *testing.T) {
	t.Parallel()
	l, _ := open(t, 3, redlock.WithDrift(0.7, 0))
	k, err := l.TryAcquire(t.Context(), "r", 4*brief)
	require.NoError(t, err)
	kept := k.KeepAlive(t.Context())
	first := k.ValidUntil()
	becomes(t, func() bool { return k.ValidUntil().After(first) || kept.Err() != nil }, "it is renewed")
	require.NoError(t, kept.Err())
	require.NoError(t, k.Release(t.Context()))
}
