package redlock_test

import (
	"context"
	"errors"
	"fmt"
	"net"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/quorumlock/redlock"
	"github.com/quorumlock/redlock/internal/redistest"
)

const (
	lease      = 1500 * time.Millisecond // a ttl that tests wait for
	quarantine = lease + 2*time.Second   // of a Locker that was asked for no more
	rounding   = time.Second             // what a server's uptime may be too large
	late       = 1500 * time.Millisecond // on a busy machine
)

// guarded returns a Locker on endpoints with the quarantine, once it has locked for
// ttl.
func guarded(t testing.TB, endpoints []string, ttl time.Duration, opts ...redlock.Option) *redlock.Locker {
	t.Helper()
	l, err := redlock.Open(endpoints, append([]redlock.Option{redlock.WithInstanceTimeout(patience)}, opts...)...)
	require.NoError(t, err)
	t.Cleanup(func() { _ = l.Close() })
	ctx, cancel := context.WithTimeout(t.Context(), 4*soon)
	defer cancel()
	k, err := l.Acquire(ctx, "warm", ttl)
	require.NoError(t, err)
	require.NoError(t, k.Release(ctx))
	return l
}

// hold locks r on A and B, for a client that can't reach C.
func (g *rig) hold(ttl time.Duration) *redlock.Lock {
	g.t.Helper()
	nowhere, err := redistest.FreeAddr()
	require.NoError(g.t, err)
	ours := openAt(g.t, []string{g.servers[0].Addr(), g.servers[1].Addr(), nowhere}, redlock.WithInstanceTimeout(patience))
	lock, err := ours.TryAcquire(g.t.Context(), "r", ttl)
	require.NoError(g.t, err)
	require.True(g.t, all(g.servers[:2], "r", lock.Owner()))
	return lock
}

// second asks for r until l has it, which A and C can give it when lock is over. It
// requires that lock was, and that while it was held B was in the way, not C.
func (g *rig) second(l *redlock.Locker, lock *redlock.Lock, ttl time.Duration) {
	g.t.Helper()
	inTheWay := 0
	for end := time.Now().Add(4 * soon); time.Now().Before(end); {
		next, err := l.Acquire(g.t.Context(), "r", ttl, redlock.WithMaxWait(20*time.Millisecond))
		left := lock.Remaining()
		if err == nil {
			require.LessOrEqual(g.t, left, time.Duration(0), "a second holder")
			require.Greater(g.t, next.FencingToken(), lock.FencingToken())
			require.Positive(g.t, inTheWay)
			require.NoError(g.t, next.Release(g.t.Context()))
			return
		}
		quorum, ok := errors.AsType[*redlock.QuorumError](err)
		require.True(g.t, ok)
		if left > 0 && errors.Is(err, redlock.ErrQuarantined) && quorum.Granted == 1 {
			require.ErrorContains(g.t, err, g.proxies[1].Addr()+": quarantined for ")
			inTheWay++
		}
	}
	require.Fail(g.t, "nobody gets it")
}

// counts waits until l gets a lock from B and C alone, and returns when that was.
func (g *rig) counts(l *redlock.Locker) time.Time {
	g.t.Helper()
	require.NoError(g.t, g.servers[0].Kill())
	ctx, cancel := context.WithTimeout(g.t.Context(), 2*soon)
	defer cancel()
	k, err := l.Acquire(ctx, "another", lease)
	require.NoError(g.t, err)
	now := time.Now()
	require.NoError(g.t, k.Release(ctx))
	return now
}

// upFor waits until s says that it has been up for d.
func upFor(t testing.TB, s *redistest.Server, d time.Duration) {
	t.Helper()
	require.Eventually(t, func() bool {
		info, _ := s.Do("INFO", "server")
		_, rest, _ := strings.Cut(fmt.Sprint(info), "uptime_in_seconds:")
		seconds, _, _ := strings.Cut(rest, "\r\n")
		n, err := strconv.Atoi(seconds)
		return err == nil && time.Duration(n)*time.Second >= d
	}, 4*soon, 50*time.Millisecond)
}

