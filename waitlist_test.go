package redlock

import (
	"context"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/quorumlock/redlock/internal/redistest"
)

// scripts returns how many scripts s has run.
func scripts(t *testing.T, s *redistest.Server) int {
	t.Helper()
	stats, _ := s.MustDo(t, "INFO", "commandstats").(string)
	return calls(stats, "evalsha")
}

// queued returns how many callers wait for resource.
func queued(l *Locker, resource string) int {
	l.waitlists.mu.Lock()
	defer l.waitlists.mu.Unlock()
	n := l.waitlists.of[resource]
	if n == nil {
		return 0
	}
	return n.waiters.Len()
}

func TestAHandOverIsOneScriptOnEachInstance(t *testing.T) {
	t.Parallel()
	servers := redistest.StartN(t, 3)
	l := opened(t, redistest.Addrs(servers))
	warmUp(t, l)
	const waiters, each = 64, 20
	begin := scripts(t, servers[0])
	var holders, overlaps atomic.Int32
	var wg sync.WaitGroup
	start := time.Now()
	for range waiters {
		wg.Go(func() {
			for range each {
				k, err := l.Acquire(t.Context(), "r", time.Minute)
				if err != nil {
					t.Error(err)
					return
				}
				if holders.Add(1) > 1 {
					overlaps.Add(1)
				}
				holders.Add(-1)
				if err := k.Release(t.Context()); err != nil {
					t.Error(err)
				}
			}
		})
	}
	wg.Wait()
	took := time.Since(start)
	require.Zero(t, overlaps.Load())
	n := scripts(t, servers[0]) - begin
	t.Logf("%d scripts for %d locks, %v each", n, waiters*each, took/(waiters*each))
	require.Less(t, float64(n), 2.2*waiters*each)
	require.Zero(t, l.waitlists.count.Load())
}

func TestWaitersAreServedInTheirOrder(t *testing.T) {
	t.Parallel()
	l := opened(t, redistest.Addrs(redistest.StartN(t, 3)))
	k, err := l.Acquire(t.Context(), "r", time.Minute)
	require.NoError(t, err)
	const waiters = 20
	order := make(chan int, waiters)
	var wg sync.WaitGroup
	for i := range waiters {
		wg.Go(func() {
			k, err := l.Acquire(t.Context(), "r", time.Minute)
			if err != nil {
				t.Error(err)
				return
			}
			order <- i
			_ = k.Release(t.Context())
		})
		eventually(t, func() bool { return queued(l, "r") == i+1 }, "it waits")
	}
	require.NoError(t, k.Release(t.Context()))
	wg.Wait()
	for i := range waiters {
		require.Equal(t, i, <-order)
	}
}

func TestAWaiterThatGivesUpIsOffTheListAtOnce(t *testing.T) {
	t.Parallel()
	l := opened(t, redistest.Addrs(redistest.StartN(t, 3)))
	k, err := l.Acquire(t.Context(), "r", time.Minute)
	require.NoError(t, err)
	var wg sync.WaitGroup
	var cancels []context.CancelFunc
	errs := make([]error, 5)
	for i := range 5 {
		ctx, cancel := context.WithCancel(t.Context())
		cancels = append(cancels, cancel)
		wg.Go(func() {
			var k *Lock
			if k, errs[i] = l.Acquire(ctx, "r", time.Minute); errs[i] == nil {
				errs[i] = k.Release(t.Context())
			}
		})
		eventually(t, func() bool { return queued(l, "r") == i+1 }, "it waits")
	}
	for n, i := range []int{0, 3, 1} {
		cancels[i]()
		eventually(t, func() bool { return queued(l, "r") == 4-n }, "it has left")
	}
	require.NoError(t, k.Release(t.Context()))
	wg.Wait()
	for i, err := range errs {
		if i == 2 || i == 4 {
			require.NoError(t, err)
			continue
		}
		require.ErrorIs(t, err, context.Canceled)
		require.ErrorIs(t, err, ErrTaken)
	}
	for _, cancel := range cancels {
		cancel()
	}
}

// A caller whose patience ends while others have their chance gets an answer of the
// instances like everybody else, not neither lock nor error. (On a busy machine the
// answer may be that they took too long.)
func TestWhoWaitsLessThanOthersAreGivenStillAsks(t *testing.T) {
	t.Parallel()
	l := opened(t, redistest.Addrs(redistest.StartN(t, 3)))
	warmUp(t, l)
	for range 20 {
		l.waitlists.remember("r", l.now().Add(time.Minute))
		k, err := l.Acquire(t.Context(), "r", time.Minute, WithMaxWait(time.Millisecond))
		if err != nil {
			require.Nil(t, k)
			var votes *QuorumError
			require.ErrorAs(t, err, &votes)
			continue
		}
		require.NoError(t, k.Release(t.Context()))
	}
	require.Zero(t, l.waitlists.count.Load())
}
