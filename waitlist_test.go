package redlock

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"regexp"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/quorumlock/redlock/internal/redistest"
)

// patient makes those that wait ask again so seldom that a test which relies on it
// fails.
var patient = WithRetryDelay(10*time.Millisecond, time.Minute)

// scripts returns how many scripts s has run.
func scripts(t *testing.T, s *redistest.Server) int {
	t.Helper()
	stats, _ := s.MustDo(t, "INFO", "commandstats").(string)
	return calls(stats, "evalsha")
}

// queued returns how many callers wait for resource.
func queued(l *Locker, resource string) int {
	l.waitlists.mu.Lock()
	defer l.waitlists.mu.Unlock()
	n := l.waitlists.of[resource]
	if n == nil {
		return 0
	}
	return n.waiters.Len()
}

// A call is an Acquire that waits.
type call struct {
	t    *testing.T
	done chan struct{}
	lock *Lock
	err  error
	took time.Duration
}

// queueUp starts an Acquire, and returns when it is on the list.
func queueUp(ctx context.Context, t *testing.T, l *Locker, ttl time.Duration, opts ...AcquireOption) *call {
	t.Helper()
	c := &call{t: t, done: make(chan struct{})}
	n := queued(l, "r")
	go func() {
		defer close(c.done)
		start := time.Now()
		c.lock, c.err = l.Acquire(ctx, "r", ttl, opts...)
		c.took = time.Since(start)
	}()
	eventually(t, func() bool { return queued(l, "r") == n+1 }, "it waits")
	return c
}

// gets waits until the call has its lock, and returns it.
func (c *call) gets() *Lock {
	c.t.Helper()
	c.ends()
	require.NoError(c.t, c.err)
	require.NotNil(c.t, c.lock)
	return c.lock
}

// fails waits until the call fails, and returns why.
func (c *call) fails() error {
	c.t.Helper()
	c.ends()
	require.Error(c.t, c.err)
	require.Nil(c.t, c.lock)
	return c.err
}

func (c *call) ends() {
	c.t.Helper()
	select {
	case <-c.done:
	case <-time.After(inTime):
		require.FailNow(c.t, "it still waits")
	}
}

func (c *call) waits() bool {
	select {
	case <-c.done:
		return false
	default:
		return true
	}
}

// A shift is many callers that lock one resource, one after the other.
type shift struct {
	holders, overlaps atomic.Int32
	mu                sync.Mutex
	tokens            []uint64 // in the order in which they held
	waits             []time.Duration
}

// work locks l's "r" again and again while goOn says so, and returns how often.
func (s *shift) work(ctx context.Context, t *testing.T, l *Locker, hold time.Duration, goOn func(n int) bool) int {
	for n := 0; ; n++ {
		if !goOn(n) {
			return n
		}
		start := time.Now()
		k, err := l.Acquire(ctx, "r", time.Minute)
		if err != nil {
			if ctx.Err() == nil {
				t.Error(err)
			}
			return n
		}
		if s.holders.Add(1) > 1 {
			s.overlaps.Add(1)
		}
		s.mu.Lock()
		s.tokens = append(s.tokens, k.FencingToken())
		s.waits = append(s.waits, time.Since(start))
		s.mu.Unlock()
		if hold > 0 {
			time.Sleep(hold) // the work
		}
		s.holders.Add(-1)
		if err := k.Release(context.Background()); err != nil {
			t.Error(err)
			return n
		}
	}
}

func times(most int) func(int) bool { return func(n int) bool { return n < most } }

func during(d time.Duration) func(int) bool {
	end := time.Now().Add(d)
	return func(int) bool { return time.Now().Before(end) }
}

func (s *shift) requireOrder(t *testing.T) {
	t.Helper()
	require.Zero(t, s.overlaps.Load(), "one holder at a time")
	for i, token := range s.tokens[1:] {
		require.Greater(t, token, s.tokens[i])
	}
}

