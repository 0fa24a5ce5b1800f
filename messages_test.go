package redlock

import (
	"context"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/quorumlock/redlock/internal/redistest"
)

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

// listening returns once a caller of l waits for resource, and a majority tells it of
// releases.
func listening(t *testing.T, l *Locker, resource string) {
	t.Helper()
	eventually(t, func() bool {
		l.waitlists.mu.Lock()
		defer l.waitlists.mu.Unlock()
		n := l.waitlists.of[resource]
		return n != nil && l.waitlists.majority(n.hears) && !n.free && !n.first().asking
	}, "it listens")
}

// quiet returns once nothing is on its way to an instance.
func quiet(t *testing.T, l *Locker) {
	t.Helper()
	for _, in := range l.instances {
		eventually(t, func() bool {
			in.mu.Lock()
			defer in.mu.Unlock()
			return len(in.queue) == 0 && in.sentAt.IsZero()
		}, "all is answered")
	}
}

// unhurried is a pause between rounds that no test outlasts: who gets the lock was told
// that it is free.
var unhurried = WithRetryDelay(time.Minute, time.Minute)

// waiterOn returns a channel for the lock that a caller of l waits for.
func waiterOn(t *testing.T, l *Locker, resource string) <-chan *Lock {
	t.Helper()
	got := make(chan *Lock, 1)
	go func() {
		k, err := l.Acquire(t.Context(), resource, time.Minute)
		if err != nil {
			t.Error(err)
		}
		got <- k
	}()
	return got
}

func requireAcquired(t *testing.T, got <-chan *Lock) {
	t.Helper()
	select {
	case k := <-got:
		require.NoError(t, k.Release(t.Context()))
	case <-time.After(inTime):
		require.Fail(t, "it still waits")
	}
}

// One instance each that granted the lock to somebody else is a split vote. Nobody has
// it, so nobody will release it: those that wait have to ask.
func TestASplitVoteIsNoReasonToStopAsking(t *testing.T) {
	t.Parallel()
	servers := redistest.StartN(t, 3)
	l, holder := opened(t, redistest.Addrs(servers), unhurried), opened(t, redistest.Addrs(servers))
	k, err := holder.TryAcquire(t.Context(), "r", time.Minute)
	require.NoError(t, err)
	for _, s := range servers {
		eventually(t, func() bool { return s.MustDo(t, "EXISTS", "r") == int64(1) }, "it is granted everywhere")
	}
	got := waiterOn(t, l, "r")
	listening(t, l, "r")
	look := func() (told int, settled bool) {
		l.waitlists.mu.Lock()
		defer l.waitlists.mu.Unlock()
		n := l.waitlists.of["r"]
		if n == nil {
			return 0, false
		}
		for _, taker := range n.takers {
			if taker != "" {
				told++
			}
		}
		return told, n.settled
	}
	for i, taker := range []string{"t A", "t B", "t C"} {
		eventually(t, func() bool {
			servers[i].MustDo(t, "PUBLISH", "r", taker)
			told, _ := look()
			return told == i+1
		}, "instance %d has told", i)
		_, settled := look()
		require.False(t, settled)
	}
	servers[0].MustDo(t, "PUBLISH", "r", "t C")
	eventually(t, func() bool { _, settled := look(); return settled }, "two of three granted it to the same")
	require.NoError(t, k.Release(t.Context()))
	requireAcquired(t, got)
}

func TestALostRoundCountsOnlyIfOneHoldsTheLock(t *testing.T) {
	for _, c := range []struct{ granted, refused, want int }{{0, 3, 1}, {0, 2, 1}, {1, 2, 0}, {1, 1, 0}, {0, 1, 0}} {
		n := &waitlist{}
		n.countLocked(&QuorumError{Instances: 3, Needed: 2, Granted: c.granted, Refused: c.refused})
		require.Equal(t, c.want, n.lost, "%+v", c)
	}
}

// A lock that a majority granted and that nobody got, as its caller gave up or the
// source of its token failed, was in the way of others, like any other.
func TestALockThatNobodyGotWakesWhoWaits(t *testing.T) {
	t.Parallel()
	servers := redistest.StartN(t, 3)
	source := tokenFunc(func(ctx context.Context, _ string) (uint64, error) {
		<-ctx.Done()
		return 0, ctx.Err()
	})
	l, gives := opened(t, redistest.Addrs(servers), unhurried), opened(t, redistest.Addrs(servers), WithFencing(source))
	warmUp(t, l)
	ctx, giveUp := context.WithCancel(t.Context())
	ended := make(chan error)
	go func() {
		_, err := gives.TryAcquire(ctx, "r", time.Minute)
		ended <- err
	}()
	for _, s := range servers { // all of them: the waiter must find no majority that is free
		eventually(t, func() bool { return s.MustDo(t, "EXISTS", "r") == int64(1) }, "it is granted")
	}
	got := waiterOn(t, l, "r")
	listening(t, l, "r")
	giveUp()
	require.ErrorIs(t, <-ended, context.Canceled)
	requireAcquired(t, got)
}

func TestALockThatEndsWakesWhoWaitsHere(t *testing.T) {
	t.Parallel()
	servers := redistest.StartN(t, 3)
	var clock shiftedClock
	l := opened(t, redistest.Addrs(servers), unhurried, clock.option)
	ends := map[string]func(*Lock){
		"lost": func(k *Lock) {
			for _, s := range servers {
				s.MustDo(t, "DEL", "r")
			}
			require.ErrorIs(t, k.Extend(t.Context(), time.Minute), ErrLost)
		},
		"released late": func(k *Lock) {
			quiet(t, l) // what is on its way would have been so for a minute
			clock.set(time.Minute)
			require.ErrorIs(t, k.Release(t.Context()), ErrLost)
			clock.set(0)
		},
	}
	for name, end := range ends {
		t.Run(name, func(t *testing.T) {
			k, err := l.TryAcquire(t.Context(), "r", time.Minute)
			require.NoError(t, err)
			got := waiterOn(t, l, "r")
			listening(t, l, "r")
			end(k)
			requireAcquired(t, got)
		})
	}
}

// What one instance tells of one release and another of the next is no majority: the
// caller would ask too early, and wait in vain for what it has counted already.
func TestMessagesOfTwoReleasesAreNotTakenForOne(t *testing.T) {
	t.Parallel()
	servers := redistest.StartN(t, 3)
	l, holder := opened(t, redistest.Addrs(servers), unhurried), opened(t, redistest.Addrs(servers))
	_, err := holder.TryAcquire(t.Context(), "r", time.Minute)
	require.NoError(t, err)
	for _, s := range servers {
		eventually(t, func() bool { return s.MustDo(t, "EXISTS", "r") == int64(1) }, "it is granted everywhere")
	}
	got := waiterOn(t, l, "r")
	listening(t, l, "r")
	tells := func(i int, message string) {
		eventually(t, func() bool { return servers[i].MustDo(t, "PUBLISH", "r", message) != int64(0) }, "it listens to %d", i)
	}
	tells(2, "1 SOMEBODY FIRST")
	tells(0, "1 SOMEBODY SECOND")
	listening(t, l, "r") // it has asked, if it was to
	for _, s := range servers {
		s.MustDo(t, "DEL", "r")
	}
	tells(1, "1 SOMEBODY SECOND")
	requireAcquired(t, got)
}
