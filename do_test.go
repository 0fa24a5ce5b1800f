package redlock_test

import (
	"context"
	"errors"
	"runtime"
	"runtime/debug"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/quorumlock/redlock"
	"github.com/quorumlock/redlock/internal/redistest"
)

// What comes back from Do, for everything that can happen to its fn, its lock and its
// ctx.

// steady is a ttl within which a busy machine finds the time for a renewal.
const steady = time.Second

// errWork is an error of an fn.
var errWork = errors.New("the work failed")

// requireFree requires that nobody holds resource any more, and that it can be locked
// again.
func requireFree(t *testing.T, l *redlock.Locker, resource string) {
	t.Helper()
	k, err := l.Acquire(t.Context(), resource, ttl, redlock.WithMaxWait(soon))
	require.NoError(t, err)
	require.NoError(t, k.Release(t.Context()))
}

func TestDoHoldsTheLockWhileFnRunsAndFreesItAfter(t *testing.T) {
	t.Parallel()
	l, servers := open(t, 3)
	var ended context.Context
	require.NoError(t, l.Do(t.Context(), "r", steady, func(ctx context.Context, k *redlock.Lock) error {
		ended = ctx
		require.Equal(t, "r", k.Resource())
		require.Positive(t, k.FencingToken())
		select {
		case <-ctx.Done():
			return context.Cause(ctx)
		case <-time.After(2 * steady): // the time is what is tried: it is kept alive
		}
		require.Positive(t, k.Remaining())
		_, err := l.TryAcquire(t.Context(), "r", ttl)
		require.ErrorIs(t, err, redlock.ErrTaken)
		return nil
	}))
	requireCause(t, ended, redlock.LostReleased)
	requireNoKeys(t, servers)
}

// Nothing is wrapped around fn's error when nothing else has gone wrong, so that a
// caller may compare it.
func TestDoReturnsFnsErrorAsItIs(t *testing.T) {
	t.Parallel()
	l, servers := open(t, 1)
	require.Same(t, errWork, l.Do(t.Context(), "r", ttl, func(context.Context, *redlock.Lock) error { return errWork }))
	requireNoKeys(t, servers)
}

func explode() { panic(errWork) }

func TestAPanicOfFnReleasesAndGoesOn(t *testing.T) {
	t.Parallel()
	l, servers := open(t, 1)
	var value any
	var stack string
	var ended context.Context
	func() {
		defer func() {
			value, stack = recover(), string(debug.Stack())
		}()
		_ = l.Do(t.Context(), "r", ttl, func(ctx context.Context, _ *redlock.Lock) error {
			ended = ctx
			explode()
			return nil
		})
	}()
	require.Same(t, errWork, value)
	require.Contains(t, stack, "explode", "where it began is not hidden")
	requireCause(t, ended, redlock.LostReleased)
	requireNoKeys(t, servers)
	requireFree(t, l, "r")
}

func TestGoexitOfFnReleases(t *testing.T) {
	t.Parallel()
	l, servers := open(t, 1)
	returned := false
	done := make(chan struct{})
	go func() {
		defer close(done)
		_ = l.Do(context.Background(), "r", ttl, func(context.Context, *redlock.Lock) error {
			runtime.Goexit() // as t.FailNow does
			return nil
		})
		returned = true
	}()
	<-done
	require.False(t, returned, "it goes on")
	requireNoKeys(t, servers)
	requireFree(t, l, "r")
}

// takeOver makes resource somebody else's while a lock of it is held, so that the next
// renewal finds it lost.
func takeOver(t *testing.T, servers []*redistest.Server) func(ctx context.Context) {
	return func(ctx context.Context) {
		occupy(t, servers, "r", "somebody else")
		<-ctx.Done()
	}
}

func TestALossIsTheErrorOfAnFnThatReturnedNil(t *testing.T) {
	t.Parallel()
	l, servers := open(t, 3)
	lose := takeOver(t, servers)
	err := l.Do(t.Context(), "r", brief, func(ctx context.Context, _ *redlock.Lock) error {
		lose(ctx)
		return nil
	})
	requireLost(t, err, redlock.LostTakenOver)
	votes, ok := errors.AsType[*redlock.QuorumError](err)
	require.True(t, ok, "with the votes that showed it")
	require.Positive(t, votes.Refused)
	require.True(t, all(servers, "r", "somebody else"), "what is somebody else's is not touched")
}

