package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/quorumlock/redlock/internal/redistest"
	"github.com/stretchr/testify/require"
)

// A contender that does not exclude would win every comparison.
func TestEveryContenderExcludes(t *testing.T) {
	ss := redistest.StartN(t, 3)
	for _, n := range []int{1, 3} {
		for _, c := range contenders() {
			if c.single && n > 1 {
				continue
			}
			t.Run(fmt.Sprintf("%s/n=%d", c.name, n), func(t *testing.T) {
				mine, theirs := open(t, c, ss[:n]), open(t, c, ss[:n]) // as two processes
				resource := c.name

				lock, err := mine.acquire(t.Context(), resource)
				require.NoError(t, err)
				brief, cancel := context.WithTimeout(t.Context(), 100*time.Millisecond)
				defer cancel()
				_, err = theirs.acquire(brief, resource)
				require.Error(t, err, "two holders of one resource")

				require.NoError(t, lock.Release(t.Context()))
				lock, err = theirs.acquire(t.Context(), resource)
				require.NoError(t, err, "after the release")
				require.NoError(t, lock.Release(t.Context()))
			})
		}
	}
}

func TestARunMeasuresEveryCell(t *testing.T) {
	p := plan{
		contenders: contenders(), sizes: []int{1, 3}, goroutines: []int{1, 4},
		duration: 40 * time.Millisecond, reps: 2,
		load: ownResources(), ttl: leaseTTL, settle: 300 * time.Millisecond, progress: t.Output(),
	}
	ss := servers(redistest.StartN(t, 3))
	cells, err := p.run(t.Context(), ss)
	require.NoError(t, err)
	require.Len(t, cells, 2*7+2*5)
	require.NoError(t, verdict(cells))

	for _, c := range cells {
		require.Len(t, c.Reps, p.reps, c)
		require.Zero(t, c.Median.Errors, "%s: %s", c, c.Median.Error)
		for name, x := range map[string]float64{
			"p50": float64(c.Median.P50), "p99": float64(c.Median.P99), "rate": c.Median.PerSecond, "allocs": c.Median.Allocs,
			"CPU": float64(c.Median.CPU), "ratio to redsync": c.Ratios.PerSecond, "ratio to plain": c.Ratios.PlainP50,
		} {
			require.Positive(t, x, "%s of %s", name, c)
		}
	}

	r := report{Head: newHead(nil, p, ss), Title: p.load.title, Cells: cells}
	var md, js bytes.Buffer
	require.NoError(t, r.markdown(&md))
	require.NoError(t, r.json(&js))
	require.Contains(t, md.String(), "| 4 | redlock-nofence | ")
	require.True(t, json.Valid(js.Bytes()))
}

// faulty fails every second acquire and never deletes what it set.
type faulty struct {
	server *redistest.Server
	calls  atomic.Int64
}

func (f *faulty) acquire(context.Context, string) (held, error) {
	if f.calls.Add(1)%2 == 0 {
		return nil, errors.New("out of order")
	}
	_, err := f.server.Do("SET", "left", "behind")
	return f, err
}

func (f *faulty) Release(context.Context) error { return nil }
func (f *faulty) close() error                  { return nil }

func TestOurFaultsFailTheRunAndOthersAreShown(t *testing.T) {
	ss := redistest.StartN(t, 1)
	c := contender{name: "faulty", open: func([]string, time.Duration) (locker, error) { return &faulty{server: ss[0]}, nil }}
	p := plan{
		contenders: []contender{c}, sizes: []int{1}, goroutines: []int{1},
		duration: 20 * time.Millisecond, reps: 1, load: ownResources(), progress: t.Output(),
	}
	cells, err := p.run(t.Context(), ss)
	require.NoError(t, err)
	require.NoError(t, verdict(cells))
	require.Equal(t, 1, cells[0].Median.KeysLeft)
	require.Positive(t, cells[0].Median.Errors)
	var md bytes.Buffer
	require.NoError(t, report{Cells: cells}.markdown(&md))
	require.Contains(t, md.String(), "out of order; 1 LOCK KEYS LEFT")

	cells[0].contender.ours = true
	require.ErrorContains(t, verdict(cells), "out of order")
}

func TestFenceKeysAreNotLeftOvers(t *testing.T) {
	ss := servers(redistest.StartN(t, 1))
	ss[0].MustDo(t, "SET", "a:fence", "1")
	n, err := ss.keysLeft(t.Context(), 0)
	require.NoError(t, err)
	require.Zero(t, n)
	ss[0].MustDo(t, "SET", "a", "1")
	n, err = ss.keysLeft(t.Context(), 0)
	require.NoError(t, err)
	require.Equal(t, 1, n)
}