func TestAHandOverIsOneScriptOnEachInstance(t *testing.T) {
	t.Parallel()
	servers := redistest.StartN(t, 3)
	l := opened(t, redistest.Addrs(servers))
	warmUp(t, l)
	const waiters, each = 64, 20
	begin := scripts(t, servers[0])
	var s shift
	var wg sync.WaitGroup
	start := time.Now()
	for range waiters {
		wg.Go(func() { s.work(t.Context(), t, l, 0, times(each)) })
	}
	wg.Wait()
	took := time.Since(start)
	s.requireOrder(t)
	n := scripts(t, servers[0]) - begin
	t.Logf("%d scripts for %d locks, %v each", n, waiters*each, took/(waiters*each))
	// One a hand-over, one more for each run of them, and a few before all wait.
	require.Less(t, float64(n), 1.2*waiters*each)
	require.Zero(t, l.waitlists.count.Load(), "nothing is left of the list")
}

// handedOver are a release and an acquire in one request.
var handedOver = regexp.MustCompile(`(?s)\$1\r\nd\r\n\$26\r\n[A-Z2-7]{26}\r\n.*\$1\r\na\r\n\$26\r\n`)

func TestAHandOverTakesOneRoundTrip(t *testing.T) {
	t.Parallel()
	const roundTrip = 10 * time.Millisecond
	for _, n := range []int{1, 3, 5} {
		t.Run(fmt.Sprint(n), func(t *testing.T) {
			t.Parallel()
			var endpoints []string
			requests := make([]atomic.Int32, n)
			for i, s := range redistest.StartN(t, n) {
				p := redistest.NewProxy(t, s.Addr())
				p.Delay(roundTrip / 2)
				p.OnRequest(func(chunk []byte) {
					if handedOver.Match(chunk) {
						requests[i].Add(1)
					}
				})
				endpoints = append(endpoints, p.Addr())
			}
			l := opened(t, endpoints)
			warmUp(t, l)
			k, err := l.Acquire(t.Context(), "r", time.Minute)
			require.NoError(t, err)
			const handOvers = 12
			var waiters []*call
			for range handOvers + 1 {
				waiters = append(waiters, queueUp(t.Context(), t, l, time.Minute))
			}
			require.NoError(t, k.Release(t.Context()))
			k = waiters[0].gets() // the others have never asked, and do not
			before := requests[0].Load()
			var took []time.Duration
			for _, w := range waiters[1:] {
				start := time.Now()
				require.NoError(t, k.Release(t.Context()))
				k = w.gets()
				took = append(took, time.Since(start))
			}
			require.NoError(t, k.Release(t.Context()))
			slices.Sort(took)
			t.Log(took)
			require.GreaterOrEqual(t, took[0], roundTrip)
			// None that takes a second one does it in less; the one that ends a run, which is one of
			// six here, does, and a busy machine may be late for many more.
			require.Less(t, took[handOvers/4], 2*roundTrip)
			require.GreaterOrEqual(t, int(requests[0].Load()-before), handOvers/2, "in one request")
		})
	}
}

func TestWaitersAreServedInTheirOrder(t *testing.T) {
	t.Parallel()
	l := opened(t, redistest.Addrs(redistest.StartN(t, 3)))
	k, err := l.Acquire(t.Context(), "r", time.Minute)
	require.NoError(t, err)
	const waiters = 80 // more than one run of hand-overs
	order := make(chan int, waiters)
	var wg sync.WaitGroup
	for i := range waiters {
		wg.Go(func() {
			k, err := l.Acquire(t.Context(), "r", time.Minute)
			if err != nil {
				t.Error(err)
				return
			}
			order <- i
			_ = k.Release(t.Context())
		})
		eventually(t, func() bool { return queued(l, "r") == i+1 }, "it waits")
	}
	require.NoError(t, k.Release(t.Context()))
	wg.Wait()
	for i := range waiters {
		require.Equal(t, i, <-order)
	}
}

func TestLocalWaitersGetEqualShares(t *testing.T) {
	t.Parallel()
	l := opened(t, redistest.Addrs(redistest.StartN(t, 3)))
	warmUp(t, l)
	const waiters = 64
	counts := make([]int, waiters)
	var s shift
	var wg sync.WaitGroup
	var all atomic.Int32
	enough := func(int) bool { return all.Add(1) <= 40*waiters }
	for i := range waiters {
		wg.Go(func() { counts[i] = s.work(t.Context(), t, l, 0, enough) })
	}
	wg.Wait()
	s.requireOrder(t)
	least, most := slices.Min(counts), slices.Max(counts)
	t.Logf("%d to %d times", least, most)
	require.LessOrEqual(t, float64(most), 1.2*float64(least))
}

