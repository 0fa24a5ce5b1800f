package redlocktest_test

import (
	"context"
	"errors"
	"fmt"
	"runtime"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/quorumlock/redlock"
	"github.com/quorumlock/redlock/redlocktest"
)

const ttl = 10 * time.Second

// inBubble runs f in virtual time.
func inBubble(t *testing.T, f func(t *testing.T)) {
	t.Helper()
	if raceDetector {
		t.Skip("SKIPPED, NOT PASSED: the race detector crashes in bubbles of many goroutines, https://go.dev/issue/78156")
	}
	synctest.Test(t, f)
}

// everywhere runs f in real time and in virtual time.
func everywhere(t *testing.T, f func(t *testing.T)) {
	t.Run("real time", f)
	t.Run("virtual time", func(t *testing.T) { inBubble(t, f) })
}

func requireLost(t *testing.T, err error, want redlock.LostReason) {
	t.Helper()
	var lost *redlock.LostError
	require.ErrorAs(t, err, &lost)
	require.Equal(t, want, lost.Reason)
}

func TestALockIsHeldUntilItsRelease(t *testing.T) {
	everywhere(t, func(t *testing.T) {
		cluster := redlocktest.New(t, 3)
		require.False(t, cluster.Held("r"))
		ours, others := cluster.Locker(), cluster.Locker()
		lock, err := ours.TryAcquire(t.Context(), "r", ttl)
		require.NoError(t, err)
		require.True(t, cluster.Held("r"))
		require.Equal(t, lock.Owner(), cluster.Owner("r"))
		require.False(t, cluster.Held("another"))
		_, err = others.TryAcquire(t.Context(), "r", ttl)
		require.ErrorIs(t, err, redlock.ErrTaken)

		require.NoError(t, lock.Release(t.Context()))
		require.False(t, cluster.Held("r"))
		next, err := others.TryAcquire(t.Context(), "r", ttl)
		require.NoError(t, err)
		require.Greater(t, next.FencingToken(), lock.FencingToken())
	})
}

func TestALockerOfTheUsersReachesTheInstances(t *testing.T) {
	cluster := redlocktest.New(t, 1)
	l, err := redlock.Open(cluster.Endpoints(), cluster.Option(), redlock.WithKeyPrefix("lock:"))
	require.NoError(t, err)
	_, err = l.TryAcquire(t.Context(), "r", ttl)
	require.NoError(t, err)
	require.True(t, cluster.Held("lock:r"))
	require.False(t, cluster.Held("r"))
	require.NoError(t, l.Close())

	l, err = redlock.Open([]string{"127.0.0.1:99"}, cluster.Option())
	require.NoError(t, err)
	_, err = l.TryAcquire(t.Context(), "r", ttl)
	require.ErrorContains(t, err, "127.0.0.1:99 is no instance of this cluster")
	require.NoError(t, l.Close())
}

func TestOnlyAMajorityThatIsDownIsInTheWay(t *testing.T) {
	everywhere(t, func(t *testing.T) {
		cluster := redlocktest.New(t, 3)
		l := cluster.Locker()
		cluster.Down(0)
		lock, err := l.TryAcquire(t.Context(), "r", ttl)
		require.NoError(t, err)
		cluster.Down(1)
		require.ErrorIs(t, lock.Extend(t.Context(), ttl), redlock.ErrNoQuorum)
		_, err = l.TryAcquire(t.Context(), "another", ttl)
		require.ErrorIs(t, err, redlock.ErrNoQuorum)
		require.ErrorIs(t, err, syscall.ECONNREFUSED)
		require.Equal(t, lock.Owner(), cluster.Owner("r"), "they know what they knew")

		cluster.Up(0)
		cluster.Up(1)
		ctx, cancel := context.WithTimeout(t.Context(), ttl) // it is probed now and then
		defer cancel()
		another, err := l.Acquire(ctx, "another", ttl)
		require.NoError(t, err)
		require.NoError(t, another.Release(ctx))
		require.Eventually(t, func() bool { return lock.Extend(ctx, ttl) == nil }, ttl/2, 10*time.Millisecond, "no restart: nothing was forgotten")
	})
}

