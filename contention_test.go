package redlock

import (
	"context"
	"fmt"
	"math/rand/v2"
	"os"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/quorumlock/redlock/internal/redistest"
)

// contend lets clients lock one resource for d, and so many times at least, each with
// a clock of its own, and returns how many acquisitions the first round trip decided, how many
// took a raise, and how many left a thin hold on some instance.
func contend(t *testing.T, endpoints []string, skew []time.Duration, d time.Duration, least int64) (fast, raised, thin int64) {
	t.Helper()
	var f, r, th atomic.Int64
	observer := Observer{Round: func(e RoundEvent) {
		if e.Token == 0 || e.Op != "acquire" && e.Op != "raise" {
			return
		}
		if e.Op == "acquire" {
			f.Add(1)
		} else {
			r.Add(1)
		}
		if e.Thin() > 0 {
			th.Add(1)
		}
	}}
	ctx, cancel := context.WithTimeout(t.Context(), 10*d) // on a busy machine
	defer cancel()
	var wg sync.WaitGroup
	var lockers []*Locker
	var acquired atomic.Int64
	begin := time.Now()
	for _, s := range skew {
		clock := func(c *config) error {
			c.now = func() time.Time { return time.Now().Add(s) }
			return nil
		}
		l, err := Open(endpoints, WithObserver(observer), clock, WithQuarantine(0))
		require.NoError(t, err)
		lockers = append(lockers, l)
		wg.Go(func() {
			for ctx.Err() == nil && (time.Since(begin) < d || acquired.Load() <= least) {
				k, err := l.Acquire(ctx, "contended", time.Minute)
				if err != nil {
					continue
				}
				acquired.Add(1)
				time.Sleep(rand.N(2 * time.Millisecond)) // the work
				if err := k.Release(context.Background()); err != nil {
					t.Errorf("release: %v", err)
				}
				time.Sleep(rand.N(10 * time.Millisecond)) // other work
			}
		})
	}
	wg.Wait()
	for _, l := range lockers {
		require.NoError(t, l.Close()) // hands out the last events
	}
	require.Equal(t, acquired.Load(), f.Load()+r.Load(), "every acquisition has one event with its token")
	return f.Load(), r.Load(), th.Load()
}

func TestTheFirstRoundTripDecidesAlmostAlways(t *testing.T) {
	for _, n := range []int{3, 5} {
		for _, state := range []string{"healthy", "one dead", "one slow"} {
			t.Run(fmt.Sprintf("N=%d, %s", n, state), func(t *testing.T) {
				servers := redistest.StartN(t, n)
				endpoints := redistest.Addrs(servers)
				switch state {
				case "one dead":
					require.NoError(t, servers[0].Kill())
				case "one slow":
					p := redistest.NewProxy(t, endpoints[0])
					p.Delay(5 * time.Millisecond)
					endpoints[0] = p.Addr()
				}
				const least, idle = 100, 400
				fast, raised, thin := contend(t, endpoints, make([]time.Duration, 8), 3*time.Second, least)
				all := fast + raised
				t.Logf("%d acquisitions, %.2f %% in one round trip, %.2f %% thin", all, 100*float64(fast)/float64(all), 100*float64(thin)/float64(all))
				require.Greater(t, all, int64(least))
				share := 0.97
				if RaceDetector || all < idle { // on a busy machine clients stop halfway, and each of the few counts for much
					share = 0.9
				}
				require.GreaterOrEqual(t, float64(fast)/float64(all), share)
			})
		}
	}
}

// A thin hold takes two rounds: one that was lost, with a grant and a larger seed
// on one instance, and after it one that the two others decide. With equal clocks
// seeds come in the order in which they arrive, nearly. With clocks that differ the
// lead makes up for it, less 1 % of the time since this client last saw a fence of
// another: rounds that begin within that of each other may have their seeds in the
// wrong order. It happens a few times in a thousand, so a thousand must be counted.
func TestClocksThatDifferLeaveFewThinHolds(t *testing.T) {
	servers := redistest.StartN(t, 3)
	skew := make([]time.Duration, 8)
	for i := range skew {
		skew[i] = time.Duration(i) * 20 * time.Millisecond / 7
	}
	const least = 1000
	fast, raised, thin := contend(t, redistest.Addrs(servers), skew, 8*time.Second, least)
	all := fast + raised
	t.Logf("%d acquisitions, %d in one round trip, %.2f %% thin", all, fast, 100*float64(thin)/float64(all))
	require.Greater(t, all, int64(least))
	require.Less(t, float64(thin)/float64(all), mostThin)
}

// Clients that start together may split the vote; then random pauses let one of them
// win, soon.
func TestSplitVotesResolve(t *testing.T) {
	t.Parallel()
	rounds := 60
	if os.Getenv("REDLOCK_SOAK") != "" {
		rounds = 500
	}
	for _, clients := range []int{3, 9} {
		t.Run(fmt.Sprint(clients), func(t *testing.T) {
			t.Parallel()
			endpoints := redistest.Addrs(redistest.StartN(t, 3))
			var mu sync.Mutex
			asked := map[string][]RoundEvent{}
			observer := WithObserver(Observer{Round: func(e RoundEvent) {
				if e.Op == "acquire" {
					mu.Lock()
					asked[e.Resource] = append(asked[e.Resource], e)
					mu.Unlock()
				}
			}})
			var lockers []*Locker
			for range clients {
				l, err := Open(endpoints, fresh([]Option{observer})...)
				require.NoError(t, err)
				warmUp(t, l)
				lockers = append(lockers, l)
			}
			var first sync.Map // by resource: when somebody had it
			for n := range rounds {
				resource := fmt.Sprint("r", n)
				start := make(chan struct{})
				var wg sync.WaitGroup
				for _, l := range lockers {
					wg.Go(func() {
						<-start
						k, err := l.Acquire(t.Context(), resource, time.Minute)
						if err != nil {
							t.Error(err)
							return
						}
						first.LoadOrStore(resource, time.Now())
						_ = k.Release(t.Context())
					})
				}
				close(start)
				wg.Wait()
			}
			for _, l := range lockers {
				require.NoError(t, l.Close()) // hands out the last events
			}
			var attempts []int
			for n := range rounds {
				resource := fmt.Sprint("r", n)
				at, ok := first.Load(resource)
				require.True(t, ok)
				before := 0
				for _, e := range asked[resource] {
					if e.Start.Before(at.(time.Time)) {
						before++
					}
				}
				attempts = append(attempts, (before+clients-1)/clients) // of each client
			}
			slices.Sort(attempts)
			t.Logf("attempts: median %d, at most %d", attempts[rounds/2], attempts[rounds-1])
			require.LessOrEqual(t, attempts[rounds/2], 3)
			require.LessOrEqual(t, attempts[rounds-1], 20)
		})
	}
}