// Whoever stops waiting, for whatever reason, is off the list at once, and the
// others keep their places.
func TestAWaiterThatGivesUpIsOffTheListAtOnce(t *testing.T) {
	t.Parallel()
	l := opened(t, redistest.Addrs(redistest.StartN(t, 3)), patient)
	k, err := l.Acquire(t.Context(), "r", time.Minute)
	require.NoError(t, err)
	type leaver struct {
		call *call
		end  func()
		err  error
	}
	var leavers []leaver
	var stayers []*call
	for i := range 3 {
		ctx, cancel := context.WithCancel(t.Context())
		defer cancel()
		leavers = append(leavers, leaver{queueUp(ctx, t, l, time.Minute), cancel, context.Canceled})
		stayers = append(stayers, queueUp(t.Context(), t, l, time.Minute))
		if i == 1 {
			ctx, cancel := context.WithTimeout(t.Context(), 300*time.Millisecond)
			defer cancel()
			leavers = append(leavers,
				leaver{queueUp(ctx, t, l, time.Minute), func() {}, context.DeadlineExceeded},
				leaver{queueUp(t.Context(), t, l, time.Minute, WithMaxWait(300*time.Millisecond)), func() {}, nil})
		}
	}
	for _, w := range leavers {
		w.end()
		err := w.call.fails()
		require.ErrorIs(t, err, ErrTaken)
		if w.err != nil {
			require.ErrorIs(t, err, w.err)
		} else {
			require.NotErrorIs(t, err, context.DeadlineExceeded)
		}
	}
	require.Equal(t, len(stayers), queued(l, "r"))
	for i, c := range stayers {
		start := time.Now()
		require.NoError(t, k.Release(t.Context()))
		k = c.gets()
		require.Less(t, time.Since(start), atOnce)
		for _, later := range stayers[i+1:] {
			require.True(t, later.waits())
		}
	}
	require.NoError(t, k.Release(t.Context()))
}

// A waiter that gives up in the moment in which it is handed the lock passes it on.
func TestATurnThatIsNotTakenIsLostToNobody(t *testing.T) {
	t.Parallel()
	l := opened(t, redistest.Addrs(redistest.StartN(t, 3)), patient)
	warmUp(t, l)
	const resources, each = 8, 125
	var mu sync.Mutex
	var took []time.Duration
	var taken, passed int
	var wg sync.WaitGroup
	for i := range resources {
		resource := fmt.Sprint("r", i)
		wg.Go(func() {
			for range each {
				k, err := l.Acquire(t.Context(), resource, time.Minute)
				if err != nil {
					t.Error(err)
					return
				}
				ctx, cancel := context.WithCancel(t.Context())
				var both sync.WaitGroup
				var got bool
				both.Go(func() {
					k, err := l.Acquire(ctx, resource, time.Minute)
					if err == nil {
						got = true
						err = k.Release(context.Background())
					}
					if err != nil && !errors.Is(err, context.Canceled) {
						t.Error(err)
					}
				})
				for queued(l, resource) != 1 {
					time.Sleep(10 * time.Microsecond)
				}
				var end time.Time
				both.Go(func() {
					k, err := l.Acquire(t.Context(), resource, time.Minute)
					end = time.Now()
					if err == nil {
						err = k.Release(context.Background())
					}
					if err != nil {
						t.Error(err)
					}
				})
				for queued(l, resource) != 2 {
					time.Sleep(10 * time.Microsecond)
				}
				start := time.Now()
				time.AfterFunc(rand.N(time.Millisecond), cancel)
				if err := k.Release(t.Context()); err != nil {
					t.Error(err)
				}
				both.Wait()
				cancel()
				mu.Lock()
				took = append(took, end.Sub(start))
				if got {
					taken++
				} else {
					passed++
				}
				mu.Unlock()
			}
		})
	}
	wg.Wait()
	slices.Sort(took)
	t.Logf("taken %d times, passed on %d times; the next one had it after %v to %v", taken, passed, took[0], took[len(took)-1])
	require.Positive(t, taken)
	require.Positive(t, passed)
	require.Less(t, took[len(took)-1], 2*atOnce)
	require.Zero(t, l.waitlists.count.Load())
}