func TestADelayTakesExactlyItsTime(t *testing.T) {
	inBubble(t, func(t *testing.T) {
		const delay = 70 * time.Millisecond
		cluster := redlocktest.New(t, 3)
		l := cluster.Locker()
		warm, err := l.TryAcquire(t.Context(), "r", ttl)
		require.NoError(t, err)
		require.NoError(t, warm.Release(t.Context()))
		synctest.Wait()

		took := func() time.Duration {
			start := time.Now()
			lock, err := l.TryAcquire(t.Context(), "r", ttl)
			took := time.Since(start)
			require.NoError(t, err)
			require.Equal(t, took, ttl-ttl/100-2*time.Millisecond-lock.Remaining())
			require.NoError(t, lock.Release(t.Context()))
			time.Sleep(ttl) // it is clean
			return took
		}
		require.Zero(t, took())
		cluster.Slow(0, delay)
		require.Zero(t, took(), "a majority is fast")
		cluster.Slow(1, delay)
		require.Equal(t, delay, took())
		cluster.Up(1)
		require.Zero(t, took())
	})
}

func TestInstancesThatHangCostTheInstanceTimeout(t *testing.T) {
	inBubble(t, func(t *testing.T) {
		cluster := redlocktest.New(t, 3)
		l := cluster.Locker()
		cluster.Slow(0, time.Hour)
		cluster.Slow(1, time.Hour)
		start := time.Now()
		_, err := l.TryAcquire(t.Context(), "r", ttl)
		require.ErrorIs(t, err, redlock.ErrNoQuorum)
		require.Equal(t, ttl/10, time.Since(start))
	})
}

// The quarantine is that of real servers: what has forgotten its locks lets no second
// holder in.
func TestAnInstanceThatForgotIsInQuarantine(t *testing.T) {
	inBubble(t, func(t *testing.T) {
		cluster := redlocktest.New(t, 3)
		ours, others := cluster.Locker(), cluster.Locker()
		lock, err := ours.TryAcquire(t.Context(), "r", ttl)
		require.NoError(t, err)
		ctx := lock.KeepAlive(t.Context())
		synctest.Wait() // all have granted
		cluster.Forget(0)
		cluster.Forget(1)
		require.False(t, cluster.Held("r"))
		_, err = others.TryAcquire(t.Context(), "r", ttl)
		require.ErrorIs(t, err, redlock.ErrNoQuorum)
		require.ErrorIs(t, err, redlock.ErrQuarantined)
		restarted := time.Now()
		second, err := others.Acquire(t.Context(), "r", ttl)
		require.NoError(t, err)
		require.GreaterOrEqual(t, time.Since(restarted), ttl+time.Second)
		require.Less(t, time.Since(restarted), ttl+4*time.Second)
		require.ErrorIs(t, context.Cause(ctx), redlock.ErrLost, "the first holder was told before")
		require.Greater(t, second.FencingToken(), lock.FencingToken())
	})
}

// Without a quarantine the same restart makes two holders, of which the second has
// the larger token: a test of what a team's resource does with the first.
func TestWithoutQuarantineAnInstanceThatForgotLetsASecondHolderIn(t *testing.T) {
	inBubble(t, func(t *testing.T) {
		cluster := redlocktest.New(t, 3)
		lock, err := cluster.Locker(redlock.WithQuarantine(0)).TryAcquire(t.Context(), "r", ttl)
		require.NoError(t, err)
		synctest.Wait() // all have granted
		cluster.Forget(0)
		cluster.Forget(1)
		// What has forgotten its tokens goes by the clients' clocks, and in a bubble no
		// time passes by itself.
		time.Sleep(time.Millisecond)
		second, err := cluster.Locker(redlock.WithQuarantine(0)).TryAcquire(t.Context(), "r", ttl)
		require.NoError(t, err)
		require.Positive(t, lock.Remaining())
		require.Greater(t, second.FencingToken(), lock.FencingToken())
	})
}