// Fault: a node restarted empty votes twice, and a second holder comes in while the
// first one's window is open.
func TestNoSecondHolderAfterARestart(t *testing.T) {
	t.Parallel()
	for name, opts := range map[string][]redlock.Option{
		"by default":   nil,
		"as asked for": {redlock.WithQuarantine(quarantine)},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			g := newRig(t, 3)
			others := guarded(t, g.endpoints(), lease, opts...)
			lock := g.hold(lease)
			begin := time.Now()
			require.NoError(t, g.servers[1].Restart())
			up := time.Now()
			g.second(others, lock, lease)
			counts := g.counts(others)
			require.GreaterOrEqual(t, counts.Sub(begin), quarantine-rounding)
			require.Less(t, counts.Sub(up), quarantine+late)
		})
	}
}

// Fault: a replica that missed the last write takes over. It has been up for long, so
// that its uptime says nothing of what it forgot.
func TestNoSecondHolderAfterAFailover(t *testing.T) {
	t.Parallel()
	for name, replicaFirst := range map[string]bool{
		"to a replica behind the same name":  false,
		"to a replica that was asked before": true,
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			g := newRig(t, 4, "--repl-diskless-sync-delay", "0")
			replica, b := g.servers[3], g.proxies[1]
			link := redistest.NewProxy(t, g.servers[1].Addr())
			host, port, err := net.SplitHostPort(link.Addr())
			require.NoError(t, err)
			replica.MustDo(t, "REPLICAOF", host, port)
			becomes(t, func() bool {
				info, _ := replica.Do("INFO", "replication")
				return strings.Contains(fmt.Sprint(info), "master_link_status:up")
			}, "the replica follows")
			if replicaFirst {
				b.Retarget(replica.Addr())
			}
			others := guarded(t, g.endpoints()[:3], lease)
			upFor(t, replica, quarantine+rounding)

			link.Refuse(true)
			link.Break()
			lock := g.hold(lease)
			if replicaFirst {
				_, err := others.TryAcquire(t.Context(), "r", lease)
				require.ErrorContains(t, err, "READONLY")
			}
			replica.MustDo(t, "REPLICAOF", "NO", "ONE")
			begin := time.Now()
			if !replicaFirst {
				b.Retarget(replica.Addr())
				b.Break()
			}
			require.True(t, all([]*redistest.Server{replica}, "r", ""), "it missed the lock")
			g.second(others, lock, lease)
			counts := g.counts(others)
			require.GreaterOrEqual(t, counts.Sub(begin), quarantine-late) // from before begin, where it was asked before
			require.Less(t, counts.Sub(begin), quarantine+late)
		})
	}
}

// The default knows the ttls of its own Locker alone: where others use larger ones,
// all have to set the largest.
func TestTheQuarantineMustCoverTheLargestTTLInUse(t *testing.T) {
	t.Parallel()
	const small, large = 500 * time.Millisecond, 5 * time.Second
	t.Run("by default, it does not", func(t *testing.T) {
		t.Parallel()
		g := newRig(t, 3)
		others := guarded(t, g.endpoints(), small)
		lock := g.hold(large)
		require.NoError(t, g.servers[1].Restart())
		ctx, cancel := context.WithTimeout(t.Context(), large)
		defer cancel()
		second, err := others.Acquire(ctx, "r", small)
		require.NoError(t, err)
		require.Positive(t, lock.Remaining(), "two holders")
		require.Greater(t, second.FencingToken(), lock.FencingToken(), "their tokens tell which is the newer")
	})
	t.Run("set to the largest and 2 s, it does", func(t *testing.T) {
		t.Parallel()
		g := newRig(t, 3)
		others := guarded(t, g.endpoints(), small, redlock.WithQuarantine(large+2*time.Second))
		lock := g.hold(large)
		require.NoError(t, g.servers[1].Restart())
		g.second(others, lock, small)
	})
}