func TestAForgottenLockBlocksLocalWaitersForItsTTL(t *testing.T) {
	t.Parallel()
	const ttl = 300 * time.Millisecond
	l := opened(t, redistest.Addrs(redistest.StartN(t, 3)), patient)
	warmUp(t, l)
	for _, handed := range []bool{false, true} {
		t.Run(fmt.Sprintf("handed over: %v", handed), func(t *testing.T) {
			var start time.Time
			var forgotten *Lock
			var first *call
			var err error
			if handed {
				k, err := l.Acquire(t.Context(), "r", time.Minute)
				require.NoError(t, err)
				c := queueUp(t.Context(), t, l, ttl)
				first = queueUp(t.Context(), t, l, time.Minute) // so that the list lives on, and knows its holder
				start = time.Now()
				require.NoError(t, k.Release(t.Context()))
				forgotten = c.gets()
			} else {
				start = time.Now()
				forgotten, err = l.Acquire(t.Context(), "r", ttl)
				require.NoError(t, err)
			}
			if first == nil {
				first = queueUp(t.Context(), t, l, time.Minute)
			}
			second := queueUp(t.Context(), t, l, time.Minute)
			k := first.gets()
			took := time.Since(start)
			require.LessOrEqual(t, forgotten.Remaining(), time.Duration(0))
			t.Log("after", took)
			require.Less(t, took, ttl+atOnce/2)
			// And it is a holder like any other.
			start = time.Now()
			require.NoError(t, k.Release(t.Context()))
			require.NoError(t, second.gets().Release(t.Context()))
			require.Less(t, time.Since(start), atOnce)
		})
	}
}

// A holder whose lock is lost leaves it to those that wait.
func TestALostLockIsLeftToTheWaiters(t *testing.T) {
	t.Parallel()
	servers := redistest.StartN(t, 3)
	for _, handed := range []bool{false, true} {
		t.Run(fmt.Sprintf("handed over: %v", handed), func(t *testing.T) {
			l := opened(t, redistest.Addrs(servers), patient)
			k, err := l.Acquire(t.Context(), "r", time.Minute)
			require.NoError(t, err)
			if handed {
				c := queueUp(t.Context(), t, l, time.Minute)
				require.NoError(t, k.Release(t.Context()))
				k = c.gets()
			}
			c := queueUp(t.Context(), t, l, time.Minute)
			if !handed {
				eventually(t, func() bool { return settledFor(l, "r") }, "it only asks now and then")
			}
			for _, s := range servers {
				s.MustDo(t, "DEL", "r")
			}
			start := time.Now()
			require.ErrorIs(t, k.Extend(t.Context(), time.Minute), ErrLost)
			next := c.gets()
			require.Less(t, time.Since(start), atOnce)
			require.NoError(t, next.Release(t.Context()))
		})
	}
}

// settledFor reports whether the first who waits for resource has asked often enough.
func settledFor(l *Locker, resource string) bool {
	l.waitlists.mu.Lock()
	defer l.waitlists.mu.Unlock()
	n := l.waitlists.of[resource]
	return n != nil && l.waitlists.majority(l.waitlists.hears) && (n.settled || n.lost >= settledAfter) && !n.free && !n.woken && n.first() != nil && !n.first().asking
}

// The lock of a waiter is as long as it asked for, whatever the one before had.
func TestEachWaiterHasItsOwnTTL(t *testing.T) {
	t.Parallel()
	servers := redistest.StartN(t, 3)
	l := opened(t, redistest.Addrs(servers))
	k, err := l.Acquire(t.Context(), "r", time.Minute)
	require.NoError(t, err)
	ttls := []time.Duration{10 * time.Minute, 5 * time.Second, time.Hour, 30 * time.Second}
	var calls []*call
	for _, ttl := range ttls {
		calls = append(calls, queueUp(t.Context(), t, l, ttl))
	}
	for i, c := range calls {
		require.NoError(t, k.Release(t.Context()))
		k = c.gets()
		full := validity(ttls[i], l.driftFactor, l.driftBase)
		require.LessOrEqual(t, k.Remaining(), full)
		require.Greater(t, k.Remaining(), full-inTime)
		for _, s := range servers {
			eventually(t, func() bool {
				left, _ := s.MustDo(t, "PTTL", "r").(int64)
				return time.Duration(left)*time.Millisecond > full-inTime && time.Duration(left)*time.Millisecond <= ttls[i]
			}, "the key has it")
		}
	}
	require.NoError(t, k.Release(t.Context()))
}