func TestALossIsJoinedToFnsError(t *testing.T) {
	t.Parallel()
	l, servers := open(t, 3)
	lose := takeOver(t, servers)
	for _, fnErr := range []error{errWork, errors.New("two\nlines"), context.Canceled} {
		err := l.Do(t.Context(), "r", brief, func(ctx context.Context, _ *redlock.Lock) error {
			lose(ctx)
			return fnErr
		})
		require.ErrorIs(t, err, fnErr)
		requireLost(t, err, redlock.LostTakenOver) // on one line
		require.Contains(t, err.Error(), "taken over")
		remove(t, servers, "r")
	}
	// An fn that returns what its context says has said it.
	var cause error
	err := l.Do(t.Context(), "r", brief, func(ctx context.Context, _ *redlock.Lock) error {
		lose(ctx)
		cause = context.Cause(ctx)
		return cause
	})
	require.Same(t, cause, err)
}

// The work was done in time, but the release comes too late or finds somebody else: Do
// says so, since nobody can tell when that began.
func TestALossThatTheReleaseFindsIsReturned(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		strike func(t *testing.T, servers []*redistest.Server)
		reason redlock.LostReason
	}{
		"taken over": {func(t *testing.T, servers []*redistest.Server) { occupy(t, servers, "r", "somebody else") }, redlock.LostTakenOver},
		"deleted":    {func(t *testing.T, servers []*redistest.Server) { remove(t, servers, "r") }, redlock.LostExpired},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			l, servers := open(t, 3)
			for _, fnErr := range []error{nil, errWork} {
				err := l.Do(t.Context(), "r", ttl, func(_ context.Context, k *redlock.Lock) error {
					becomes(t, func() bool { return all(servers, "r", k.Owner()) }, "all have granted")
					c.strike(t, servers)
					return fnErr
				})
				requireLost(t, err, c.reason)
				if fnErr != nil {
					require.ErrorIs(t, err, fnErr)
				}
				remove(t, servers, "r")
			}
		})
	}
}

// The window may end while the release is on its way: what counts is what the release
// found.
func TestAWindowThatEndsDuringTheReleaseIsALossOnlyIfTheKeyWasGone(t *testing.T) {
	t.Parallel()
	for name, hold := range map[string]func(*redistest.Proxy, bool){
		"before it arrived": (*redistest.Proxy).HoldRequests,
		"after it ran":      (*redistest.Proxy).HoldReplies,
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			g := newRig(t, 3)
			l := g.open(redlock.WithInstanceTimeout(soon))
			warm(t, l, g.servers)
			var until time.Time
			var ended context.Context
			held, done := make(chan struct{}), make(chan error, 1)
			go func() {
				done <- l.Do(context.Background(), "r", steady, func(ctx context.Context, k *redlock.Lock) error {
					defer close(held)
					ended, until = ctx, k.ValidUntil()
					for _, p := range g.proxies {
						hold(p, true)
					}
					return nil
				})
			}()
			<-held
			becomes(t, func() bool { return time.Now().After(until) }, "the window ends")
			becomes(t, func() bool { return !anyHas(g.servers, "r") }, "and the keys do")
			for _, p := range g.proxies {
				hold(p, false)
			}
			err := <-done
			requireCause(t, ended, redlock.LostReleased)
			if name == "after it ran" {
				require.NoError(t, err)
			} else {
				requireLost(t, err, redlock.LostExpired)
			}
		})
	}
}

func TestDoWithAContextThatHasEndedCallsNobody(t *testing.T) {
	t.Parallel()
	l, servers := open(t, 1)
	boom := errors.New("boom")
	ctx, cancel := context.WithCancelCause(t.Context())
	cancel(boom)
	err := l.Do(ctx, "r", ttl, func(context.Context, *redlock.Lock) error {
		require.Fail(t, "fn runs")
		return nil
	})
	require.ErrorIs(t, err, context.Canceled)
	require.ErrorIs(t, err, boom)
	require.NotErrorIs(t, err, redlock.ErrLost)
	keys, err := keysOn(servers[0], true)
	require.NoError(t, err)
	require.Empty(t, keys, "nobody was asked")
}

func TestDoThatIsCancelledWhileItWaitsHasNotRunFn(t *testing.T) {
	t.Parallel()
	l, servers := open(t, 3)
	occupy(t, servers, "r", "somebody else")
	ctx, cancel := context.WithTimeout(t.Context(), brief)
	defer cancel()
	err := l.Do(ctx, "r", ttl, func(context.Context, *redlock.Lock) error {
		require.Fail(t, "fn runs")
		return nil
	})
	require.ErrorIs(t, err, context.DeadlineExceeded)
	require.ErrorIs(t, err, redlock.ErrTaken)
	require.True(t, all(servers, "r", "somebody else"))
}

