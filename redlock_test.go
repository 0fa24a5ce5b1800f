package redlock_test

import (
	"context"
	"errors"
	"fmt"
	"math"
	"os"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/quorumlock/redlock"
	"github.com/quorumlock/redlock/internal/redistest"
)

const ttl = 10 * time.Second

// open returns a Locker on n new servers, closed at the end of the test.
// paced returns how long something takes, or is given, with the race detector or without.
func paced(without, with time.Duration) time.Duration {
	if redlock.RaceDetector {
		return with
	}
	return without
}

func open(t testing.TB, n int, opts ...redlock.Option) (*redlock.Locker, []*redistest.Server) {
	t.Helper()
	servers := redistest.StartN(t, n)
	return openOn(t, redistest.Addrs(servers), opts...), servers
}

// fresh returns opts and what they need on servers that have just been started.
func fresh(opts []redlock.Option) []redlock.Option {
	return append([]redlock.Option{redlock.WithQuarantine(0), redlock.LongVotes()}, opts...)
}

func openOn(t testing.TB, endpoints []string, opts ...redlock.Option) *redlock.Locker {
	t.Helper()
	l, err := redlock.Open(endpoints, fresh(opts)...)
	require.NoError(t, err)
	t.Cleanup(func() { _ = l.Close() })
	return l
}

// lockKeys returns the keys on s that are not fence keys.
func lockKeys(t testing.TB, s *redistest.Server) []string {
	t.Helper()
	var keys []string
	all, _ := s.MustDo(t, "KEYS", "*").([]any)
	for _, k := range all {
		if key := fmt.Sprint(k); !strings.HasSuffix(key, ":fence") {
			keys = append(keys, key)
		}
	}
	return keys
}

// requireNoKeys waits until no server has a lock key.
func requireNoKeys(t testing.TB, servers []*redistest.Server) {
	t.Helper()
	for _, s := range servers {
		require.Eventually(t, func() bool { // it may have been restarted, and be loading
			_, err := s.Do("PING")
			return err == nil
		}, 10*time.Second, 5*time.Millisecond)
		require.Eventually(t, func() bool { return len(lockKeys(t, s)) == 0 }, 5*time.Second, 5*time.Millisecond,
			"keys left on %s: %v", s.Addr(), lockKeys(t, s))
	}
}

func TestALockIsItsOwnersOnEveryInstanceAndNobodysAfterRelease(t *testing.T) {
	for _, n := range []int{1, 2, 3, 4, 5} {
		t.Run(fmt.Sprintf("N=%d", n), func(t *testing.T) {
			ctx := t.Context()
			l, servers := open(t, n)
			before := time.Now()
			k, err := l.Acquire(ctx, "orders", ttl)
			require.NoError(t, err)
			require.Equal(t, "orders", k.Resource())
			require.Len(t, k.Owner(), 26)
			require.Positive(t, k.FencingToken())
			full := ttl - ttl/100 - 2*time.Millisecond
			require.LessOrEqual(t, k.Remaining(), full)
			require.Greater(t, k.Remaining(), full-time.Second)
			require.WithinRange(t, k.ValidUntil(), before.Add(full), time.Now().Add(full))
			for _, s := range servers {
				require.Eventually(t, func() bool { return s.MustDo(t, "GET", "orders") == k.Owner() }, time.Second, time.Millisecond)
				require.Greater(t, s.MustDo(t, "PTTL", "orders"), k.Remaining().Milliseconds())
			}

			_, err = l.TryAcquire(ctx, "orders", ttl)
			require.ErrorIs(t, err, redlock.ErrTaken)
			require.NotErrorIs(t, err, redlock.ErrNoQuorum)

			require.NoError(t, k.Release(ctx))
			requireNoKeys(t, servers)
			require.NoError(t, k.Release(ctx), "a deferred Release finds nothing to do")
			require.LessOrEqual(t, k.Remaining(), time.Duration(0))

			next, err := l.TryAcquire(ctx, "orders", ttl)
			require.NoError(t, err)
			require.Greater(t, next.FencingToken(), k.FencingToken())
			require.NotEqual(t, k.Owner(), next.Owner())
			require.NoError(t, next.Release(ctx))
		})
	}
}

