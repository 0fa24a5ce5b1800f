package redlock

import (
	"context"
	"math"
	"math/big"
	"math/rand/v2"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
)

// retryDelays are bounds that WithRetryDelay takes.
var retryDelays = []struct{ least, most time.Duration }{
	{1, 1},
	{1, 2},
	{1, time.Minute},
	{10 * time.Millisecond, 250 * time.Millisecond},
	{10 * time.Millisecond, 10 * time.Millisecond},
	{time.Second, time.Minute},
	{10 * time.Second, time.Minute},
	{time.Minute - 1, time.Minute},
	{time.Minute, time.Minute},
}

var roundNumbers = []int{0, 1, 2, 5, 10, 20, 25, 26, 27, 28, 29, 30, 31, 62, 63, 64, 65, 1000, math.MaxInt32, math.MaxInt}

func TestBackoffStaysWithinItsBounds(t *testing.T) {
	for _, d := range retryDelays {
		c := defaults()
		require.NoError(t, WithRetryDelay(d.least, d.most)(&c))
		for _, n := range roundNumbers {
			for range 50 {
				got := backoff(n, d.least, d.most, rand.N[time.Duration])
				require.GreaterOrEqual(t, got, d.least, "round %d of %v", n, d)
				require.LessOrEqual(t, got, d.most, "round %d of %v", n, d)
			}
		}
	}
}

// The bound doubles with each round until it is at most, and stays there: also in
// rounds in which the doubled one does not fit a Duration any more.
func TestBackoffGrowsUntilItsEnd(t *testing.T) {
	for _, d := range retryDelays {
		for _, n := range roundNumbers {
			bound := int64(d.most)
			if n < 1000 {
				doubled := new(big.Int).Lsh(big.NewInt(int64(d.least)), uint(n)+1)
				if doubled.Cmp(big.NewInt(bound)) < 0 {
					bound = doubled.Int64()
				}
			}
			var longest time.Duration
			for range 200 {
				longest = max(longest, backoff(n, d.least, d.most, rand.N[time.Duration]))
			}
			require.LessOrEqual(t, int64(longest), bound, "round %d of %v", n, d)
			// Of 200 random pauses, one is in the upper half: all but once in 2^200.
			require.GreaterOrEqual(t, int64(longest), int64(d.least)+(bound-int64(d.least))/2, "round %d of %v", n, d)
		}
	}
}

// freeAt is freeIn, by going from one expiry to the next: the first instant at
// which those that granted and those whose lease or quarantine has run out are a
// quorum.
func freeAt(votes []vote, leases []int64) (free time.Duration, ok bool) {
	// Of a lease of 5 ms, all of the fifth may be left. One that is longer than a
	// Duration is as good as for ever.
	end := func(i int) time.Duration {
		if leases[i] >= math.MaxInt64/1_000_000-1 {
			return never
		}
		return time.Duration(leases[i]+1) * time.Millisecond
	}
	// A failed vote with a lease is one of an instance in quarantine.
	waits := func(i int) bool {
		return votes[i] == refused && leases[i] >= 0 || votes[i] == failed && leases[i] > 0
	}
	have := 0
	for _, v := range votes {
		if v == granted {
			have++
		}
	}
	if majority(have, len(votes)) {
		return 0, false
	}
	for at := range votes {
		if !waits(at) || ok && end(at) >= free {
			continue
		}
		could := have
		for i := range votes {
			if waits(i) && end(i) <= end(at) {
				could++
			}
		}
		if majority(could, len(votes)) {
			free, ok = end(at), true
		}
	}
	return free, ok
}

func checkFreeIn(t *testing.T, votes ballot, leases []int64) {
	t.Helper()
	want, wantOK := freeAt(votes, leases)
	got, ok := freeIn(votes.tally(), votes, leases)
	if ok != wantOK || got != want && (want < never || got < time.Hour) {
		require.Fail(t, "freeIn", "%v %v: %v %v, want %v %v", votes, leases, got, ok, want, wantOK)
	}
}

func TestFreeInIsWhenLeasesLeaveAQuorum(t *testing.T) {
	leases := []int64{-1, 0, 1, 5, 1000, 3_600_000}
	for n := 1; n <= 4; n++ {
		everyLease(n, leases, func(votes ballot, leases []int64) { checkFreeIn(t, votes, leases) })
	}
	for range 5000 {
		n := 5 + rand.N(4)
		votes, some := make(ballot, n), make([]int64, n)
		for i := range votes {
			votes[i], some[i] = vote(rand.N(4)), rand.Int64N(20)-1
		}
		checkFreeIn(t, votes, some)
	}
}

// everyLease calls f with all votes of n instances, with any of leases for those
// that refused, or failed. f must not keep them.
func everyLease(n int, leases []int64, f func(ballot, []int64)) {
	votes, some := make(ballot, n), make([]int64, n)
	var fill func(int)
	fill = func(i int) {
		if i == n {
			f(votes, some)
			return
		}
		for _, v := range []vote{pending, granted} {
			votes[i], some[i] = v, 0
			fill(i + 1)
		}
		for _, lease := range leases {
			votes[i], some[i] = refused, lease
			fill(i + 1)
			votes[i] = failed
			fill(i + 1)
		}
	}
	fill(0)
}

