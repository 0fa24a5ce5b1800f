package interop

import (
	"context"
	"errors"
	"math/rand/v2"
	"sync/atomic"
	"testing"
	"time"

	"github.com/bsm/redislock"
	"github.com/stretchr/testify/require"

	"github.com/quorumlock/redlock"
	"github.com/quorumlock/redlock/internal/redistest"
)

// servers starts what a library can use, and returns the addresses.
func servers(t *testing.T, l library) []string {
	t.Helper()
	n := 3
	if l.single {
		n = 1
	}
	return redistest.Addrs(redistest.StartN(t, n))
}

// others runs f for each library that is not ours.
func others(t *testing.T, f func(t *testing.T, l library)) {
	for _, l := range libraries {
		if l.name != ours {
			t.Run(l.name, func(t *testing.T) { f(t, l) })
		}
	}
}

// resource returns how a resource of that library is called for us.
func (l library) resource(r string) string { return l.prefix + r }

// What one library holds, no other gets; what it gives up, another gets. What is
// given up is gone everywhere.
func TestEachLibraryExcludesUsAndIsExcluded(t *testing.T) {
	others(t, func(t *testing.T, l library) {
		addrs := servers(t, l)
		us, them := openLocker(t, addrs), l.open(t, addrs)
		for range 5 {
			lock, err := us.TryAcquire(t.Context(), l.resource("r"), ttl)
			require.NoError(t, err)
			_, err = them.try(t.Context(), "r")
			require.Error(t, err)
			require.NoError(t, lock.Extend(t.Context(), ttl), "what they tried has taken nothing away")
			require.NoError(t, lock.Release(t.Context()))

			unlock, err := them.try(t.Context(), "r")
			require.NoError(t, err)
			_, err = us.TryAcquire(t.Context(), l.resource("r"), ttl)
			require.ErrorIs(t, err, redlock.ErrTaken)
			require.NoError(t, unlock())
		}
		for _, a := range addrs {
			require.Zero(t, client(t, a).Exists(t.Context(), l.resource("r")).Val(), a)
		}
	})
}

// Who waits for a holder of another library hears of no release, and asks now and
// then; in the end it has the lock, long before the ttl is over.
func TestAWaiterGetsWhatAnotherLibraryGivesUp(t *testing.T) {
	others(t, func(t *testing.T, l library) {
		addrs := servers(t, l)
		us, them := openLocker(t, addrs), l.open(t, addrs)
		var longest time.Duration
		for range 3 {
			unlock, err := them.try(t.Context(), "r")
			require.NoError(t, err)
			got := make(chan error)
			go func() {
				lock, err := us.Acquire(t.Context(), l.resource("r"), ttl)
				if err == nil {
					err = lock.Release(t.Context())
				}
				got <- err
			}()
			time.Sleep(rand.N(500 * time.Millisecond)) // any point of its wait
			released := time.Now()
			require.NoError(t, unlock())
			require.NoError(t, <-got)
			longest = max(longest, time.Since(released))
		}
		t.Logf("after a release by %s, a waiter had the lock within %v", l.name, longest.Round(time.Millisecond))
		require.Less(t, longest, ttl/2)
	})
}

// A slot is one of the processes of a service that is migrated.
type slot struct {
	peer     peer
	resource string
	stop     chan struct{}
	ended    chan error
	taken    atomic.Int64 // how often it had the lock
}

// A site is what they must not enter together.
type site struct {
	inside  atomic.Int32
	entries atomic.Int64
}

var errTogether = errors.New("two holders at one time")

func (s *slot) run(ctx context.Context, at *site) {
	s.ended <- func() error {
		pause := time.Duration(1)
		for {
			select {
			case <-s.stop:
				return nil
			case <-time.After(rand.N(pause)):
			}
			pause = 4 * time.Millisecond
			unlock, err := s.peer.try(ctx, s.resource)
			if err != nil {
				continue // taken; that this is all, the count of entries shows
			}
			if at.inside.Add(1) != 1 {
				return errTogether
			}
			time.Sleep(rand.N(time.Millisecond)) // the work
			at.inside.Add(-1)
			if err := unlock(); err != nil {
				return err
			}
			at.entries.Add(1)
			s.taken.Add(1)
			pause = 40 * time.Millisecond // now the others
		}
	}()
}

// A service is migrated one process after the other, and back again. At no time has
// it two holders, and in every phase each process gets its turns.
func TestARollingMigrationNeverHasTwoHolders(t *testing.T) {
	const processes, turns = 3, 3
	others(t, func(t *testing.T, them library) {
		addrs := servers(t, them)
		at := &site{}
		start := func(l library) *slot {
			s := &slot{peer: l.open(t, addrs), resource: "r", stop: make(chan struct{}), ended: make(chan error, 1)}
			if l.name == ours {
				s.resource = them.resource("r")
			}
			go s.run(t.Context(), at)
			return s
		}
		end := func(s *slot) {
			close(s.stop)
			require.NoError(t, <-s.ended)
		}
		slots := make([]*slot, processes)
		phase := func() {
			before := make([]int64, processes)
			for i, s := range slots {
				before[i] = s.taken.Load()
			}
			require.Eventually(t, func() bool {
				for i, s := range slots {
					if s.taken.Load() < before[i]+turns {
						return false
					}
				}
				return true
			}, ttl, time.Millisecond)
		}
		for i := range slots {
			slots[i] = start(them)
		}
		phase()
		for _, to := range []library{named(ours), them} {
			for i := range slots {
				end(slots[i])
				slots[i] = start(to)
				phase()
			}
		}
		for _, s := range slots {
			end(s)
		}
		t.Logf("%d entries", at.entries.Load())
	})
}

// What a holder of another library has on a minority is in nobody's way, and stays:
// neither a heal nor a release of ours touches it.
func TestAKeyOfAnotherLibraryIsLeftAlone(t *testing.T) {
	addrs := redistest.Addrs(redistest.StartN(t, 3))
	us := openLocker(t, addrs)
	theirs, err := redislock.Obtain(t.Context(), client(t, addrs[0]), "r", ttl, nil)
	require.NoError(t, err)
	lock, err := us.TryAcquire(t.Context(), "r", ttl)
	require.NoError(t, err)
	require.NoError(t, lock.Extend(t.Context(), ttl))
	require.NoError(t, lock.Release(t.Context()))
	left, err := theirs.TTL(t.Context())
	require.NoError(t, err)
	require.Positive(t, left)
}

// A holder of another library has no fencing token: between two of ours, tokens
// still grow.
func TestTokensGrowAcrossHoldersOfAnotherLibrary(t *testing.T) {
	addrs := redistest.Addrs(redistest.StartN(t, 3))
	us, them := openLocker(t, addrs), openRedsync(t, addrs)
	var last uint64
	for range 20 {
		lock, err := us.TryAcquire(t.Context(), "r", ttl)
		require.NoError(t, err)
		require.Greater(t, lock.FencingToken(), last)
		last = lock.FencingToken()
		require.NoError(t, lock.Release(t.Context()))
		unlock, err := them.try(t.Context(), "r")
		require.NoError(t, err)
		require.NoError(t, unlock())
	}
}