// The end of ctx is no loss: the lock is released, and what comes back is up to fn.
func TestDoThatIsCancelledWhileFnRunsReleasesAndReturnsWhatFnDoes(t *testing.T) {
	t.Parallel()
	l, servers := open(t, 3)
	boom := errors.New("boom")
	for name, fn := range map[string]func(ctx context.Context) error{
		"nil":       func(context.Context) error { return nil },
		"its error": func(context.Context) error { return errWork },
		"the cause": context.Cause,
	} {
		ctx, cancel := context.WithCancelCause(t.Context())
		var want error
		err := l.Do(ctx, name, ttl, func(ctx context.Context, k *redlock.Lock) error {
			cancel(boom)
			<-ctx.Done()
			require.Equal(t, boom, context.Cause(ctx), "of the caller")
			require.Positive(t, k.Remaining(), "it still holds")
			want = fn(ctx)
			return want
		})
		require.Equal(t, want, err, name)
	}
	requireNoKeys(t, servers)
}

// Once its ctx has ended a lock is not renewed: an fn that goes on all the same
// outlives it, and is told.
func TestAnFnThatOutlivesItsCancelledLockIsTold(t *testing.T) {
	t.Parallel()
	l, _ := open(t, 3)
	ctx, cancel := context.WithCancel(t.Context())
	err := l.Do(ctx, "r", brief, func(ctx context.Context, k *redlock.Lock) error {
		cancel()
		becomes(t, func() bool { return k.Remaining() <= 0 }, "nobody extends it")
		return ctx.Err()
	})
	require.ErrorIs(t, err, context.Canceled)
	requireLost(t, err, redlock.LostExpired)
}

func TestAnFnThatReleasesTheLockHasNotLostIt(t *testing.T) {
	t.Parallel()
	l, servers := open(t, 3)
	for _, want := range []error{nil, errWork} {
		err := l.Do(t.Context(), "r", ttl, func(ctx context.Context, k *redlock.Lock) error {
			require.NoError(t, k.Release(ctx))
			requireCause(t, ctx, redlock.LostReleased)
			requireFree(t, l, "r")
			return want
		})
		require.Equal(t, want, err)
	}
	requireNoKeys(t, servers)
}

func TestAReleaseThatNoMajorityConfirmsIsReturned(t *testing.T) {
	t.Parallel()
	l, servers := open(t, 3, redlock.WithInstanceTimeout(200*time.Millisecond))
	for _, fnErr := range []error{nil, errWork} {
		err := l.Do(t.Context(), "r", ttl, func(_ context.Context, k *redlock.Lock) error {
			becomes(t, func() bool { return all(servers, "r", k.Owner()) }, "all have granted")
			for _, s := range servers[:2] {
				require.NoError(t, s.Pause())
			}
			return fnErr
		})
		require.ErrorIs(t, err, redlock.ErrNoQuorum)
		require.NotErrorIs(t, err, redlock.ErrLost, "it was held to the end")
		require.NotContains(t, err.Error(), "\n")
		votes, ok := errors.AsType[*redlock.QuorumError](err)
		require.True(t, ok)
		require.Equal(t, "release", votes.Op)
		if fnErr != nil {
			require.ErrorIs(t, err, fnErr)
		}
		for _, s := range servers[:2] {
			require.NoError(t, s.Resume())
		}
		requireNoKeys(t, servers) // what it could not tell them is cleaned up
	}
}

func TestDoReturnsTheErrorsOfAnAcquire(t *testing.T) {
	t.Parallel()
	l, servers := open(t, 3)
	fail := func(context.Context, *redlock.Lock) error {
		require.Fail(t, "fn runs")
		return nil
	}
	// Refused before any I/O.
	require.ErrorContains(t, l.Do(t.Context(), "", ttl, fail), "the resource is empty")
	require.ErrorContains(t, l.Do(t.Context(), "r", time.Millisecond, fail), "ttl of 1ms")
	require.ErrorContains(t, l.Do(t.Context(), "r", ttl, fail, nil), "option 1 is nil")
	require.ErrorContains(t, l.Do(t.Context(), "r", ttl, fail, redlock.WithMinValidity(ttl)), "WithMinValidity")

	occupy(t, servers, "r", "somebody else")
	_, want := l.Acquire(t.Context(), "r", ttl, redlock.WithMaxWait(0))
	require.ErrorIs(t, want, redlock.ErrTaken)
	err := l.Do(t.Context(), "r", ttl, fail, redlock.WithMaxWait(0))
	require.IsType(t, want, err)
	require.ErrorIs(t, err, redlock.ErrTaken)

	for _, s := range servers[:2] {
		require.NoError(t, s.Kill())
	}
	err = l.Do(t.Context(), "r2", ttl, fail, redlock.WithMaxWait(0))
	require.IsType(t, want, err)
	require.ErrorIs(t, err, redlock.ErrNoQuorum)
}

