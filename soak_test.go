package redlock_test

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/quorumlock/redlock"
	"github.com/quorumlock/redlock/internal/redistest"
)

// Pooled connections let a release overtake the acquire that it belongs to, and
// leave an orphan behind: 10 to 170 in 100 locks in other libraries. One queue
// for each instance leaves none.
func TestNoOrphanAfter50000Locks(t *testing.T) {
	l, servers := open(t, 3)
	const goroutines, locks = 64, 50_000
	var wg sync.WaitGroup
	var failures atomic.Int32
	for g := range goroutines {
		wg.Go(func() {
			for i := range locks/goroutines + 1 {
				k, err := l.TryAcquire(t.Context(), fmt.Sprint("r", g, "-", i%100), time.Minute)
				if err != nil || k.Release(t.Context()) != nil {
					failures.Add(1)
				}
			}
		})
	}
	wg.Wait()
	require.Zero(t, failures.Load())
	requireNoKeys(t, servers)
}

// soakTime is how long TestSoak runs; REDLOCK_SOAK=5m makes it longer.
func soakTime(t *testing.T) time.Duration {
	text := os.Getenv("REDLOCK_SOAK")
	if text == "" {
		return 4 * time.Second
	}
	d, err := time.ParseDuration(text)
	require.NoError(t, err)
	return d
}

// A holder is who is inside a resource, as the test sees it.
type holder struct {
	mu    sync.Mutex
	lock  *redlock.Lock
	token uint64
}

// enter fails if somebody else is inside and still has validity left.
func (h *holder) enter(k *redlock.Lock) error {
	h.mu.Lock()
	defer h.mu.Unlock()
	if k.FencingToken() <= h.token {
		return fmt.Errorf("token %d after %d", k.FencingToken(), h.token)
	}
	// The new lock first: the old one may end between the two looks.
	if left := k.Remaining(); left > 0 && h.lock.Remaining() > 0 {
		return fmt.Errorf("two holders: %v and %v left", left, h.lock.Remaining())
	}
	h.lock, h.token = k, k.FencingToken()
	return nil
}

// One instance after the other fails in every way that a test can bring about,
// and comes back; clients lock, extend, wait, give up and forget. No two hold one
// resource, tokens only grow, and when all is well again nothing is left behind.
func TestSoak(t *testing.T) {
	const lease = 400 * time.Millisecond
	// They forget nothing when they are killed. One that does would be the end of
	// a lock that only a bare majority held.
	servers := redistest.StartN(t, 5, "--appendonly", "yes", "--appendfsync", "always")
	proxies, endpoints := redistest.NewProxies(t, servers)
	ctx, cancel := context.WithTimeout(t.Context(), soakTime(t))
	defer cancel()

	resources := make([]holder, 20)
	var acquired, lost, other atomic.Int64
	var wg sync.WaitGroup
	for range 3 {
		l := openOn(t, endpoints)
		for range 12 {
			wg.Go(func() {
				for ctx.Err() == nil {
					i := rand.N(len(resources))
					k, err := l.Acquire(ctx, fmt.Sprint("r", i), lease, redlock.WithMaxWait(lease))
					if err != nil {
						if !errors.Is(err, redlock.ErrTaken) && !errors.Is(err, redlock.ErrNoQuorum) &&
							!errors.Is(err, redlock.ErrExpired) && ctx.Err() == nil {
							t.Errorf("acquire: %v", err)
						}
						other.Add(1)
						continue
					}
					acquired.Add(1)
					if err := resources[i].enter(k); err != nil {
						t.Error(err)
					}
					switch rand.N(8) {
					case 0: // forgotten
						continue
					case 1, 2:
						short, cancel := context.WithTimeout(ctx, time.Duration(rand.N(5_000_000)))
						_ = k.Extend(short, lease)
						cancel()
					case 3:
						_ = k.Extend(ctx, lease)
					}
					if err := k.Release(ctx); errors.Is(err, redlock.ErrLost) {
						lost.Add(1)
					}
				}
			})
		}
	}

	faults := 0
	for ctx.Err() == nil {
		i := rand.N(len(servers))
		s, p := servers[i], proxies[i]
		wait := func() {
			select {
			case <-ctx.Done():
			case <-time.After(time.Duration(rand.N(200)) * time.Millisecond):
			}
		}
		switch rand.N(8) {
		case 0:
			require.NoError(t, s.Pause())
			wait()
			require.NoError(t, s.Resume())
		case 1:
			require.NoError(t, s.Kill())
			wait()
			require.NoError(t, s.Restart())
		case 2:
			p.Break()
			wait()
		case 3:
			p.SwallowReplies(true)
			wait()
			p.SwallowReplies(false)
			p.Break()
		case 4:
			p.HoldRequests(true)
			wait()
			p.Break()
			p.HoldRequests(false)
		case 5:
			p.Delay(20 * time.Millisecond)
			wait()
			p.Delay(0)
		case 6:
			p.DuplicateRequests(true)
			wait()
			p.DuplicateRequests(false)
		case 7:
			if _, err := s.Do("SCRIPT", "FLUSH"); err != nil {
				require.ErrorContains(t, err, "LOADING") // after minutes a restart takes a while
			}
			wait()
		}
		faults++
	}
	wg.Wait()
	t.Logf("%d acquired, %d not, %d lost, %d faults", acquired.Load(), other.Load(), lost.Load(), faults)
	require.Greater(t, acquired.Load(), 5*int64(faults), "too little happened")
	require.Greater(t, faults, 3)
	requireNoKeys(t, servers)
}