// Servers that have just been started are in quarantine, too: nobody knows what they
// have forgotten.
func TestANewDeploymentWaitsOnce(t *testing.T) {
	t.Parallel()
	for _, n := range []int{1, 3} {
		t.Run(fmt.Sprintf("N=%d", n), func(t *testing.T) {
			t.Parallel()
			begin := time.Now()
			endpoints := redistest.Addrs(start(t, n))
			up := time.Now()
			told := make(chan redlock.InstanceEvent, 100)
			// The pause between two rounds is up to a minute: it ends with the quarantine.
			l, err := redlock.Open(endpoints, redlock.WithInstanceTimeout(patience), redlock.WithRetryDelay(10*time.Millisecond, time.Minute),
				redlock.WithObserver(redlock.Observer{Instance: func(e redlock.InstanceEvent) {
					if e.Change == redlock.InstanceQuarantined {
						told <- e
					}
				}}))
			require.NoError(t, err)
			defer l.Close()

			becomes(t, func() bool {
				_, err = l.TryAcquire(t.Context(), "r", lease)
				return err != nil && !slices.ContainsFunc(endpoints, func(addr string) bool {
					return !strings.Contains(err.Error(), addr+": quarantined for ")
				})
			}, "each is named, with the time left")
			require.ErrorIs(t, err, redlock.ErrNoQuorum)
			require.ErrorIs(t, err, redlock.ErrQuarantined)
			require.NotContains(t, err.Error(), "\n")
			left, ok := errors.AsType[*redlock.QuarantineError](err)
			require.True(t, ok)
			require.Positive(t, left.Left)
			require.LessOrEqual(t, left.Left, quarantine)
			require.Contains(t, err.Error(), left.Left.Round(time.Millisecond).String())

			k, err := l.Acquire(t.Context(), "r", lease)
			require.NoError(t, err)
			now := time.Now()
			require.GreaterOrEqual(t, now.Sub(begin), quarantine-rounding)
			require.Less(t, now.Sub(up), quarantine+late)
			require.NoError(t, k.Release(t.Context()))
			require.NoError(t, l.Close())
			require.Len(t, told, n, "one event for each")
			for range n {
				require.ErrorIs(t, (<-told).Err, redlock.ErrQuarantined)
			}
		})
	}
}

// A restart under a lock that is held costs the instance's vote, and not the lock; it
// gets the key back, which says nothing yet.
func TestAHeldLockSurvivesTheQuarantineOfAMinority(t *testing.T) {
	t.Parallel()
	const ttl = 2 * lease
	g := newRig(t, 3)
	extends := newEvents("extend")
	l := guarded(t, g.endpoints(), ttl, redlock.WithObserver(extends.observer()))
	lock, err := l.Acquire(t.Context(), "r", ttl)
	require.NoError(t, err)
	becomes(t, func() bool { return all(g.servers, "r", lock.Owner()) }, "all have granted")
	require.NoError(t, g.servers[1].Restart())
	require.True(t, all(g.servers[1:2], "r", ""))
	becomes(t, func() bool {
		return lock.Extend(t.Context(), ttl) == nil && all(g.servers, "r", lock.Owner())
	}, "it is back")
	for seen := false; !seen; {
		vote := extends.next(t).Votes[1]
		require.False(t, vote.Vote == "refused", "what it forgot is no loss")
		seen = errors.Is(vote.Err, redlock.ErrQuarantined)
	}
	require.NoError(t, lock.Extend(t.Context(), ttl))

	// Two of three, that can't tell.
	require.NoError(t, g.servers[2].Restart())
	for range 20 {
		err = lock.Extend(t.Context(), ttl)
		require.ErrorIs(t, err, redlock.ErrNoQuorum)
		require.NotErrorIs(t, err, redlock.ErrLost)
		if strings.Count(err.Error(), "quarantined") == 2 {
			break
		}
	}
	require.ErrorIs(t, err, redlock.ErrQuarantined)
	require.Positive(t, lock.Remaining(), "the window stays as it was")
	require.NoError(t, lock.Release(t.Context()))
}