func TestOnlyOneOfManyHoldsTheLock(t *testing.T) {
	servers := redistest.StartN(t, 3)
	var inside, max atomic.Int32
	var last uint64 // guarded by the lock
	var wg sync.WaitGroup
	for range 4 {
		l := openOn(t, redistest.Addrs(servers))
		for range 4 {
			wg.Go(func() {
				for range 10 {
					k, err := l.Acquire(t.Context(), "counter", ttl)
					if err != nil {
						t.Errorf("acquire: %v", err)
						return
					}
					if n := inside.Add(1); n > 1 {
						max.Store(n)
					}
					if k.FencingToken() <= last {
						t.Errorf("token %d after %d", k.FencingToken(), last)
					}
					last = k.FencingToken()
					inside.Add(-1)
					if err := k.Release(t.Context()); err != nil {
						t.Errorf("release: %v", err)
					}
				}
			})
		}
	}
	wg.Wait()
	require.Zero(t, max.Load(), "holders at one time")
	requireNoKeys(t, servers)
}

func TestExtendMovesTheWindowAndTheServersExpiry(t *testing.T) {
	l, servers := open(t, 3)
	k, err := l.Acquire(t.Context(), "orders", time.Second)
	require.NoError(t, err)
	require.NoError(t, k.Extend(t.Context(), time.Minute))
	require.Greater(t, k.Remaining(), 58*time.Second)
	for _, s := range servers {
		require.Eventually(t, func() bool {
			left, _ := s.MustDo(t, "PTTL", "orders").(int64)
			return left > k.Remaining().Milliseconds()
		}, time.Second, time.Millisecond)
	}
	require.NoError(t, k.Extend(t.Context(), time.Second), "a shorter ttl is an extend, too")
	require.LessOrEqual(t, k.Remaining(), time.Second)
}

func TestExtendAfterTheEndIsLost(t *testing.T) {
	l, servers := open(t, 3)
	for name, c := range map[string]struct {
		end    func(k *redlock.Lock)
		reason redlock.LostReason
	}{
		"released": {func(k *redlock.Lock) { require.NoError(t, k.Release(t.Context())) }, redlock.LostReleased},
		"expired": {func(k *redlock.Lock) {
			require.Eventually(t, func() bool { return k.Remaining() <= 0 }, time.Second, time.Millisecond)
		}, redlock.LostExpired},
		"deleted": {func(k *redlock.Lock) {
			for _, s := range servers {
				s.MustDo(t, "DEL", k.Resource())
			}
		}, redlock.LostExpired},
		"taken over": {func(k *redlock.Lock) {
			for _, s := range servers[1:] {
				s.MustDo(t, "SET", k.Resource(), "somebody else")
			}
		}, redlock.LostTakenOver},
	} {
		t.Run(name, func(t *testing.T) {
			k, err := l.Acquire(t.Context(), name, 200*time.Millisecond)
			require.NoError(t, err)
			for _, s := range servers { // all three have it, or the first deleted key comes later
				require.Eventually(t, func() bool { return s.MustDo(t, "EXISTS", name) == int64(1) }, time.Second, time.Millisecond)
			}
			c.end(k)
			for range 2 { // it is final
				err = k.Extend(t.Context(), ttl)
				require.ErrorIs(t, err, redlock.ErrLost)
				var lost *redlock.LostError
				require.ErrorAs(t, err, &lost)
				require.Equal(t, c.reason, lost.Reason)
				require.Equal(t, name, lost.Resource)
				require.NotContains(t, err.Error(), "\n")
			}
			require.LessOrEqual(t, k.Remaining(), time.Duration(0))
			if name != "released" {
				require.ErrorIs(t, k.Release(t.Context()), redlock.ErrLost)
			}
		})
	}
}

