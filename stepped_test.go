package redlock

import (
	"context"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/quorumlock/redlock/internal/redistest"
)

// A machine that slept, or whose wall clock was set forward: the window is over, and
// every timer still waits for it on the clock that stood still. The tick looks at
// both, long before a renewal would.
func TestAWallClockThatLeapsEndsAKeptLockAtTheNextTick(t *testing.T) {
	t.Parallel()
	var leap atomic.Int64
	now := func(cfg *config) error {
		cfg.now = func() time.Time {
			mono := time.Since(epoch)
			return clocks(mono+time.Duration(leap.Load()), mono)
		}
		return nil
	}
	l, err := Open(redistest.Addrs(redistest.StartN(t, 3)), fresh([]Option{now})...)
	require.NoError(t, err)
	t.Cleanup(func() { _ = l.Close() })
	const ttl = time.Minute
	k, err := l.TryAcquire(t.Context(), "r", ttl)
	require.NoError(t, err)
	ctx := k.KeepAlive(t.Context())
	eventually(t, func() bool {
		l.keeper.mu.Lock()
		defer l.keeper.mu.Unlock()
		return len(l.keeper.ends) == 1
	}, "the keeper waits for the end")
	require.Positive(t, k.Remaining())

	leap.Store(int64(2 * ttl))
	require.LessOrEqual(t, k.Remaining(), time.Duration(0))
	begin := time.Now()
	select {
	case <-ctx.Done():
	case <-time.After(ttl / renewPart):
	}
	require.Less(t, time.Since(begin), 10*maxTick)
	require.ErrorIs(t, context.Cause(ctx), errStepped)
	require.ErrorIs(t, context.Cause(ctx), ErrLost)
}