func TestDoHonoursTheOptionsOfAnAcquire(t *testing.T) {
	t.Parallel()
	l, servers := open(t, 1)
	err := l.Do(t.Context(), "r", ttl, func(ctx context.Context, k *redlock.Lock) error {
		require.LessOrEqual(t, k.Remaining(), brief)
		<-ctx.Done()
		return nil
	}, redlock.WithMaxHold(brief))
	requireLost(t, err, redlock.LostMaxHold)

	occupy(t, servers, "r", "somebody else")
	begin := time.Now()
	err = l.Do(t.Context(), "r", ttl, nobody, redlock.WithMaxWait(brief))
	require.ErrorIs(t, err, redlock.ErrTaken)
	require.NotErrorIs(t, err, context.DeadlineExceeded)
	require.GreaterOrEqual(t, time.Since(begin), brief-fast)
	require.Less(t, time.Since(begin), soon)

	// Of a ttl of 10 s no more than 9.898 s are left, and of an acquire that takes 50 ms
	// less than that.
	g := newRig(t, 1)
	slow := g.open()
	warm(t, slow, g.servers)
	g.proxies[0].Delay(25 * time.Millisecond)
	err = slow.Do(t.Context(), "r", ttl, nobody, redlock.WithMinValidity(9880*time.Millisecond), redlock.WithMaxWait(0))
	require.ErrorIs(t, err, redlock.ErrExpired)
}

func nobody(context.Context, *redlock.Lock) error { return errors.New("fn runs") }

func TestMisuseOfDoIsAnError(t *testing.T) {
	t.Parallel()
	l, servers := open(t, 1)
	require.EqualError(t, l.Do(t.Context(), "r", ttl, nil), "redlock: the function is nil")
	require.EqualError(t, l.Do(nil, "r", ttl, nobody), "redlock: the context is nil") //nolint:staticcheck // what is tried
	var none *redlock.Locker
	require.EqualError(t, none.Do(t.Context(), "r", ttl, nobody), "redlock: the locker is nil")
	require.EqualError(t, none.Do(t.Context(), "r", ttl, nil), "redlock: the function is nil")
	keys, err := keysOn(servers[0], true)
	require.NoError(t, err)
	require.Empty(t, keys)

	require.NoError(t, l.Close())
	require.Equal(t, redlock.ErrClosed, l.Do(t.Context(), "r", ttl, nobody))
}

func TestAnFnThatClosesTheLockerHasLostItsLock(t *testing.T) {
	t.Parallel()
	l, servers := open(t, 3)
	for _, fnErr := range []error{errWork, nil} {
		l := openOn(t, redistest.Addrs(servers))
		err := l.Do(t.Context(), "r", ttl, func(ctx context.Context, _ *redlock.Lock) error {
			require.NoError(t, l.Close())
			requireCause(t, ctx, redlock.LostClosed)
			return fnErr
		})
		requireLost(t, err, redlock.LostClosed)
		require.ErrorIs(t, err, redlock.ErrClosed)
		if fnErr != nil {
			require.ErrorIs(t, err, fnErr)
		}
	}
	requireNoKeys(t, servers)
	requireFree(t, l, "r")
}

func TestDoInsideDo(t *testing.T) {
	t.Parallel()
	l, servers := open(t, 3)
	// Another resource: both are held, and the tokens tell the order.
	err := l.Do(t.Context(), "outer", ttl, func(ctx context.Context, outer *redlock.Lock) error {
		return l.Do(ctx, "inner", ttl, func(ctx context.Context, inner *redlock.Lock) error {
			require.Positive(t, outer.Remaining())
			require.Positive(t, inner.Remaining())
			require.NoError(t, outer.Release(ctx))
			requireCause(t, ctx, redlock.LostReleased) // the inner context is a child of the outer one
			require.Positive(t, inner.Remaining())
			return nil
		})
	})
	require.NoError(t, err)

	// The same one is taken, by ourselves: no lock is reentrant, and none is a deadlock
	// for longer than the caller wants to wait.
	err = l.Do(t.Context(), "r", steady, func(ctx context.Context, k *redlock.Lock) error {
		err := l.Do(ctx, "r", steady, nobody, redlock.WithMaxWait(2*steady))
		require.Positive(t, k.Remaining(), "kept alive meanwhile")
		return err
	})
	require.ErrorIs(t, err, redlock.ErrTaken)
	require.NotErrorIs(t, err, redlock.ErrLost)
	requireNoKeys(t, servers)
}