func TestAHandOverThatTakesTooLongIsNoLock(t *testing.T) {
	t.Parallel()
	proxies, endpoints := redistest.NewProxies(t, redistest.StartN(t, 3))
	l := opened(t, endpoints, WithInstanceTimeout(time.Second))
	k, err := l.Acquire(t.Context(), "r", time.Minute)
	require.NoError(t, err)
	ctx, cancel := context.WithTimeout(t.Context(), time.Second)
	defer cancel()
	short := queueUp(ctx, t, l, 500*time.Millisecond, WithMinValidity(450*time.Millisecond))
	bounded := queueUp(t.Context(), t, l, 500*time.Millisecond, WithMinValidity(450*time.Millisecond), WithMaxWait(1200*time.Millisecond))
	for _, p := range proxies {
		p.Delay(30 * time.Millisecond)
	}
	require.NoError(t, k.Release(t.Context()))
	err = short.fails()
	require.ErrorIs(t, err, context.DeadlineExceeded)
	require.ErrorIs(t, err, ErrExpired)
	err = bounded.fails()
	require.ErrorIs(t, err, ErrExpired)
	require.NotErrorIs(t, err, context.DeadlineExceeded)
	// What they could not use is free.
	k, err = l.Acquire(t.Context(), "r", time.Minute, WithMaxWait(inTime))
	require.NoError(t, err)
	require.NoError(t, k.Release(t.Context()))
}

type counter struct{ n atomic.Uint64 }

func (c *counter) Token(context.Context, string) (uint64, error) { return c.n.Add(1), nil }

func TestTokensGrowAlongHandOvers(t *testing.T) {
	t.Parallel()
	for _, n := range []int{1, 3, 5} {
		t.Run(fmt.Sprint(n), func(t *testing.T) {
			t.Parallel()
			servers := redistest.StartN(t, n)
			for _, c := range []struct {
				name     string
				opts     []Option
				handOver int
			}{
				{"quorum", nil, map[int]int{1: 1000, 3: manyHandOvers, 5: 1000}[n]},
				{"source", []Option{WithFencing(&counter{})}, 500},
				{"none", []Option{WithoutFencing()}, 500},
			} {
				t.Run(c.name, func(t *testing.T) {
					l := opened(t, redistest.Addrs(servers), c.opts...)
					const waiters = 10
					var s shift
					var wg sync.WaitGroup
					begin := time.Now()
					for range waiters {
						wg.Go(func() { s.work(t.Context(), t, l, 0, times(c.handOver/waiters)) })
					}
					wg.Wait()
					require.Len(t, s.tokens, c.handOver)
					t.Log(time.Since(begin) / time.Duration(c.handOver))
					if c.name == "none" {
						require.Zero(t, s.overlaps.Load())
						require.Zero(t, slices.Max(s.tokens))
						return
					}
					s.requireOrder(t)
				})
			}
		})
	}
}

// A minority that is away costs hand-overs nothing.
func TestAHandOverWaitsForNoMinority(t *testing.T) {
	t.Parallel()
	for _, n := range []int{3, 5} {
		for _, state := range []string{"down", "hung"} {
			t.Run(fmt.Sprintf("%d, %s", n, state), func(t *testing.T) {
				t.Parallel()
				servers := redistest.StartN(t, n)
				l := opened(t, redistest.Addrs(servers), patient)
				warmUp(t, l)
				if state == "down" {
					require.NoError(t, servers[0].Kill())
				} else {
					require.NoError(t, servers[0].Pause())
				}
				var s shift
				var wg sync.WaitGroup
				for range 8 {
					wg.Go(func() { s.work(t.Context(), t, l, 0, times(50)) })
				}
				wg.Wait()
				s.requireOrder(t)
				slices.Sort(s.waits)
				t.Log(s.waits[len(s.waits)/2], s.waits[len(s.waits)-1])
				require.Less(t, s.waits[len(s.waits)/2], atOnce/10)
				require.NoError(t, servers[0].Close()) // else Close waits for the clean-up
			})
		}
	}
}

