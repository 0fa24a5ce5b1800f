package redlock_test

import (
	"context"
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/quorumlock/redlock"
	"github.com/quorumlock/redlock/internal/redistest"
)

// What becomes of a lock that is kept alive while instances lose it.

// openGuarded returns a Locker with the default quarantine, and a lock of ttl that all
// servers have granted, with the renewals that keep it alive.
func openGuarded(t *testing.T, servers []*redistest.Server, ttl time.Duration) (*redlock.Lock, context.Context, events) {
	t.Helper()
	extends := newEvents("extend")
	l, err := redlock.Open(redistest.Addrs(servers), redlock.WithObserver(extends.observer()))
	require.NoError(t, err)
	t.Cleanup(func() { _ = l.Close() })
	k, err := l.Acquire(t.Context(), "r", ttl) // waits until the quarantine of their start is over
	require.NoError(t, err)
	becomes(t, func() bool { return all(servers, "r", k.Owner()) }, "all have granted")
	return k, k.KeepAlive(t.Context()), extends
}

// vote returns how instance i voted.
func vote(e redlock.RoundEvent, i int) string { return e.Votes[i].Vote }

// awaitVote waits for a renewal that instance i voted so on.
func awaitVote(t *testing.T, ctx context.Context, extends events, i int, want string) redlock.RoundEvent {
	t.Helper()
	for {
		select {
		case e := <-extends.ch:
			if vote(e, i) == want {
				return e
			}
		case <-ctx.Done():
			require.NoError(t, context.Cause(ctx))
		}
	}
}

// Each restart forgets everything. An instance gets the key back at once, and counts
// again after the quarantine: from then on the lock can do without another one.
func TestRestartsOneAfterAnotherDoNotCostTheLock(t *testing.T) {
	t.Parallel()
	servers := start(t, 3)
	k, ctx, extends := openGuarded(t, servers, steady)
	for i, s := range servers {
		begin := time.Now()
		require.NoError(t, s.Restart())
		becomes(t, func() bool { return all(servers[i:i+1], "r", k.Owner()) || ctx.Err() != nil }, "it gets the key back")
		require.NoError(t, context.Cause(ctx))
		e := awaitVote(t, ctx, extends, i, "failed")
		for !errors.Is(e.Votes[i].Err, redlock.ErrQuarantined) {
			e = awaitVote(t, ctx, extends, i, "failed")
		}
		awaitVote(t, ctx, extends, i, "granted")
		// The default quarantine is the largest ttl, and two seconds, counted from the
		// beginning of the second in which the server started.
		require.Greater(t, time.Since(begin), steady+time.Second)
		require.Less(t, time.Since(begin), steady+2*time.Second+soon)
		t.Logf("%s counts again after %v", s.Addr(), time.Since(begin))
	}
	require.Positive(t, k.Remaining())
	require.NoError(t, k.Release(t.Context()))
}

// Closer together, two of three do not count at one time: then nobody can tell whether
// the lock is still ours, and the cause says why.
func TestRestartsTooCloseTogetherEndTheLock(t *testing.T) {
	t.Parallel()
	servers := start(t, 3)
	k, ctx, _ := openGuarded(t, servers, steady)
	require.NoError(t, servers[0].Restart())
	becomes(t, func() bool { return all(servers[:1], "r", k.Owner()) }, "it gets the key back")
	require.NoError(t, ctx.Err())
	require.NoError(t, servers[1].Restart())
	becomes(t, func() bool { return ctx.Err() != nil }, "the lock is lost")
	requireCause(t, ctx, redlock.LostNoQuorum)
	cause := context.Cause(ctx)
	require.ErrorIs(t, cause, redlock.ErrQuarantined)
	quarantine, ok := errors.AsType[*redlock.QuarantineError](cause)
	require.True(t, ok)
	require.Positive(t, quarantine.Left)
	require.LessOrEqual(t, quarantine.Left, steady+2*time.Second)
	require.ErrorContains(t, cause, servers[0].Addr()+": quarantined for ")
	requireLost(t, k.Release(t.Context()), redlock.LostNoQuorum)
	t.Log(cause)
}

// An instance that lost the key gets it back only after a renewal that a majority
// confirmed.
func TestARenewalHealsOnlyAfterItsMajority(t *testing.T) {
	t.Parallel()
	g := newRig(t, 3)
	l := g.open()
	warm(t, l, g.servers)
	k, err := l.Acquire(t.Context(), "r", 6*time.Second)
	require.NoError(t, err)
	becomes(t, func() bool { return all(g.servers, "r", k.Owner()) }, "all have granted")
	ctx := k.KeepAlive(t.Context())

	// One has lost it, another one hangs: one confirms, and that is no majority.
	g.proxies[1].HoldRequests(true)
	remove(t, g.servers[:1], "r")
	becomes(t, func() bool { return strings.Count(g.of(0, k.Owner()), "e") >= 2 }, "it is renewed in vain")
	require.NotContains(t, g.of(0, k.Owner()), "h")
	require.True(t, all(g.servers[:1], "r", ""))
	require.NoError(t, context.Cause(ctx))

	g.proxies[1].HoldRequests(false)
	becomes(t, func() bool { return all(g.servers, "r", k.Owner()) || ctx.Err() != nil }, "it gets the key back")
	require.NoError(t, context.Cause(ctx))
	require.Contains(t, g.of(0, k.Owner()), "eh")
	require.NotContains(t, g.of(1, k.Owner())+g.of(2, k.Owner()), "h", "the others have not lost it")
	require.NoError(t, k.Release(t.Context()))
	requireNoOrphans(t, g.servers)
}

func TestRenewalsLeaveAForeignKeyAlone(t *testing.T) {
	t.Parallel()
	g := newRig(t, 3)
	extends := newEvents("extend")
	l := g.open(redlock.WithObserver(extends.observer()))
	warm(t, l, g.servers)
	k, err := l.Acquire(t.Context(), "r", steady)
	require.NoError(t, err)
	becomes(t, func() bool { return all(g.servers, "r", k.Owner()) }, "all have granted")
	occupy(t, g.servers[2:], "r", "somebody else")
	ctx := k.KeepAlive(t.Context())
	for range 3 {
		e := awaitVote(t, ctx, extends, 2, "refused")
		require.True(t, e.Won)
		require.True(t, all(g.servers[2:], "r", "somebody else"))
	}
	require.NotContains(t, g.of(2, k.Owner()), "h")
	left, _ := g.servers[2].MustDo(t, "PTTL", "r").(int64)
	require.Greater(t, left, int64(30_000), "its expiry is left alone, too")

	// When it is gone, the instance is ours again.
	remove(t, g.servers[2:], "r")
	becomes(t, func() bool { return all(g.servers, "r", k.Owner()) }, "it gets the key back")
	require.NoError(t, context.Cause(ctx))
	require.NoError(t, k.Release(t.Context()))
	requireNoOrphans(t, g.servers)
}