func TestMaxHoldEndsALockHoweverOftenItIsExtended(t *testing.T) {
	l, _ := open(t, 1)
	k, err := l.Acquire(t.Context(), "orders", ttl, redlock.WithMaxHold(300*time.Millisecond))
	require.NoError(t, err)
	require.LessOrEqual(t, k.Remaining(), 300*time.Millisecond)
	require.NoError(t, k.Extend(t.Context(), ttl))
	require.LessOrEqual(t, k.Remaining(), 300*time.Millisecond)
	require.Eventually(t, func() bool { return k.Remaining() <= 0 }, time.Second, time.Millisecond)
	var lost *redlock.LostError
	require.ErrorAs(t, k.Extend(t.Context(), ttl), &lost)
	require.Equal(t, redlock.LostMaxHold, lost.Reason)
	require.ErrorIs(t, k.Release(t.Context()), redlock.ErrLost)
}

func TestMinValidityRefusesALockThatIsNearlyOver(t *testing.T) {
	servers := redistest.StartN(t, 1)
	proxy := redistest.NewProxy(t, servers[0].Addr())
	l := openOn(t, []string{proxy.Addr()}, redlock.WithInstanceTimeout(time.Second))
	k, err := l.TryAcquire(t.Context(), "orders", 2*time.Second, redlock.WithMinValidity(1500*time.Millisecond))
	require.NoError(t, err)
	require.NoError(t, k.Release(t.Context()))
	proxy.DelayReplies(200 * time.Millisecond)
	_, err = l.TryAcquire(t.Context(), "orders", 2*time.Second, redlock.WithMinValidity(1900*time.Millisecond))
	require.ErrorIs(t, err, redlock.ErrExpired)
	var q *redlock.QuorumError
	require.ErrorAs(t, err, &q)
	require.Equal(t, 1, q.Granted)
	requireNoKeys(t, servers)
}

func TestAcquireWaitsForTheLockAndNoLonger(t *testing.T) {
	l, _ := open(t, 3)
	ctx := t.Context()
	holder, err := l.Acquire(ctx, "orders", ttl)
	require.NoError(t, err)

	t.Run("WithMaxWait ends with the last reason alone", func(t *testing.T) {
		start := time.Now()
		_, err := l.Acquire(ctx, "orders", ttl, redlock.WithMaxWait(100*time.Millisecond))
		require.ErrorIs(t, err, redlock.ErrTaken)
		require.NotErrorIs(t, err, context.DeadlineExceeded)
		require.NotErrorIs(t, err, os.ErrDeadlineExceeded)
		require.WithinRange(t, time.Now(), start.Add(80*time.Millisecond), start.Add(500*time.Millisecond))
	})
	t.Run("a maximum of nothing is one round", func(t *testing.T) {
		_, err := l.Acquire(ctx, "orders", ttl, redlock.WithMaxWait(0))
		require.ErrorIs(t, err, redlock.ErrTaken)
	})
	t.Run("a deadline ends with it and the last reason", func(t *testing.T) {
		ctx, cancel := context.WithTimeout(ctx, 100*time.Millisecond)
		defer cancel()
		_, err := l.Acquire(ctx, "orders", ttl)
		require.ErrorIs(t, err, context.DeadlineExceeded)
		require.ErrorIs(t, err, redlock.ErrTaken)
		var q *redlock.QuorumError
		require.ErrorAs(t, err, &q)
		require.Equal(t, 3, q.Instances)
		require.Equal(t, 2, q.Needed)
	})
	t.Run("a cancel ends with its cause", func(t *testing.T) {
		ctx, cancel := context.WithCancelCause(ctx)
		why := errors.New("the request went away")
		time.AfterFunc(50*time.Millisecond, func() { cancel(why) })
		_, err := l.Acquire(ctx, "orders", ttl)
		require.ErrorIs(t, err, context.Canceled)
		require.ErrorIs(t, err, why)
		require.ErrorIs(t, err, redlock.ErrTaken)
	})
	t.Run("an ended context asks nobody", func(t *testing.T) {
		ctx, cancel := context.WithCancel(ctx)
		cancel()
		_, err := l.Acquire(ctx, "free", ttl)
		require.ErrorIs(t, err, context.Canceled)
		_, err = l.TryAcquire(ctx, "free", ttl)
		require.ErrorIs(t, err, context.Canceled)
		require.ErrorIs(t, holder.Extend(ctx, ttl), context.Canceled)
	})
	t.Run("a release ends the wait", func(t *testing.T) {
		done := make(chan error)
		go func() {
			k, err := l.Acquire(ctx, "orders", ttl)
			if err == nil {
				err = k.Release(ctx)
			}
			done <- err
		}()
		require.NoError(t, holder.Release(ctx))
		require.NoError(t, <-done)
	})
}