// Those that stand behind others have never asked; they know why all the same.
func TestAWaiterThatNeverAskedKnowsWhy(t *testing.T) {
	t.Parallel()
	l := opened(t, redistest.Addrs(redistest.StartN(t, 3)), patient)
	k, err := l.Acquire(t.Context(), "r", time.Minute)
	require.NoError(t, err)
	first := queueUp(t.Context(), t, l, time.Minute)
	require.NoError(t, k.Release(t.Context()))
	k = first.gets()

	why := errors.New("the user went away")
	ctx, cancel := context.WithCancelCause(t.Context())
	timed, stop := context.WithTimeout(t.Context(), 100*time.Millisecond)
	defer stop()
	second := queueUp(t.Context(), t, l, time.Minute) // the first that waits
	cancelled := queueUp(ctx, t, l, time.Minute)
	late := queueUp(timed, t, l, time.Minute)
	bounded := queueUp(t.Context(), t, l, time.Minute, WithMaxWait(100*time.Millisecond))
	cancel(why)
	for _, c := range []struct {
		call *call
		is   []error
		not  []error
	}{
		{cancelled, []error{context.Canceled, why}, []error{context.DeadlineExceeded}},
		{late, []error{context.DeadlineExceeded}, []error{context.Canceled}},
		{bounded, nil, []error{context.Canceled, context.DeadlineExceeded}},
	} {
		err := c.call.fails()
		require.ErrorIs(t, err, ErrTaken)
		q, ok := errors.AsType[*QuorumError](err)
		require.True(t, ok)
		require.Equal(t, "acquire", q.Op)
		require.Equal(t, "r", q.Resource)
		require.Equal(t, 3, q.Instances)
		require.Equal(t, 2, q.Needed)
		require.GreaterOrEqual(t, q.Refused, 2)
		require.NotContains(t, err.Error(), "\n")
		for _, is := range c.is {
			require.ErrorIs(t, err, is)
		}
		for _, not := range c.not {
			require.NotErrorIs(t, err, not)
		}
	}
	require.NoError(t, k.Release(t.Context()))
	require.NoError(t, second.gets().Release(t.Context()))
}

// The fault: where others had their chance, and nobody here had asked yet, a caller
// that did not want to wait for so long got neither a lock nor an error.
func TestAWaiterBeforeWhomNobodyAskedAsks(t *testing.T) {
	t.Parallel()
	servers := redistest.StartN(t, 3)
	l := opened(t, redistest.Addrs(servers), patient)
	warmUp(t, l)
	// The round that it has is a short one, which a busy machine may be too slow for.
	tooSlow := &timeoutError{leastPatience}
	acquire := func() (*Lock, error) {
		l.waitlists.remember("r", l.now().Add(20*time.Millisecond))
		k, err := l.Acquire(t.Context(), "r", time.Minute, WithMaxWait(time.Millisecond))
		require.NotEqual(t, k == nil, err == nil, "a lock, or why there is none")
		return k, err
	}
	late := func(err error) bool {
		return errors.Is(err, ErrNoQuorum) && strings.Contains(err.Error(), tooSlow.Error())
	}
	got := 0
	for tries := 0; got < 20; tries++ {
		require.Less(t, tries, 500)
		k, err := acquire()
		if late(err) {
			continue
		}
		require.NoError(t, err)
		got++

		// And those behind it, while it holds.
		if _, err = acquire(); !late(err) {
			require.ErrorIs(t, err, ErrTaken)
		}
		require.NoError(t, k.Release(t.Context()))
	}
}