// An instance that was down when it restarted is still down.
func TestForgettingIsNotComingBack(t *testing.T) {
	cluster := redlocktest.New(t, 1)
	cluster.Down(0)
	cluster.Forget(0)
	_, err := cluster.Locker().TryAcquire(t.Context(), "r", ttl)
	require.ErrorIs(t, err, syscall.ECONNREFUSED)
}

func TestTheHolderOfALostLockIsToldAtTheNextRenewal(t *testing.T) {
	for name, want := range map[string]redlock.LostReason{"gone": redlock.LostExpired, "somebody else's": redlock.LostTakenOver} {
		t.Run(name, func(t *testing.T) {
			inBubble(t, func(t *testing.T) {
				cluster := redlocktest.New(t, 5)
				lock, err := cluster.Locker().TryAcquire(t.Context(), "r", ttl)
				require.NoError(t, err)
				ctx := lock.KeepAlive(t.Context())
				time.Sleep(ttl)
				require.NoError(t, ctx.Err())

				lost := time.Now()
				cluster.Lose("r")
				require.False(t, cluster.Held("r"))
				require.Positive(t, lock.Remaining(), "it can't know")
				if want == redlock.LostTakenOver {
					second, err := cluster.Locker().TryAcquire(t.Context(), "r", ttl)
					require.NoError(t, err)
					require.Greater(t, second.FencingToken(), lock.FencingToken())
				}
				<-ctx.Done()
				require.LessOrEqual(t, time.Since(lost), ttl/3)
				requireLost(t, context.Cause(ctx), want)
				require.Zero(t, lock.Remaining())
			})
		})
	}
}

// A fatalTB ends a test that uses a cluster wrongly, and keeps why.
type fatalTB struct {
	testing.TB
	said string
}

func (f *fatalTB) Fatalf(format string, args ...any) {
	f.said = fmt.Sprintf(format, args...)
	runtime.Goexit()
}

// A fault that hits nothing fails the test, which would test nothing.
func TestAFaultThatHitsNothingFailsTheTest(t *testing.T) {
	for want, use := range map[string]func(c *redlocktest.Cluster){
		"no instance 3, only 0 to 2": func(c *redlocktest.Cluster) { c.Down(3) },
		"no instance -1":             func(c *redlocktest.Cluster) { c.Forget(-1) },
		"a delay of -1ns":            func(c *redlocktest.Cluster) { c.Slow(0, -1) },
		"nobody holds \"r\"":         func(c *redlocktest.Cluster) { c.Lose("r") },
		"WithRetryDelay":             func(c *redlocktest.Cluster) { c.Locker(redlock.WithRetryDelay(0, 0)) },
		"the cluster is closed":      func(c *redlocktest.Cluster) { c.Close(); c.Locker() },
		"a cluster of 0 instances":   func(c *redlocktest.Cluster) { redlocktest.New(tbOf[c], 0) },
	} {
		tb := &fatalTB{TB: t}
		done := make(chan struct{})
		go func() {
			defer close(done)
			c := redlocktest.New(tb, 3)
			tbOf[c] = tb
			use(c)
		}()
		<-done
		require.Contains(t, tb.said, want)
	}
}

var tbOf = map[*redlocktest.Cluster]testing.TB{}

// A test that ends with its faults on, and with a lock held, leaves nothing behind,
// and does not wait for what hangs.
func TestATestEndsWithItsFaultsOn(t *testing.T) {
	start := time.Now()
	t.Run("it", func(t *testing.T) {
		cluster := redlocktest.New(t, 3)
		lock, err := cluster.Locker().TryAcquire(t.Context(), "r", ttl)
		require.NoError(t, err)
		_ = lock.KeepAlive(context.Background())
		cluster.Slow(0, time.Hour)
		cluster.Slow(1, time.Hour)
		cluster.Down(2)
		err = lock.Extend(t.Context(), ttl)
		require.False(t, errors.Is(err, redlock.ErrLost), "%v", err)
	})
	require.Less(t, time.Since(start), ttl)
}