func TestAnExpiredLeaseIsTakenWhenItRunsOut(t *testing.T) {
	l, _ := open(t, 3, redlock.WithRetryDelay(10*time.Millisecond, time.Minute))
	forgotten, err := l.Acquire(t.Context(), "orders", 300*time.Millisecond)
	require.NoError(t, err)
	start := time.Now()
	k, err := l.Acquire(t.Context(), "orders", ttl)
	require.NoError(t, err)
	require.LessOrEqual(t, forgotten.Remaining(), time.Duration(0), "it was still held")
	require.Less(t, time.Since(start), 2*time.Second, "the retry delay may be up to a minute")
	require.NoError(t, k.Release(t.Context()))
}

func TestBadArgumentsAreRefusedBeforeAnyIO(t *testing.T) {
	servers := redistest.StartN(t, 1)
	proxy := redistest.NewProxy(t, servers[0].Addr())
	l := openOn(t, []string{proxy.Addr()}, redlock.WithKeyPrefix("lock:"))
	ctx := t.Context()
	//nolint:staticcheck // a nil context is what is tried
	for name, try := range map[string]func() (*redlock.Lock, error){
		"no resource":       func() (*redlock.Lock, error) { return l.Acquire(ctx, "", ttl) },
		"huge resource":     func() (*redlock.Lock, error) { return l.Acquire(ctx, strings.Repeat("x", 64<<10+1), ttl) },
		"fence key":         func() (*redlock.Lock, error) { return l.Acquire(ctx, "{orders}:fence", ttl) },
		"ttl 0":             func() (*redlock.Lock, error) { return l.Acquire(ctx, "x", 0) },
		"negative ttl":      func() (*redlock.Lock, error) { return l.TryAcquire(ctx, "x", -time.Second) },
		"sub-ms ttl":        func() (*redlock.Lock, error) { return l.TryAcquire(ctx, "x", time.Microsecond) },
		"short ttl":         func() (*redlock.Lock, error) { return l.TryAcquire(ctx, "x", 10*time.Millisecond-1) },
		"huge ttl":          func() (*redlock.Lock, error) { return l.TryAcquire(ctx, "x", math.MaxInt64) },
		"nil ctx":           func() (*redlock.Lock, error) { return l.Acquire(nil, "x", ttl) },
		"nil ctx, try":      func() (*redlock.Lock, error) { return l.TryAcquire(nil, "x", ttl) },
		"nil option":        func() (*redlock.Lock, error) { return l.Acquire(ctx, "x", ttl, nil) },
		"negative max wait": func() (*redlock.Lock, error) { return l.Acquire(ctx, "x", ttl, redlock.WithMaxWait(-1)) },
		"max hold 0":        func() (*redlock.Lock, error) { return l.Acquire(ctx, "x", ttl, redlock.WithMaxHold(0)) },
		"min validity":      func() (*redlock.Lock, error) { return l.Acquire(ctx, "x", ttl, redlock.WithMinValidity(ttl)) },
	} {
		k, err := try()
		require.Error(t, err, name)
		require.Nil(t, k, name)
		require.NotContains(t, err.Error(), "\n", name)
		require.Less(t, len(err.Error()), 300, name)
	}
	require.Zero(t, proxy.Accepted())
	require.Empty(t, servers[0].MustDo(t, "KEYS", "*"))
}

func TestResourcesAreBinarySafe(t *testing.T) {
	l, servers := open(t, 3)
	for _, resource := range []string{"\x00\xff\r\n{}", "a b", "日本", "}", "a{}b", strings.Repeat("\n", 64<<10)} {
		k, err := l.Acquire(t.Context(), resource, ttl)
		require.NoError(t, err)
		_, err = l.TryAcquire(t.Context(), resource, ttl)
		require.ErrorIs(t, err, redlock.ErrTaken)
		require.NotContains(t, err.Error(), "\n")
		require.NoError(t, k.Release(t.Context()))
	}
	requireNoKeys(t, servers)
}