// Where the server does not tell its uptime there is no guard, and the observer hears
// of it once.
func TestWithoutAnUptimeTheGuardIsOff(t *testing.T) {
	t.Parallel()
	for name, open := range map[string]func(*testing.T, ...redlock.Option) (*redlock.Locker, error){
		"no INFO": func(t *testing.T, opts ...redlock.Option) (*redlock.Locker, error) {
			return redlock.Open(redistest.Addrs(start(t, 3, "--rename-command", "INFO", "")), opts...)
		},
		"no right to it": func(t *testing.T, opts ...redlock.Option) (*redlock.Locker, error) {
			return redlock.Open(as(t, start(t, 3), leastPrivilege...), append(opts, redlock.WithKeyPrefix("lock:"))...)
		},
		"a ring": func(t *testing.T, opts ...redlock.Option) (*redlock.Locker, error) {
			var instances []redlock.Instance
			for _, s := range start(t, 3) {
				c := redis.NewRing(&redis.RingOptions{Addrs: map[string]string{"shard": s.Addr()}})
				t.Cleanup(func() { _ = c.Close() })
				instances = append(instances, redlock.Instance{Name: s.Addr(), Client: c})
			}
			return redlock.New(instances, opts...)
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			told := make(chan string, 1000)
			l, err := open(t, redlock.WithObserver(redlock.Observer{Instance: func(e redlock.InstanceEvent) {
				if e.Change == redlock.QuarantineOff {
					told <- e.Instance
				}
			}}))
			require.NoError(t, err)
			for range 20 {
				k, err := l.TryAcquire(t.Context(), "r", long)
				require.NoError(t, err)
				require.NoError(t, k.Release(t.Context()))
			}
			require.NoError(t, l.Close())
			close(told)
			var names []string
			for name := range told {
				names = append(names, name)
			}
			slices.Sort(names)
			require.Len(t, names, 3)
			require.Len(t, slices.Compact(names), 3, "each once")
		})
	}
}

// Clients of ours that have many connections, and try again by themselves: one call
// finds a dead connection, dials, and is granted by a server that was not there when
// it began.
func TestNoRetryOfAClientEscapesTheQuarantine(t *testing.T) {
	t.Parallel()
	servers := start(t, 3)
	var rounds struct {
		sync.Mutex
		seen []redlock.RoundEvent
	}
	var instances []redlock.Instance
	for _, s := range servers {
		c := redis.NewClient(&redis.Options{
			Addr: s.Addr(), PoolSize: 10, MaxRetries: 3, MinRetryBackoff: 20 * time.Millisecond, MaxRetryBackoff: 200 * time.Millisecond,
		})
		t.Cleanup(func() { _ = c.Close() })
		instances = append(instances, redlock.Instance{Name: s.Addr(), Client: c})
	}
	l, err := redlock.New(instances, redlock.WithInstanceTimeout(patience), redlock.WithObserver(redlock.Observer{Round: func(e redlock.RoundEvent) {
		rounds.Lock()
		defer rounds.Unlock()
		if e.Op == "acquire" {
			rounds.seen = append(rounds.seen, e)
		}
	}}))
	require.NoError(t, err)
	defer l.Close()
	k, err := l.Acquire(t.Context(), "warm", lease)
	require.NoError(t, err)
	require.NoError(t, k.Release(t.Context()))

	ctx, cancel := context.WithCancel(t.Context())
	var traffic sync.WaitGroup
	for i := range 10 {
		traffic.Go(func() {
			for ctx.Err() == nil {
				for _, in := range instances { // the pools' connections are used
					_ = in.Client.Ping(ctx).Err()
				}
				if k, err := l.TryAcquire(ctx, fmt.Sprint("r", i), lease); err == nil {
					_ = k.Release(ctx)
				}
			}
		})
	}
	defer traffic.Wait()
	defer cancel()
	votes := func(from, to time.Time) map[string]int {
		rounds.Lock()
		defer rounds.Unlock()
		n := map[string]int{}
		for _, e := range rounds.seen {
			if !e.Start.Before(from) && e.End.Before(to) {
				n[e.Votes[1].Vote]++
			}
		}
		return n
	}
	becomes(t, func() bool { return votes(time.Time{}, time.Now())["granted"] > 100 }, "it votes")
	require.NoError(t, servers[1].Kill())
	dead := time.Now()
	require.NoError(t, servers[1].Restart())
	up := time.Now()
	require.Eventually(t, func() bool { return votes(dead, time.Now())["granted"] > 0 }, 4*soon, 10*time.Millisecond, "it votes again")
	early := votes(dead, dead.Add(quarantine-rounding))
	require.Zero(t, early["granted"]+early["refused"], "%v", early)
	require.Greater(t, early["failed"], 10, "it was asked")
	require.Less(t, time.Since(up), quarantine+late)
}
