package redlock

import (
	"context"
	"fmt"
	"slices"
	"strings"
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
		return n != nil && l.waitlists.majority(l.waitlists.hears) && !n.free && !n.first().asking
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

// Instances that granted the lock to somebody else each are a split vote. Nobody has it,
// so nobody will release it: those that wait have to ask. One grant leaves one fence.
func TestASplitVoteIsNoReasonToStopAsking(t *testing.T) {
	for _, c := range []struct {
		votes  ballot
		fences []uint64
		held   bool
	}{
		{ballot{refused, refused, refused}, []uint64{7, 7, 7}, true},
		{ballot{refused, pending, refused}, []uint64{7, 0, 7}, true},
		{ballot{refused, refused, refused}, []uint64{9, 7, 7}, true},
		{ballot{refused, refused, refused}, []uint64{9, 8, 7}, false},
		{ballot{refused, refused, pending}, []uint64{9, 7, 7}, false},
		{ballot{refused, granted, failed}, []uint64{7, 7, 7}, false},
		{ballot{refused, refused, refused}, []uint64{0, 0, 0}, false}, // there are no fences
	} {
		l := &Locker{instances: []*instance{{}, {}, {}}}
		r := &round{locker: l, lock: &Lock{}, votes: c.votes, fences: c.fences, leases: make([]int64, 3), errs: make([]error, 3), tally: c.votes.tally()}
		n := &waitlist{}
		n.countLocked(r.quorumError(ErrTaken))
		require.Equal(t, c.held && !slices.Contains(c.votes, granted), n.settled, "%+v", c)
	}
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
	s, _ := lists(t, 1)
	s.locker.instances = make([]*instance, 3)
	n := s.of["r"]
	for _, m := range []struct {
		from  int
		text  string
		woken bool
	}{
		{2, "now FIRST r", false},
		{0, "now SECOND r", false},
		{0, "now SECOND r", false},
		{2, "later SECOND r", false},
		{1, "now SECOND other", false},
		{1, "now SECOND r", true},
	} {
		require.Equal(t, strings.HasSuffix(m.text, "other"), s.tell(m.text, m.from), "somebody waits")
		require.Equal(t, m.woken, n.woken, "%+v", m)
	}
	require.NotNil(t, n.later, "one is enough to look a little later")
	require.False(t, n.looks)
	n.later.Stop()
}

// A release that comes between a refusal and the beginning of the list would be
// waited for in vain.
func TestAMessageThatComesBeforeTheListIsNotMissed(t *testing.T) {
	s, _ := lists(t, 0)
	s.locker.instances = make([]*instance, 3)
	join := func(start time.Time) bool {
		w := s.join(t.Context(), &request{resource: "r", start: start}, true, nil)
		woken := s.of["r"].woken
		require.True(t, s.leave(w))
		return woken
	}
	start := s.locker.now()
	require.False(t, join(start))
	require.True(t, s.tell("now A r", 0), "nobody waits")
	require.True(t, join(start))
	require.False(t, join(start), "that is over")
	s.tell("now B r", 0)
	require.False(t, join(s.locker.now().Add(time.Second)), "it was released before")
	s.hear(0, true)
	s.hear(1, true)
	require.True(t, join(start), "it was in no queue when it asked")
	for i := range 2 * maxAfter {
		s.tell(fmt.Sprint("now C ", i), 0)
	}
	require.LessOrEqual(t, len(s.missed), maxAfter+1)
}

// The queue of a resource is a key, which no other resource may have.
func TestNoResourceHasTheShapeOfAQueue(t *testing.T) {
	t.Parallel()
	l := opened(t, redistest.Addrs(redistest.StartN(t, 1)), WithKeyPrefix("lock:"))
	for _, resource := range []string{"{}:waiting", "r{}:waiting"} {
		requireNoLock(t, l, t.Context(), resource, time.Second, "has the shape of a key of those that wait")
	}
}
