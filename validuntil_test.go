package redlock_test

import (
	"context"
	"fmt"
	"math/rand/v2"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/quorumlock/redlock"
	"github.com/quorumlock/redlock/internal/redistest"
)

// expiriesOn returns when each key expires by the server's clock, which is this
// machine's: the zero time where it has no such key.
func expiriesOn(t *testing.T, s *redistest.Server, keys []string) []time.Time {
	t.Helper()
	const script = "local at = {} for i, key in ipairs(KEYS) do at[i] = redis.call('PEXPIRETIME', key) end return at"
	reply, _ := s.MustDo(t, append([]string{"EVAL", script, fmt.Sprint(len(keys))}, keys...)...).([]any)
	require.Len(t, reply, len(keys))
	at := make([]time.Time, len(keys))
	for i, ms := range reply {
		if ms, _ := ms.(int64); ms > 0 {
			at[i] = time.UnixMilli(ms)
		}
	}
	return at
}

// While locks are held, extended, shortened and kept alive, over lines that are
// slow, send twice and lose replies, no window reaches beyond the expiry of a
// majority of the keys. The servers tell instants, so that no latency has to be
// taken off; a sample counts if the window did not move while they were asked, and
// each window once.
func TestNoWindowReachesBeyondTheExpiryOfAMajority(t *testing.T) {
	t.Parallel()
	const n, locks = 3, 50
	servers := start(t, n)
	proxies, endpoints := redistest.NewProxies(t, servers)
	l := openAt(t, endpoints)
	// A tenth of it, the limit of a vote, is more than the lines take.
	ttl := func() time.Duration { return 300*time.Millisecond + rand.N(longestTTL) }

	var wg sync.WaitGroup
	ctx, cancel := context.WithCancel(t.Context())
	defer wg.Wait()
	defer cancel()
	var mu sync.Mutex
	held := make([]*redlock.Lock, locks)
	for i := range locks {
		wg.Go(func() {
			for ctx.Err() == nil {
				lock, err := l.Acquire(ctx, fmt.Sprint("r", i), ttl())
				if err != nil {
					continue
				}
				mu.Lock()
				held[i] = lock
				mu.Unlock()
				alive, stop := context.WithCancel(ctx)
				if i%2 == 0 {
					alive = lock.KeepAlive(alive)
				}
				for range rand.N(10) {
					select {
					case <-alive.Done():
					case <-time.After(rand.N(longestTTL / 4)):
					}
					if i%4 > 0 { // in part beside the renewals
						_ = lock.Extend(ctx, ttl())
					}
				}
				stop()
				_ = lock.Release(context.WithoutCancel(ctx))
			}
		})
	}
	wg.Go(func() {
		for ctx.Err() == nil {
			p := proxies[rand.N(n)]
			p.DelayRequests(rand.N(4 * time.Millisecond))
			p.DelayReplies(rand.N(24 * time.Millisecond)) // more than the drift allows for
			p.DuplicateRequests(rand.N(3) == 0)
			swallow := rand.N(8) == 0
			p.SwallowReplies(swallow)
			select {
			case <-ctx.Done():
			case <-time.After(rand.N(100 * time.Millisecond)):
			}
			if swallow {
				p.SwallowReplies(false)
				p.Break() // nobody waits a second for them
			}
		}
	})

	samples, kept := 0, 0
	least := time.Hour
	sampled := map[*redlock.Lock]time.Time{}
	for samples < 10*losses(t) {
		var now []*redlock.Lock
		var keys []string
		var windows []time.Time
		mu.Lock()
		for _, k := range held {
			if k != nil && k.Remaining() > 0 && k.ValidUntil() != sampled[k] {
				now, keys, windows = append(now, k), append(keys, k.Resource()), append(windows, k.ValidUntil())
			}
		}
		mu.Unlock()
		if len(now) == 0 {
			continue
		}
		expiries := make([][]time.Time, n)
		for i, s := range servers {
			expiries[i] = expiriesOn(t, s, keys)
		}
		for j, k := range now {
			if k.ValidUntil() != windows[j] || k.Remaining() <= 0 {
				continue // it moved, or was given up
			}
			at := make([]time.Time, n)
			for i := range at {
				at[i] = expiries[i][j]
			}
			slices.SortFunc(at, func(a, b time.Time) int { return b.Compare(a) })
			real := at[n/2]
			require.False(t, windows[j].After(real), "%s is said to be valid until %v; the keys: %v", k.Resource(), windows[j], at)
			least = min(least, real.Sub(windows[j]))
			samples++
			sampled[k] = windows[j]
			if k.Resource()[len(k.Resource())-1]%2 == 0 {
				kept++
			}
		}
	}
	t.Logf("%d samples, %d of locks that are kept alive: the window ended %v before a majority of the keys at least", samples, kept, least)
	require.Greater(t, kept, samples/10)
}

// Nothing tells a client that a server's clock was set forward: the keys are gone
// before their time. Its next renewal finds that out.
func TestClocksSetForwardAreSignalledAtTheNextRenewal(t *testing.T) {
	t.Parallel()
	const ttl = 3 * time.Second
	clocks, servers := startClocks(t, 3)
	l := openAt(t, redistest.Addrs(servers))
	v := newVerdict(t, []redlock.LostReason{redlock.LostExpired})
	locks := make([]*kept, atOnce)
	var wg sync.WaitGroup
	for i := range locks {
		wg.Go(func() { locks[i] = keep(t, l, fmt.Sprint("r", i), ttl) })
	}
	wg.Wait()
	for _, k := range locks {
		k.look()
	}
	struck := time.Now()
	clocks[0].Jump(8 * time.Second)
	clocks[1].Jump(8 * time.Second)
	over, cancel := context.WithTimeout(t.Context(), ttl)
	defer cancel()
	for _, k := range locks {
		if !k.ended(over) {
			require.Greater(t, striking{servers: servers}.count(k.lock), 1, "%s: no signal", k.lock.Resource())
			v.healed++ // by a renewal between the two jumps
			continue
		}
		v.judge(k, struck)
		// A window is ttl less 1 % and 2 ms; the renewal is at a third of the ttl.
		renewal := k.before.Add(ttl/100 + 2*time.Millisecond - ttl + ttl/3)
		if _, slept := v.control.slept(renewal, k.at); !slept {
			require.Less(t, k.at.Round(0).Sub(renewal), ttl/3, "after the renewal")
		}
	}
	v.require()
}
