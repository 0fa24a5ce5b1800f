package tokens

import (
	"context"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/quorumlock/redlock/chaos/history"
	"github.com/quorumlock/redlock/internal/redistest"
)

const (
	tokensTTL  = 200 * time.Millisecond
	quarantine = tokensTTL + 2*time.Second // the Lockers' default
)

// runTime is how long each test of tokens runs, and how many acquisitions they must
// complete in each second of it, or too little has happened. REDLOCK_TOKENS=3m makes
// the run longer; 3 minutes are at least 200,000 acquisitions, then.
func runTime(t *testing.T) (each time.Duration, perSecond float64) {
	text := os.Getenv("REDLOCK_TOKENS")
	if text == "" {
		return 12 * time.Second, 200
	}
	each, err := time.ParseDuration(text)
	require.NoError(t, err)
	return each, 300
}

// A fault does one thing to an instance, and undoes it when ctx ends.
type fault func(t *testing.T, ctx context.Context, s *redistest.Server, p *redistest.Proxy)

func pause(t *testing.T, ctx context.Context, s *redistest.Server, _ *redistest.Proxy) {
	require.NoError(t, s.Pause())
	<-ctx.Done()
	require.NoError(t, s.Resume())
}

func swallow(_ *testing.T, ctx context.Context, _ *redistest.Server, p *redistest.Proxy) {
	p.SwallowReplies(true)
	<-ctx.Done()
	p.SwallowReplies(false)
	p.Break()
}

func hold(_ *testing.T, ctx context.Context, _ *redistest.Server, p *redistest.Proxy) {
	p.HoldRequests(true)
	<-ctx.Done()
	p.HoldRequests(false)
}

func double(_ *testing.T, ctx context.Context, _ *redistest.Server, p *redistest.Proxy) {
	p.DuplicateRequests(true)
	<-ctx.Done()
	p.DuplicateRequests(false)
}

func deleteLocks(t *testing.T, ctx context.Context, s *redistest.Server, _ *redistest.Proxy) {
	for ctx.Err() == nil {
		s.MustDo(t, "DEL", fmt.Sprint("r", rand.N(tokensResources)))
	}
}

// forget leaves the quarantine to the Lockers. It waits for a part of it, lest a
// majority be in one all the time.
func forget(t *testing.T, _ context.Context, s *redistest.Server, _ *redistest.Proxy) {
	require.NoError(t, s.Restart())
	time.Sleep(rand.N(quarantine))
}

const tokensResources = 12

func TestTokensGrow(t *testing.T) {
	each, perSecond := runTime(t)
	acquired, ran := 0, time.Duration(0)
	for _, n := range []int{3, 5} {
		t.Run(fmt.Sprintf("N=%d, keys vanish and the network fails", n), func(t *testing.T) {
			acquired += tokens(t, n, each, true, pause, swallow, hold, double, deleteLocks, deleteLocks)
			ran += each
		})
		t.Run(fmt.Sprintf("N=%d, instances forget", n), func(t *testing.T) {
			acquired += tokens(t, n, each, false, forget, forget, pause, swallow, double)
			ran += each
		})
	}
	if t.Failed() {
		return
	}
	t.Logf("%d acquisitions in %v: no token twice, none out of order", acquired, ran)
	require.Greater(t, float64(acquired), ran.Seconds()*perSecond, "too little happened")
}

// tokens lets three processes lock for a while under faults, checks the history of
// what they did, and returns how many acquisitions it has.
func tokens(t *testing.T, n int, run time.Duration, extend bool, faults ...fault) (acquired int) {
	servers := redistest.StartN(t, n)
	var endpoints []string
	var proxies []*redistest.Proxy
	for _, s := range servers {
		p := redistest.NewProxy(t, s.Addr())
		proxies, endpoints = append(proxies, p), append(endpoints, p.Addr())
	}
	var waits []func() []history.Op
	for id := range 3 {
		waits = append(waits, client{
			ID: id, Endpoints: endpoints, Goroutines: 6, Resources: tokensResources, TTL: tokensTTL,
			Extend: extend, For: run, Log: filepath.Join(t.TempDir(), "history"),
		}.start(t))
	}

	end := time.Now().Add(run)
	injected := 0
	for time.Now().Before(end) {
		i := rand.N(n)
		ctx, cancel := context.WithTimeout(t.Context(), time.Duration(20+rand.N(300))*time.Millisecond)
		faults[rand.N(len(faults))](t, ctx, servers[i], proxies[i])
		cancel()
		injected++
	}

	var ops []history.Op
	for _, wait := range waits {
		ops = append(ops, wait()...)
	}
	extended := 0
	for _, o := range ops {
		if o.Kind == history.Acquire {
			acquired++
		} else {
			extended++
		}
	}
	t.Logf("%d acquired, %d extended, %d faults", acquired, extended, injected)
	require.Equal(t, extend, extended > 0)
	require.Greater(t, float64(injected), run.Seconds()/2)
	require.Empty(t, history.Check(ops))
	ok, err := history.Linearizable(ops, 5*time.Minute, nil)
	require.NoError(t, err)
	require.True(t, ok)
	return acquired
}