func TestANilLockDoesNotPanic(t *testing.T) {
	var k *redlock.Lock
	require.Empty(t, k.Resource())
	require.Empty(t, k.Owner())
	require.Zero(t, k.FencingToken())
	require.Zero(t, k.Remaining())
	require.True(t, k.ValidUntil().IsZero())
	require.Error(t, k.Extend(t.Context(), ttl))
	require.Error(t, k.Release(t.Context()))
}

func TestCloseReleasesWhatIsHeldAndRefusesWhatComesLater(t *testing.T) {
	l, servers := open(t, 3)
	ctx := t.Context()
	var locks []*redlock.Lock
	for i := range 100 {
		k, err := l.Acquire(ctx, fmt.Sprint("r", i), time.Minute)
		require.NoError(t, err)
		locks = append(locks, k)
	}
	released := locks[0]
	require.NoError(t, released.Release(ctx))
	waiting := make(chan error)
	go func() {
		_, err := l.Acquire(ctx, "r1", ttl)
		waiting <- err
	}()
	require.NoError(t, l.Close())
	require.ErrorIs(t, <-waiting, redlock.ErrClosed)
	for _, s := range servers {
		require.Empty(t, lockKeys(t, s))
	}
	require.NoError(t, l.Close(), "Close is idempotent")

	_, err := l.Acquire(ctx, "r1", ttl)
	require.ErrorIs(t, err, redlock.ErrClosed)
	_, err = l.TryAcquire(ctx, "r1", ttl)
	require.ErrorIs(t, err, redlock.ErrClosed)
	require.NoError(t, released.Release(ctx))
	for _, k := range locks[1:] {
		require.LessOrEqual(t, k.Remaining(), time.Duration(0))
		err := k.Extend(ctx, ttl)
		require.ErrorIs(t, err, redlock.ErrClosed)
		require.ErrorIs(t, err, redlock.ErrLost)
		require.ErrorIs(t, k.Release(ctx), redlock.ErrClosed)
	}
}

func TestCloseIsBoundedWhenInstancesHang(t *testing.T) {
	for _, n := range []int{1, 3} {
		t.Run(fmt.Sprintf("%d of 3 hang", n), func(t *testing.T) {
			l, servers := open(t, 3)
			for i := range 50 {
				_, err := l.Acquire(t.Context(), fmt.Sprint("r", i), time.Minute)
				require.NoError(t, err)
			}
			for _, s := range servers[:n] {
				require.NoError(t, s.Pause())
			}
			start := time.Now()
			err := l.Close()
			require.Less(t, time.Since(start), 1500*time.Millisecond)
			if n > 1 {
				require.ErrorIs(t, err, redlock.ErrNoQuorum, "locks stay behind, and Close says so")
			} else {
				require.NoError(t, err)
			}
		})
	}
}

func TestNewLeavesTheCallersClientsOpen(t *testing.T) {
	servers := redistest.StartN(t, 3)
	var instances []redlock.Instance
	for i, s := range servers {
		c := redis.NewClient(&redis.Options{Addr: s.Addr()})
		t.Cleanup(func() { _ = c.Close() })
		instances = append(instances, redlock.Instance{Name: fmt.Sprint("node-", i), Client: c})
	}
	l, err := redlock.New(instances, redlock.WithQuarantine(0))
	require.NoError(t, err)
	k, err := l.Acquire(t.Context(), "orders", ttl)
	require.NoError(t, err)
	_, err = l.TryAcquire(t.Context(), "orders", ttl)
	require.ErrorContains(t, err, "node-0: ")
	require.NoError(t, l.Close())
	for i, in := range instances {
		require.NoError(t, in.Client.Ping(t.Context()).Err())
		require.Empty(t, lockKeys(t, servers[i]))
	}
	require.ErrorIs(t, k.Release(t.Context()), redlock.ErrClosed)
}

