package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"reflect"
	"slices"
	"strconv"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/pprof/profile"
	"github.com/quorumlock/redlock/internal/redistest"
	"github.com/redis/go-redis/v9"
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

// A scenario's children are this binary.
func TestMain(m *testing.M) {
	if text := os.Getenv(childJob); text != "" {
		exit(obey(text, os.Stdin, os.Stdout))
	}
	redis.SetLogger(silent{})
	os.Exit(m.Run())
}

// tiny returns a plan that measures everything in a few seconds, and badly.
func tiny(t *testing.T, scenario, only string) *plan {
	t.Helper()
	c, err := parse([]string{
		"-scenario", scenario, "-only", only, "-quick", "-goroutines", "1,4", "-waiters", "3", "-held", "30", "-processes", "2",
		"-duration", "40ms", "-lease", "1s", "-delay", "1ms",
	}, t.Output())
	require.NoError(t, err)
	c.settle, c.progress = time.Second, t.Output()
	return &c.plan
}

func TestARunMeasuresEveryCell(t *testing.T) {
	p := tiny(t, "throughput", "")
	p.goroutines, p.reps = []int{4}, 2
	ss := servers(redistest.StartN(t, p.servers()))
	cells, err := p.run(t.Context(), ss)
	require.NoError(t, err)
	require.Len(t, cells, 7+5)
	require.NoError(t, verdict(cells))

	for _, c := range cells {
		require.Len(t, c.Reps, p.reps, c)
		require.Zero(t, c.Median.Errors, "%s: %s", c, c.Median.Error)
		for name, x := range map[string]float64{
			"p50": float64(c.Median.P50), "p99": float64(c.Median.P99), "locks": float64(c.Median.Locks), "allocs": c.Median.Allocs,
			"CPU": float64(c.Median.CPU), "ratio to redsync": c.Ratios.P50, "ratio to plain": c.Ratios.PlainP50,
		} {
			require.Positive(t, x, "%s of %s", name, c)
		}
	}

	r := report{Head: newHead(nil, p, ss), Rows: judge(p, cells), Cells: cells, scenarios: p.scenarios}
	var md, js bytes.Buffer
	require.NoError(t, r.markdown(&md))
	require.NoError(t, r.json(&js))
	require.Contains(t, md.String(), "| 4 | redlock-nofence | ")
	require.Contains(t, md.String(), "| acquire + release per second, 64 goroutines, N=3 | per second / redsync | – | – | ≥ 7 | not measured |")
	require.True(t, json.Valid(js.Bytes()))
}

func TestEveryScenarioMeasures(t *testing.T) {
	ss := servers(redistest.StartN(t, usual))
	for scenario, want := range map[string]struct {
		only    string // mostly redlock alone, which leaves no keys to wait for
		cells   int
		columns []column // but none of a rate: on a busy machine, no lock may be over in so short a time
	}{
		"fresh":     {fencedLock, 2, []column{p50, p99, allocs, cpu}},
		hung.name:   {fencedLock, 4, []column{p50, p99}},
		killed.name: {fencedLock, 4, []column{p50, p99}},
		"handover":  {"redlock,plain", 2, []column{p50, p99, cpu}},
		"local":     {fencedLock, 1, []column{cpu, asked, ran}},
		"processes": {fencedLock, 3, []column{asked, ran}},
		"renewals":  {fencedLock, 1, []column{rate, cpu, allocs, asked}},
		"profile":   {fencedLock, 2, []column{cpu}},
		"delay":     {fencedLock, 3, []column{network, p50Trips, p99Trips}},
	} {
		t.Run(scenario, func(t *testing.T) {
			p := tiny(t, scenario, want.only)
			p.sizes = []int{usual}
			cells, err := p.run(t.Context(), ss)
			require.NoError(t, err)
			require.NoError(t, verdict(cells))
			require.Len(t, cells, want.cells)
			for _, c := range cells {
				require.Positive(t, c.Median.Locks, c)
				for _, col := range want.columns {
					require.NotContains(t, []string{"–", "0.00", "NaN", "+Inf"}, col.text(c), "%s of %s", col.head, c)
				}
				if c.Case == hung.name || c.Case == killed.name {
					require.GreaterOrEqual(t, c.Median.Goroutines, c.Load, c)
				}
			}
			_, err = json.Marshal(report{Rows: judge(p, cells), Cells: cells}) // which knows no infinity
			require.NoError(t, err)
		})
	}
}