// A lease beyond what a Duration counts, as another program's "for ever" may be,
// is a long one. Read as a negative one it would make a waiter ask again and
// again without a pause.
func TestALeaseOfAgesIsNoReasonToHurry(t *testing.T) {
	ages := []int64{math.MaxInt64/1_000_000 - 1, math.MaxInt64 / 1_000_000, math.MaxInt64/1_000_000 + 1, math.MaxInt64 / 2, math.MaxInt64 - 1, math.MaxInt64}
	for _, lease := range ages {
		for _, n := range []int{1, 3} {
			votes, leases := make(ballot, n), make([]int64, n)
			for i := range votes {
				a := parseAnswer("r 5 " + decimal(uint64(lease)))
				votes[i], leases[i] = a.vote, a.lease
			}
			checkFreeIn(t, votes, leases)
		}
	}
}

// Those that refuse an operation which tells no lease (a raise that found the lock
// gone or another owner's) are no lease of 0 ms.
func TestARefusalWithoutALeaseIsNoReasonToHurry(t *testing.T) {
	for _, line := range []string{"n", "x"} {
		a := parseAnswer(line)
		votes, leases := ballot{a.vote, a.vote, granted}, []int64{a.lease, a.lease, 0}
		free, ok := freeIn(votes.tally(), votes, leases)
		require.False(t, ok, "%q: free in %v", line, free)
	}
}

// waiting returns a Locker that can pause, and nothing else, and an attempt that
// all its instances refused, with this lease.
func waiting(lease int64) (*Locker, *attempt) {
	l := &Locker{config: defaults()}
	l.waitlists.locker = l
	l.closing, l.shut = context.WithCancelCause(context.Background())
	r := &round{locker: l, votes: ballot{refused, refused, refused}, leases: []int64{lease, lease, lease}}
	r.tally = ballot(r.votes).tally()
	return l, &attempt{round: r}
}

// pauses is the pause of a caller that waits alone.
func pauses(ctx context.Context, l *Locker, q *request, a *attempt, n int) bool {
	w := l.waitlists.join(ctx, q, true, nil)
	defer l.waitlists.leave(w)
	_, again := l.pause(w, a, n)
	return again
}

func TestPauseIsARandomTime(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l, a := waiting(-1)
		for n := range 20 {
			start := time.Now()
			require.True(t, pauses(t.Context(), l, &request{maxWait: never, start: start}, a, n))
			require.GreaterOrEqual(t, time.Since(start), l.retryMin)
			require.LessOrEqual(t, time.Since(start), l.retryMax)
		}
	})
}

func TestPauseEndsWhenTheLeasesDo(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l, a := waiting(1)
		require.NoError(t, WithRetryDelay(time.Second, time.Minute)(&l.config))
		for n := range 20 {
			start := time.Now()
			require.True(t, pauses(t.Context(), l, &request{maxWait: never, start: start}, a, n+10))
			require.GreaterOrEqual(t, time.Since(start), 2*time.Millisecond)
			require.Less(t, time.Since(start), 2*time.Millisecond+l.retryMin)
		}
	})
}

func TestPauseNeverOutlastsTheLongestWait(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l, a := waiting(-1)
		require.NoError(t, WithRetryDelay(time.Second, time.Second)(&l.config))
		start := time.Now()
		q := &request{maxWait: 1500 * time.Millisecond, start: start}
		require.True(t, pauses(t.Context(), l, q, a, 0))
		require.Equal(t, time.Second, time.Since(start))
		// The rest is waited for, as somebody may want to use it; but no round starts then.
		require.False(t, pauses(t.Context(), l, q, a, 1))
		require.Equal(t, 1500*time.Millisecond, time.Since(start))
		require.False(t, pauses(t.Context(), l, q, a, 2))
		require.Equal(t, 1500*time.Millisecond, time.Since(start))
		require.NoError(t, a.err, "what is told is the last real reason")
	})
}

func TestPauseEndsWithTheContextAndTheLocker(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l, a := waiting(-1)
		require.NoError(t, WithRetryDelay(time.Minute, time.Minute)(&l.config))
		q := &request{maxWait: never, start: time.Now()}

		ctx, cancel := context.WithTimeout(t.Context(), 7*time.Millisecond)
		defer cancel()
		require.False(t, pauses(ctx, l, q, a, 0))
		require.Equal(t, 7*time.Millisecond, time.Since(q.start))
		require.NoError(t, a.err)

		time.AfterFunc(3*time.Millisecond, func() { l.shut(ErrClosed) })
		require.False(t, pauses(t.Context(), l, q, a, 0))
		require.Equal(t, 10*time.Millisecond, time.Since(q.start))
		require.Equal(t, ErrClosed, a.err)
	})
}

// Fault: the end of the window of a lock whose keys were claimed, the smallest number
// that there is, less the time that has gone by, was the longest wait that there is.
func TestAForgottenLockIsInNobodysWayOnceItsKeysAreClaimed(t *testing.T) {
	l := &Locker{config: defaults(), born: time.Now()}
	k := &Lock{locker: l}
	k.phase.Store(held)
	k.until.Store(int64(time.Second))
	require.Equal(t, time.Second, k.leaseLeft(l.born))
	now := l.born.Add(2 * time.Second)
	require.True(t, k.claim(now))
	require.LessOrEqual(t, k.leaseLeft(now), time.Duration(0))
}