func TestFiguresOfKnownSamples(t *testing.T) {
	w := worker{errors: 1, err: errors.New("once"), inTime: 90}
	for i := 1; i <= 100; i++ {
		w.latencies = append(w.latencies, time.Duration(101-i))
	}
	f := summary([]worker{w, {}}, 2*time.Second, usage{mallocs: 300, cpu: 5000})
	require.Equal(t, figures{P50: 50, P99: 99, PerSecond: 45, Allocs: 3, CPU: 50, Locks: 100, Errors: 1, Error: "once"}, f)

	m := median([]figures{{P50: 9, Errors: 1, Error: "e"}, {P50: 1}, {P50: 2, KeysLeft: 3}})
	require.Equal(t, figures{P50: 2, Errors: 1, Error: "e", KeysLeft: 3}, m)
	require.Equal(t, 3.0, median([]figures{{PerSecond: 4}, {PerSecond: 2}}).PerSecond)
}

func TestRatiosAreOfMediansAtTheSameSize(t *testing.T) {
	cells := []*cell{
		{Contender: "redlock", N: 3, Goroutines: 64, Median: figures{P50: 500, P99: 9000, PerSecond: 123456, Allocs: 3.14, CPU: 100}},
		{Contender: "redsync", N: 3, Goroutines: 64, Median: figures{P50: 1000, P99: 1000, PerSecond: 6172.8, Allocs: 92, CPU: 2000, KeysLeft: 2}},
		{Contender: "plain", N: 3, Goroutines: 64, Median: figures{P50: 400}},
		{Contender: "plain", N: 3, Goroutines: 1, Median: figures{P50: 1}},
	}
	compare(cells)
	var md bytes.Buffer
	require.NoError(t, report{Cells: cells}.markdown(&md))
	require.Contains(t, md.String(), `
| 64 | redlock | 0.50 | 9.00 | 123456 | 3.14 | 0.10 | 0 | 0 | 0.50 | 20.0 | 0.05 | 1.25 |
| 64 | redsync | 1.00 | 1.00 | 6173 | 92.0 | 2.00 | 0 | **2 LEFT** | 1.00 | 1.00 | 1.00 | 2.50 |
| 64 | plain | 0.40 | 0.00 | 0.00 | 0.00 | 0.00 | 0 | 0 | 0.40 | – | – | 1.00 |
| 1 | plain | 0.00 | 0.00 | 0.00 | 0.00 | 0.00 | 0 | 0 | – | – | – | 1.00 |
`)
}

func TestCommandLineRefusesNonsense(t *testing.T) {
	for _, args := range [][]string{
		{"-n", "0"}, {"-goroutines", "many"}, {"-only", "nobody"}, {"-reps", "0"}, {"-duration", "-1s"}, {"report.md"},
	} {
		require.Error(t, run(t.Context(), args, t.Output(), t.Output()), args)
	}
}

// BenchmarkLock is for profiling: go test -run - -bench 'Lock/^redlock$/n=3/g=64' -cpuprofile cpu.out
func BenchmarkLock(b *testing.B) {
	for _, c := range contenders() {
		if !c.ours {
			continue
		}
		b.Run(c.name, func(b *testing.B) {
			for _, n := range []int{1, 3, 5} {
				b.Run(fmt.Sprintf("n=%d", n), func(b *testing.B) {
					ss := redistest.StartN(b, n)
					for _, g := range []int{1, 64, 256} {
						b.Run(fmt.Sprintf("g=%d", g), func(b *testing.B) { benchmarkLock(b, c, ss, g) })
					}
				})
			}
		})
	}
}

// benchmarkLock shares b.N locks out among the goroutines.
func benchmarkLock(b *testing.B, c contender, ss servers, goroutines int) {
	l := open(b, c, ss)
	ctxs, cancel := callers(b.Context(), goroutines)
	defer cancel()
	load := ownResources()
	warm := drive(ctxs, l, load, 50*time.Millisecond, 0)
	require.Zero(b, warm.Errors, warm.Error)

	var left atomic.Int64
	left.Store(int64(b.N))
	var all sync.WaitGroup
	b.ReportAllocs()
	b.ResetTimer()
	for i, ctx := range ctxs {
		all.Go(func() {
			for next := load.resources(i); left.Add(-1) >= 0; {
				if err := lockOnce(ctx, l, next()); err != nil {
					b.Error(err)
					return
				}
			}
		})
	}
	all.Wait()
	b.StopTimer()
	b.ReportMetric(float64(b.N)/b.Elapsed().Seconds(), "locks/s")
}

func open(tb testing.TB, c contender, ss servers) locker {
	tb.Helper()
	l, err := c.open(redistest.Addrs(ss), leaseTTL)
	require.NoError(tb, err)
	tb.Cleanup(func() { require.NoError(tb, l.close()) })
	return l
}
