package redlock_test

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/quorumlock/redlock"
	"github.com/quorumlock/redlock/internal/redistest"
)

const brief = 300 * time.Millisecond // a ttl

// requireCause requires that ctx has ended because the lock was lost for reason.
func requireCause(t *testing.T, ctx context.Context, reason redlock.LostReason) {
	t.Helper()
	require.Error(t, ctx.Err())
	requireLost(t, context.Cause(ctx), reason)
}

func TestAKeptLockOutlivesItsTTL(t *testing.T) {
	t.Parallel()
	l, servers := open(t, 3)
	k, err := l.TryAcquire(t.Context(), "r", brief)
	require.NoError(t, err)
	ctx := k.KeepAlive(t.Context())
	select {
	case <-ctx.Done():
		require.NoError(t, context.Cause(ctx))
	case <-time.After(5 * brief): // the time is what is tried
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
			k, err := l.TryAcquire(t.Context(), "r", 3*brief)
			require.NoError(t, err)
			ctx := k.KeepAlive(t.Context())
			for _, s := range servers[:2] {
				require.NoError(t, strike(s))
			}
			until := k.ValidUntil()
			<-ctx.Done()
			at := time.Now()
			requireCause(t, ctx, redlock.LostNoQuorum)
			var votes *redlock.QuorumError
			require.True(t, errors.As(context.Cause(ctx), &votes), context.Cause(ctx))
			require.LessOrEqual(t, k.Remaining(), time.Duration(0))
			require.WithinRange(t, at, until.Add(-50*time.Millisecond), until.Add(20*time.Millisecond)) // TestLosses looks closer
			requireLost(t, k.Extend(t.Context(), brief), redlock.LostNoQuorum)
			requireLost(t, k.Release(t.Context()), redlock.LostNoQuorum)
			t.Log(context.Cause(ctx))
		})
	}
}

func TestMaxHoldEndsAKeptLock(t *testing.T) {
	t.Parallel()
	l, servers := open(t, 3)
	k, err := l.TryAcquire(t.Context(), "r", brief, redlock.WithMaxHold(4*brief))
	require.NoError(t, err)
	begin := time.Now()
	ctx := k.KeepAlive(t.Context())
	<-ctx.Done()
	requireCause(t, ctx, redlock.LostMaxHold)
	require.InDelta(t, (4 * brief).Seconds(), time.Since(begin).Seconds(), 0.05)
	becomes(t, func() bool { return servers[0].MustDo(t, "EXISTS", "r") == int64(0) }, "it is released")
}

func TestKeepAliveEndsWithItsContext(t *testing.T) {
	t.Parallel()
	l, _ := open(t, 3)
	k, err := l.TryAcquire(t.Context(), "r", brief)
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
	case <-time.After(2 * brief): // the time is what is tried
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