func TestWithoutFencingThereIsNoTokenAndNoFenceKey(t *testing.T) {
	l, servers := open(t, 3, redlock.WithoutFencing())
	k, err := l.Acquire(t.Context(), "orders", ttl)
	require.NoError(t, err)
	require.Zero(t, k.FencingToken())
	require.NoError(t, k.Extend(t.Context(), ttl))
	for _, s := range servers {
		require.Eventually(t, func() bool { return s.MustDo(t, "DBSIZE") == int64(1) }, time.Second, time.Millisecond)
	}
	require.NoError(t, k.Release(t.Context()))
	requireNoKeys(t, servers)
}

type sourceFunc func(context.Context, string) (uint64, error)

func (f sourceFunc) Token(ctx context.Context, resource string) (uint64, error) {
	return f(ctx, resource)
}

func TestAnExternalFencingSourceIsAskedOnceAndFailsTheAcquire(t *testing.T) {
	type source = func(context.Context) (uint64, error)
	var asked atomic.Int32
	var current atomic.Pointer[source]
	answer := func(f source) {
		asked.Store(0)
		current.Store(&f)
	}
	l, servers := open(t, 3, redlock.WithFencing(sourceFunc(func(ctx context.Context, resource string) (uint64, error) {
		asked.Add(1)
		if resource != "orders" {
			return 0, errors.New("asked for " + resource)
		}
		return (*current.Load())(ctx)
	})))
	ctx := t.Context()

	answer(func(context.Context) (uint64, error) { return 41, nil })
	k, err := l.Acquire(ctx, "orders", ttl)
	require.NoError(t, err)
	require.Equal(t, uint64(41), k.FencingToken())
	require.NoError(t, k.Extend(ctx, ttl))
	require.NoError(t, k.Release(ctx))
	require.Equal(t, int32(1), asked.Load())

	for name, f := range map[string]source{
		"an error":      func(context.Context) (uint64, error) { return 0, errors.New("no sequence") },
		"zero":          func(context.Context) (uint64, error) { return 0, nil },
		"the same":      func(context.Context) (uint64, error) { return 41, nil },
		"backwards":     func(context.Context) (uint64, error) { return 7, nil },
		"beyond 2^53":   func(context.Context) (uint64, error) { return 1 << 53, nil },
		"a panic":       func(context.Context) (uint64, error) { panic("no sequence") },
		"the wrong ctx": func(context.Context) (uint64, error) { return 0, context.DeadlineExceeded },
	} {
		answer(f)
		_, err := l.Acquire(ctx, "orders", ttl)
		require.ErrorContains(t, err, "fencing source", name)
		require.NotErrorIs(t, err, redlock.ErrTaken, name)
		require.Equal(t, int32(1), asked.Load(), name)
		requireNoKeys(t, servers)
	}

	late := make(chan struct{})
	t.Cleanup(func() { close(late) })
	answer(func(context.Context) (uint64, error) { <-late; return 99, nil })
	_, err = l.TryAcquire(ctx, "orders", 100*time.Millisecond)
	require.ErrorIs(t, err, redlock.ErrExpired)
	requireNoKeys(t, servers)

	ended, cancel := context.WithTimeout(ctx, 20*time.Millisecond)
	defer cancel()
	_, err = l.TryAcquire(ended, "orders", ttl)
	require.ErrorIs(t, err, context.DeadlineExceeded)
	requireNoKeys(t, servers)
}

func TestOwnersAreNeverUsedTwice(t *testing.T) {
	seen := map[string]bool{}
	l, _ := open(t, 1)
	cycles := func(n int) {
		for range n {
			k, err := l.Acquire(t.Context(), "orders", ttl)
			if !assert.NoError(t, err) {
				return
			}
			assert.False(t, seen[k.Owner()])
			seen[k.Owner()] = true
			assert.NoError(t, k.Release(t.Context()))
		}
	}
	cycles(200)
	// One hands over to the other.
	var workers sync.WaitGroup
	for range 2 {
		workers.Go(func() { cycles(100) })
	}
	workers.Wait()
}