// A witness locks nothing and notes whether a server answers.
type witness struct {
	server *redistest.Server
	saw    []bool
}

func (w *witness) acquire(context.Context, string) (held, error) {
	_, err := w.server.Do("PING")
	w.saw = append(w.saw, err == nil)
	return w, nil
}

func (w *witness) Release(context.Context) error { return nil }
func (w *witness) close() error                  { return nil }

func TestAnInstanceIsGoneForTheSecondHalf(t *testing.T) {
	ss := servers(redistest.StartN(t, usual))
	for _, o := range []outage{hung, killed} {
		p := tiny(t, o.name, "")
		w := &witness{server: ss[usual-1]}
		c := contender{open: func([]string, time.Duration) (locker, error) { return w, nil }}
		fs, err := p.outlive(t.Context(), ss, c, 1, o)
		require.NoError(t, err)
		require.Len(t, fs, 2)
		gone := slices.Index(w.saw, false)
		require.Positive(t, gone, o.name)
		require.NotContains(t, w.saw[gone:], true, o.name)
		require.Equal(t, len(w.saw[gone:]), fs[1].Locks)
		_, err = w.server.Do("PING")
		require.NoError(t, err, "it comes back")
	}
}

func TestLinesAreLong(t *testing.T) {
	ss := redistest.StartN(t, 2)
	near, err := roundTrip(t.Context(), redistest.Addrs(ss))
	require.NoError(t, err)
	require.Positive(t, near)
	far, closeAll, err := lines(redistest.Addrs(ss), 20*time.Millisecond)
	require.NoError(t, err)
	defer closeAll()
	long, err := roundTrip(t.Context(), far)
	require.NoError(t, err)
	require.GreaterOrEqual(t, long, 20*time.Millisecond)
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
	p := tiny(t, "throughput", "")
	p.contenders = []contender{{name: "faulty", open: func([]string, time.Duration) (locker, error) { return &faulty{server: ss[0]}, nil }}}
	p.sizes, p.goroutines, p.settle = []int{1}, []int{1}, 0
	cells, err := p.run(t.Context(), ss)
	require.NoError(t, err)
	require.NoError(t, verdict(cells))
	require.Equal(t, 1, cells[0].Median.KeysLeft)
	require.Positive(t, cells[0].Median.Errors)
	r := report{Cells: cells, scenarios: p.scenarios}
	require.Contains(t, r.table(p.scenarios[0]), "out of order; 1 LOCK KEYS LEFT")

	cells[0].contender.ours = true
	require.ErrorContains(t, verdict(cells), "out of order")
	require.False(t, leftOvers(cells)[0].Met)
}

func TestFenceKeysAreToBeOnePerResourceForATime(t *testing.T) {
	ss := servers(redistest.StartN(t, 2))
	s := setting{contender: contender{ours: true, fenced: true}, ttl: leaseTTL, distinct: func() int { return 2 }}
	audit := func() (f figures) {
		n, err := ss.count(t.Context(), 0)
		require.NoError(t, err)
		f.audit(n, s)
		return f
	}
	longest := leaseTTL + fenceRetention
	ss[0].MustDo(t, "SET", "{a}:fence", "1", "PX", strconv.FormatInt(longest.Milliseconds(), 10))
	require.Equal(t, 1, audit().FenceFaults, "too few")
	ss[0].MustDo(t, "SET", "{b}:fence", "1", "PX", "1000000")
	require.Equal(t, 1, audit().FenceFaults, "too long")
	ss[0].MustDo(t, "SET", "{b}:fence", "1", "PX", "100000")
	ss[1].MustDo(t, "SET", "{b}:fence", "1", "PX", "100000")
	require.Equal(t, figures{FenceKeys: 2}, audit(), "the same key on two instances is one")
	ss[1].MustDo(t, "SET", "{b}:fence", "1")
	require.Equal(t, 1, audit().FenceFaults, "for ever")
	ss[1].MustDo(t, "SET", "{c}:fence", "1", "PX", "100000")
	require.Equal(t, 2, audit().FenceFaults, "and too many")

	require.Zero(t, audit().KeysLeft)
	ss[0].MustDo(t, "SET", "a", "1")
	ss[1].MustDo(t, "SET", "a", "1")
	require.Equal(t, 2, audit().KeysLeft)
}

