package redlock_test

import (
	"testing"

	"github.com/alicebob/miniredis/v2"
	"github.com/stretchr/testify/require"

	"github.com/quorumlock/redlock"
	"github.com/quorumlock/redlock/fence"
)

// A server whose clock jumps ahead expires its keys early. One of them costs
// nothing; when a majority does, there is a second holder, of which the first one
// can't know, and its token tells the resource who is the newer.
func TestServersWhoseClocksJumpMakeASecondHolderWithALargerToken(t *testing.T) {
	servers := []*miniredis.Miniredis{miniredis.RunT(t), miniredis.RunT(t), miniredis.RunT(t)}
	var endpoints []string
	for _, s := range servers {
		endpoints = append(endpoints, s.Addr())
	}
	ours, others := openAt(t, endpoints), openAt(t, endpoints)
	lock, err := ours.TryAcquire(t.Context(), "r", long)
	require.NoError(t, err)
	for _, s := range servers {
		becomes(t, func() bool { return s.Exists("r") }, "all have granted")
	}

	servers[0].FastForward(long)
	require.False(t, servers[0].Exists("r"))
	_, err = others.TryAcquire(t.Context(), "r", long)
	require.ErrorIs(t, err, redlock.ErrTaken)
	require.NoError(t, lock.Extend(t.Context(), long))

	var second *redlock.Lock
	becomes(t, func() bool {
		servers[0].FastForward(long) // it may have been given the key back
		servers[1].FastForward(long)
		second, err = others.TryAcquire(t.Context(), "r", long)
		return err == nil
	}, "two of three are free")
	require.Greater(t, lock.Remaining(), long/2, "the first one believes in its own")
	require.Greater(t, second.FencingToken(), lock.FencingToken())
	var guard fence.HighWater
	require.NoError(t, guard.Check(t.Context(), "r", second.FencingToken()))
	require.ErrorIs(t, guard.Check(t.Context(), "r", lock.FencingToken()), fence.ErrStale)
	requireLost(t, lock.Extend(t.Context(), long), redlock.LostTakenOver)
	require.NoError(t, second.Release(t.Context()))
}
