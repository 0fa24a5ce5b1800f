package fence_test

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"runtime"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"

	"github.com/stretchr/testify/require"

	"github.com/quorumlock/redlock/fence"
)

func TestATokenPassesIffItIsAtLeastTheLargestSeen(t *testing.T) {
	var h fence.HighWater
	marks := map[string]uint64{} // a slow oracle
	for range 10_000 {
		resource, token := fmt.Sprint(rand.IntN(5)), 1+rand.Uint64N(50)
		err := h.Check(t.Context(), resource, token)
		if token >= marks[resource] {
			require.NoError(t, err)
			marks[resource] = token
			continue
		}
		require.Equal(t, &fence.StaleError{Resource: resource, Token: token, Current: marks[resource]}, err)
	}
	counts := h.Counts()
	require.Equal(t, uint64(10_000), counts.Accepted+counts.Stale)
	require.Positive(t, counts.Stale)
}

func TestNoTokenIsRefusedAndRaisesNothing(t *testing.T) {
	var h fence.HighWater
	for _, token := range []uint64{0, 1 << 53, 1<<53 + 1, 1<<64 - 1} {
		require.ErrorIs(t, h.Check(t.Context(), "r", token), fence.ErrNoToken)
	}
	require.ErrorContains(t, h.Check(t.Context(), "", 1), "empty")
	require.NoError(t, h.Check(t.Context(), "r", 1))
	require.NoError(t, h.Check(t.Context(), "r", 1<<53-1))
	require.ErrorIs(t, h.Check(t.Context(), "r", 1<<53-2), fence.ErrStale)
	require.Equal(t, fence.Counts{Accepted: 2, Stale: 1}, h.Counts())
}

func TestAStaleErrorIsOneShortLine(t *testing.T) {
	err := &fence.StaleError{Resource: "a\nb\x00" + strings.Repeat("x", 1<<16), Token: 3, Current: 4}
	require.NotContains(t, err.Error(), "\n")
	require.Less(t, len(err.Error()), 200)
	require.ErrorIs(t, fmt.Errorf("wrapped: %w", err), fence.ErrStale)
}

func TestNoSmallerTokenWritesAfterALarger(t *testing.T) {
	var h fence.HighWater
	var applied []uint64 // guarded by nothing but h: the race detector watches
	var wg sync.WaitGroup
	var largest uint64
	for range 32 {
		tokens := make([]uint64, 100)
		for i := range tokens {
			tokens[i] = 1 + rand.Uint64N(1_000)
		}
		largest = max(largest, slices.Max(tokens))
		wg.Go(func() {
			for _, token := range tokens {
				_ = h.Do(t.Context(), "r", token, func(context.Context) error {
					applied = append(applied, token)
					runtime.Gosched() // give the others every chance
					return nil
				})
			}
		})
	}
	wg.Wait()
	require.True(t, slices.IsSorted(applied), "%v", applied)
	require.Equal(t, largest, applied[len(applied)-1])
	require.Equal(t, fence.Counts{Accepted: uint64(len(applied)), Stale: uint64(3_200 - len(applied))}, h.Counts())
}

func TestResourcesDoNotWaitForEachOther(t *testing.T) {
	var h fence.HighWater
	require.NoError(t, h.Do(t.Context(), "a", 7, func(ctx context.Context) error {
		return h.Do(ctx, "b", 1, func(context.Context) error { return nil })
	}))
}

func TestAWaiterLeavesWhenItsContextEnds(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var h fence.HighWater
		ctx, cancel := context.WithCancel(t.Context())
		hung := make(chan struct{})
		go func() {
			_ = h.Do(t.Context(), "r", 1, func(context.Context) error { <-hung; return nil })
		}()
		synctest.Wait()
		errs := make(chan error)
		go func() { errs <- h.Check(ctx, "r", 2) }()
		synctest.Wait()
		cancel()
		require.ErrorIs(t, <-errs, context.Canceled)
		close(hung)
		require.NoError(t, h.Check(t.Context(), "r", 1), "what was not accepted raises nothing")
	})
}

func TestTheMarkStaysRaisedWhateverBecomesOfTheWrite(t *testing.T) {
	var h fence.HighWater
	broken := errors.New("broken")
	require.Equal(t, broken, h.Do(t.Context(), "r", 5, func(context.Context) error { return broken }))
	require.Panics(t, func() {
		_ = h.Do(t.Context(), "r", 6, func(context.Context) error { panic("at work") })
	})
	require.ErrorIs(t, h.Check(t.Context(), "r", 5), fence.ErrStale)
	require.NoError(t, h.Check(t.Context(), "r", 6), "the turn was given back")
}

func TestForgetLetsAnyTokenInAndStillOneAtATime(t *testing.T) {
	var h fence.HighWater
	h.Forget("r") // nothing to forget
	require.NoError(t, h.Check(t.Context(), "r", 9))
	h.Forget("r")
	require.NoError(t, h.Check(t.Context(), "r", 1))

	synctest.Test(t, func(t *testing.T) {
		var h fence.HighWater
		writing, done := make(chan struct{}), make(chan error, 1)
		go func() {
			done <- h.Do(t.Context(), "r", 9, func(context.Context) error { <-writing; return nil })
		}()
		synctest.Wait()
		h.Forget("r")
		second := make(chan error, 1)
		go func() { second <- h.Check(t.Context(), "r", 1) }()
		synctest.Wait()
		require.Empty(t, second, "the write of 9 is not over")
		close(writing)
		require.NoError(t, <-done)
		require.NoError(t, <-second)
	})
}

func TestDuplicatesAreCountedAsTheApplicationReportsThem(t *testing.T) {
	var h fence.HighWater
	require.NoError(t, h.Check(t.Context(), "r", 1))
	require.NoError(t, h.Check(t.Context(), "r", 1), "a repeat and a second write look the same")
	h.CountDuplicate()
	var counter fence.Counter = &h
	require.Equal(t, fence.Counts{Accepted: 2, Duplicates: 1}, counter.Counts())
}

// What the memory of one resource costs, for the comment of HighWater.
func BenchmarkMemoryOfAResource(b *testing.B) {
	var before, after runtime.MemStats
	runtime.GC()
	runtime.ReadMemStats(&before)
	var h fence.HighWater
	for i := range b.N {
		_ = h.Check(b.Context(), fmt.Sprintf("resource-%d", i), 1)
	}
	runtime.GC()
	runtime.ReadMemStats(&after)
	b.ReportMetric(float64(after.HeapAlloc-before.HeapAlloc)/float64(b.N), "B/resource")
	runtime.KeepAlive(&h)
}