// The fault: a waiter whose time was up after a look, which had found the lock free, was
// told that it is taken.
func TestAWaiterThatFoundTheLockFreeAsks(t *testing.T) {
	t.Parallel()
	servers := redistest.StartN(t, 3)
	l := opened(t, redistest.Addrs(servers), patient)
	other := opened(t, redistest.Addrs(servers), patient)
	warmUp(t, l)
	afterALook := func(ctx context.Context) (*Lock, error) {
		q, err := l.newRequest(t.Context(), "r", time.Minute, nil)
		require.NoError(t, err)
		w := l.waitlists.join(ctx, q, true, nil)
		look := l.attemptOf(t.Context(), q, true)
		require.Nil(t, look.lock)
		return l.quit(w, look)
	}
	k, err := afterALook(t.Context())
	require.NoError(t, err)
	require.NoError(t, k.Release(t.Context()))

	ended, end := context.WithCancel(t.Context())
	end()
	_, err = afterALook(ended)
	require.ErrorIs(t, err, context.Canceled, "nobody waits any more")

	k, err = other.Acquire(t.Context(), "r", time.Minute)
	require.NoError(t, err)
	_, err = afterALook(t.Context())
	require.ErrorIs(t, err, ErrTaken)
	require.NoError(t, k.Release(t.Context()))
}

func TestCloseEndsAllWaitsAtOnce(t *testing.T) {
	t.Parallel()
	for _, hung := range []bool{false, true} {
		t.Run(fmt.Sprintf("hung: %v", hung), func(t *testing.T) {
			t.Parallel()
			servers := redistest.StartN(t, 3)
			l, err := Open(redistest.Addrs(servers), fresh([]Option{patient})...)
			require.NoError(t, err)
			k, err := l.Acquire(t.Context(), "r", time.Minute)
			require.NoError(t, err)
			first := queueUp(t.Context(), t, l, time.Minute)
			require.NoError(t, k.Release(t.Context()))
			first.gets()
			var calls []*call
			for range 30 {
				calls = append(calls, queueUp(t.Context(), t, l, time.Minute))
			}
			if hung {
				for _, s := range servers {
					require.NoError(t, s.Pause())
				}
			}
			closed := make(chan error, 1)
			start := time.Now()
			go func() { closed <- l.Close() }()
			for _, c := range calls {
				require.ErrorIs(t, c.fails(), ErrClosed)
			}
			require.Less(t, time.Since(start), atOnce)
			err = <-closed
			t.Log("closed after", time.Since(start), err)
			if hung {
				require.ErrorIs(t, err, ErrNoQuorum, "the lock may still be there")
			} else {
				require.NoError(t, err)
			}
			_, err = l.Acquire(t.Context(), "r", time.Minute)
			require.ErrorIs(t, err, ErrClosed)
		})
	}
}

// TryAcquire stands on no list; what it gets is handed over all the same.
func TestTryAcquirePassesByTheWaiters(t *testing.T) {
	t.Parallel()
	servers := redistest.StartN(t, 3)
	l := opened(t, redistest.Addrs(servers), patient)
	k, err := l.TryAcquire(t.Context(), "r", time.Minute)
	require.NoError(t, err)
	first := queueUp(t.Context(), t, l, time.Minute)
	second := queueUp(t.Context(), t, l, time.Minute)
	for range 2 {
		_, err = l.TryAcquire(t.Context(), "r", time.Minute)
		require.ErrorIs(t, err, ErrTaken)
		start := time.Now()
		require.NoError(t, k.Release(t.Context()))
		k = first.gets()
		require.Less(t, time.Since(start), atOnce)
		first = second
	}
	require.NoError(t, k.Release(t.Context()))

	// In the middle of hand-overs it may get the lock or not, and breaks nothing.
	var s shift
	var wg sync.WaitGroup
	var tries, wins int
	goOn := during(time.Second / 2)
	for range 8 {
		wg.Go(func() { s.work(t.Context(), t, l, 0, goOn) })
	}
	for goOn(0) {
		tries++
		k, err := l.TryAcquire(t.Context(), "r", time.Minute)
		if err != nil {
			require.ErrorIs(t, err, ErrTaken)
			continue
		}
		wins++
		require.EqualValues(t, 1, s.holders.Add(1))
		s.mu.Lock()
		s.tokens = append(s.tokens, k.FencingToken())
		s.mu.Unlock()
		s.holders.Add(-1)
		require.NoError(t, k.Release(t.Context()))
	}
	wg.Wait()
	t.Logf("%d of %d tries won, beside %d that waited", wins, tries, len(s.waits))
	s.requireOrder(t)
	require.Positive(t, len(s.waits))
}