func TestFiguresOfKnownSamples(t *testing.T) {
	w := worker{errors: 1, err: errors.New("once"), inTime: 90}
	for i := 1; i <= 100; i++ {
		w.latencies = append(w.latencies, latency{time.Duration(201 - 2*i), time.Duration(101 - i)})
	}
	f := summary([]worker{w, {inTime: 2}}, 2*time.Second, usage{mallocs: 300, cpu: 5000})
	require.Equal(t, figures{
		P50: 50, P99: 99, AcquireP50: 99, AcquireP99: 197, PerSecond: 46, Allocs: 3, CPU: 50, Fairness: 45,
		Locks: 100, Errors: 1, Error: "once",
	}, f)

	m := median([]figures{{P50: 9, Errors: 1, Error: "e", Goroutines: 7}, {P50: 1, Goroutines: 9}, {P50: 2, KeysLeft: 3}})
	require.Equal(t, figures{P50: 2, Errors: 1, Error: "e", KeysLeft: 3, Goroutines: 9}, m)
	require.Equal(t, 3.0, median([]figures{{PerSecond: 4}, {PerSecond: 2}}).PerSecond)
	require.Equal(t, 7.0, fairness(7, 0), "nobody waits for infinity")
}

func TestEveryFigureHasAMedian(t *testing.T) {
	var f figures
	v := reflect.ValueOf(&f).Elem()
	for i := range v.NumField() {
		switch field := v.Field(i); field.Kind() {
		case reflect.Struct:
			for i := range field.NumField() {
				field.Field(i).SetFloat(7)
			}
		case reflect.Float64:
			field.SetFloat(7)
		case reflect.String:
			field.SetString("seven")
		default:
			field.SetInt(7)
		}
	}
	require.Equal(t, f, median([]figures{f}))
}

func TestSharesAreOfTheInnermostThatTells(t *testing.T) {
	sample := func(n int64, stack ...string) *profile.Sample {
		s := &profile.Sample{Value: []int64{n}}
		for _, name := range stack {
			s.Location = append(s.Location, &profile.Location{Line: []profile.Line{{Function: &profile.Function{Name: name}}}})
		}
		return s
	}
	const worker = "github.com/quorumlock/redlock.(*instance).run"
	p := &profile.Profile{Sample: []*profile.Sample{
		sample(1, "internal/runtime/syscall/linux.Syscall6", "syscall.Write", "net.(*conn).Write", "github.com/redis/go-redis/v9.(*Client).Process", worker),
		sample(2, "runtime.memmove", "runtime.mallocgc", worker),
		sample(1, "strconv.AppendInt", "github.com/redis/go-redis/v9/internal/proto.(*Writer).WriteArg", worker),
		sample(1, "runtime.memclr", "runtime.selectgo", worker),
		sample(5, "runtime.mapaccess1", worker),
	}}
	require.Equal(t, shares{Kernel: 0.1, Scheduler: 0.1, Memory: 0.2, Redis: 0.1, Rest: 0.5}, sharesOf(p))
	require.Zero(t, sharesOf(&profile.Profile{}))
}

func TestScriptsCountAsOneRequest(t *testing.T) {
	ss := servers(redistest.StartN(t, 1))
	c := contenders()[slices.IndexFunc(contenders(), func(c contender) bool { return c.name == plainBaseline })]
	l := open(t, c, ss)
	_, err := lockOnce(t.Context(), l, "warm")
	require.NoError(t, err)
	before, err := ss.work(c.scripted)
	require.NoError(t, err)
	for range 5 {
		_, err = lockOnce(t.Context(), l, "a")
		require.NoError(t, err)
	}
	after, err := ss.work(c.scripted)
	require.NoError(t, err)
	f := figures{Locks: 5}
	f.serve(after.since(before), 1)
	require.Equal(t, 2.0, f.Requests, "SET and EVALSHA")
	require.Equal(t, 4.0, f.Commands, "and the script's GET and DEL")
}

func TestTurnsOfProcessesArePutInOrder(t *testing.T) {
	seen := []testimony{
		{Turns: []turn{{100, 200}, {210, 300}, {310, 320}, {1000, 1100}}, Waited: time.Second},
		{Turns: []turn{{360, 400}}, Waited: time.Second, Errors: []string{"once"}},
	}
	f := assemble(seen, work{requests: 60, commands: 120}, 3, 2*time.Second)
	require.Equal(t, figures{
		P50: 40, P99: 600, PerSecond: 2.5, Requests: 10, Commands: 20, Fairness: 4, Locks: 5, Errors: 1, Error: "once",
	}, f, "a hand-over within a process is none between them")

	seen[1].Turns[0].Acquired = 315
	seen[1].Errors = nil
	require.Contains(t, assemble(seen, work{}, 3, time.Second).Error, "two holders: one from 310 to 320, the next from 315")
}