// lists returns the lists of a Locker that asks nobody, and n waiters for "r" on it.
func lists(t *testing.T, n int) (*waitlists, []*waiter) {
	l := &Locker{config: defaults()}
	l.waitlists.locker = l
	waiters := make([]*waiter, n)
	for i := range waiters {
		waiters[i] = l.waitlists.join(t.Context(), &request{resource: "r", start: l.now()}, true, nil)
	}
	return &l.waitlists, waiters
}

// Runs of hand-overs end, so that other processes have a chance, and go on at once
// where nobody took it.
func TestARunOfHandOversEndsByCountAndByTime(t *testing.T) {
	for _, c := range []struct {
		each time.Duration // that a holder takes
		run  int
	}{
		{0, maxRun},
		{time.Millisecond, maxRun},
		{maxRunTime / 10, 10},
		{maxRunTime - 1, 2}, // the first one begins the run
		{maxRunTime, 1},
		{time.Minute, 1},
	} {
		s, _ := lists(t, 200)
		now := s.locker.now()
		k := &Lock{locker: s.locker, resource: "r"}
		for run := range 3 {
			n := 0
			for {
				w := s.next(k, now)
				if w == nil {
					break
				}
				n++
				s.concluded(w, k, nil)
				now = now.Add(c.each)
			}
			require.Equal(t, c.run, n, "run %d of holders that take %v", run, c.each)
			first := s.of["r"].first()
			wait := s.ask(first, now, 0, 0, false)
			require.Positive(t, wait, "others are to have their chance")
			require.Less(t, wait, 2*yieldTime)
			s.released(k, run == 2, 0)
			if run == 2 {
				require.Positive(t, s.ask(first, s.locker.now(), 0, 0, false), "others wait")
				continue
			}
			require.LessOrEqual(t, s.ask(first, now, 0, 0, false), time.Duration(0), "nobody else waits")
			s.concluded(first, k, nil)
		}
	}
}

// Of those that wait, the one that is handed the lock is the first that can take it.
func TestATurnGoesToTheFirstWhoseContextLives(t *testing.T) {
	s, waiters := lists(t, 4)
	ended, cancel := context.WithCancel(t.Context())
	cancel()
	waiters[0].ctx, waiters[1].ctx = ended, ended
	k := &Lock{locker: s.locker, resource: "r"}
	require.Same(t, waiters[2], s.next(k, s.locker.now()))
	require.Nil(t, s.next(k, s.locker.now()), "one turn at a time")
	require.False(t, s.leave(waiters[2]), "it has its turn")
	for _, i := range []int{0, 1, 3} {
		require.Equal(t, never, s.ask(waiters[i], s.locker.now(), 0, 0, false), "nobody asks while somebody has its turn")
	}
	// It did not get the lock: it is the first again.
	s.concluded(waiters[2], nil, ErrTaken)
	require.Same(t, waiters[2], s.of["r"].first())
	require.Equal(t, ErrTaken, s.lastReason(waiters[3]))
	for _, w := range waiters {
		require.True(t, s.leave(w))
	}
	require.Empty(t, s.of)
	require.Zero(t, s.count.Load())
}

// The others wait for their turn, however long they have waited: they would split the
// vote of the first.
func TestOnlyTheFirstOfThoseThatWaitAsks(t *testing.T) {
	s, waiters := lists(t, 3)
	for i, w := range waiters {
		for _, other := range waiters[i+1:] {
			require.Equal(t, never, s.ask(other, s.locker.now(), 0, 0, true))
		}
		require.LessOrEqual(t, s.ask(w, s.locker.now(), 0, 0, true), time.Duration(0))
		require.True(t, s.leave(w))
	}
}

// A Locker that hands nothing over any more remembers few resources.
func TestResourcesThatWereLeftToOthersAreForgotten(t *testing.T) {
	s, _ := lists(t, 0)
	for i := range 20 * maxAfter {
		s.remember(strings.Repeat("r", 1+i), s.locker.now())
	}
	require.LessOrEqual(t, len(s.after), maxAfter+1)
	require.EqualValues(t, len(s.after), s.count.Load())
}