func TestWaitersHoldInTurnAndSayHowLongTheyWaited(t *testing.T) {
	l := open(t, contenders()[0], redistest.StartN(t, 1))
	_, err := lockOnce(t.Context(), l, "warm")
	require.NoError(t, err)
	const hold = 20 * time.Millisecond
	seen := job{Waiters: 2, Hold: hold, Duration: 20 * hold}.work(t.Context(), l)
	require.Empty(t, seen.Errors)
	require.NotEmpty(t, seen.Turns)
	for _, turn := range seen.Turns {
		require.GreaterOrEqual(t, time.Duration(turn.Released-turn.Acquired), hold)
	}
	require.GreaterOrEqual(t, seen.Waited, hold, "one waits while the other holds")
	require.Zero(t, assemble([]testimony{seen}, work{}, 1, time.Second).Errors)
}

func TestPeakCountsWhatRanMeanwhile(t *testing.T) {
	idle := goroutines(t.Context())
	most := peak(func() {
		var all sync.WaitGroup
		for range 50 {
			all.Go(func() { time.Sleep(100 * time.Millisecond) })
		}
		all.Wait()
	})
	require.InDelta(t, idle+50, most, 2)
}

func TestResourcesAreOwnSharedOrNew(t *testing.T) {
	take := func(w workload) (taken []string, distinct int) {
		rs := w.resources(2)
		for _, r := range rs {
			for range 150 {
				taken = append(taken, r.next())
			}
		}
		slices.Sort(taken)
		return slices.Compact(taken), w.distinct(rs)
	}
	for w, want := range map[workload]int{ownResources: 200, freshResources: 300, oneResource: 1} {
		taken, distinct := take(w)
		require.Len(t, taken, want)
		require.Equal(t, want, distinct)
	}
}

func TestRatiosAreOfMediansInTheSameSetting(t *testing.T) {
	at := func(contender string, callers int) key {
		return key{Scenario: "throughput", N: 3, Load: callers, Contender: contender}
	}
	cells := []*cell{
		{key: at("redlock", 64), Median: figures{P50: 500, P99: 9000, PerSecond: 123456, Allocs: 3.14, CPU: 100}},
		{key: at("redsync", 64), Median: figures{P50: 1000, P99: 1000, PerSecond: 6172.8, Allocs: 92, CPU: 2000, KeysLeft: 2}},
		{key: at("plain", 64), Median: figures{P50: 400}},
		{key: at("plain", 1), Median: figures{P50: 1}},
	}
	compare(cells)
	require.Contains(t, report{Cells: cells}.table(scenarios()[0]), `
| 64 | redlock | 0.50 | 9.00 | 123456 | 3.14 | 0.10 | – | 0 | 0 | 0.50 | 20.0 | 0.05 | 1.25 |
| 64 | redsync | 1.00 | 1.00 | 6173 | 92.0 | 2.00 | – | 0 | **2 LEFT** | 1.00 | 1.00 | 1.00 | 2.50 |
| 64 | plain | 0.40 | – | 0.00 | 0.00 | – | – | 0 | 0 | 0.40 | – | – | 1.00 |
| 1 | plain | 0.00 | – | 0.00 | 0.00 | – | – | 0 | 0 | – | – | – | 1.00 |
`)
}

func TestCommandLineRefusesNonsense(t *testing.T) {
	for _, args := range [][]string{
		{"-n", "0"},
		{"-goroutines", "many"},
		{"-only", "nobody"},
		{"-reps", "0"},
		{"-duration", "-1s"},
		{"report.md"},
		{"-scenario", "all"},
		{"-processes", "1"},
		{"-lease", "1ms"},
		{"-delay", "-1ms"},
		{"-quick", "-held", "few"},
		{"-guard", "-reps", "1"},
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
	rs := ownResources.resources(goroutines)
	warm := drive(ctxs, l, rs, 50*time.Millisecond, 0)
	require.Zero(b, warm.Errors, warm.Error)

	var left atomic.Int64
	left.Store(int64(b.N))
	var all sync.WaitGroup
	b.ReportAllocs()
	b.ResetTimer()
	for i, ctx := range ctxs {
		all.Go(func() {
			for left.Add(-1) >= 0 {
				if _, err := lockOnce(ctx, l, rs[i].next()); err != nil {
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
