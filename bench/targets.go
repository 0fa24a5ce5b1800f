package main

import (
	"fmt"
	"time"
)

// A target is a figure that redlock is to reach: of one cell, or divided by that of another one.
type target struct {
	what   string
	cell   key
	base   key // without a contender: the figure stands alone
	figure figure
	limit  limit
}

// A limit is a bound on a figure.
type limit struct {
	atLeast bool
	bound   float64
}

func atMost(bound float64) limit  { return limit{bound: bound} }
func atLeast(bound float64) limit { return limit{true, bound} }

func (l limit) met(x float64) bool {
	if l.atLeast {
		return x >= l.bound
	}
	return x <= l.bound
}

func (l limit) String() string {
	if l.atLeast {
		return fmt.Sprintf("≥ %.4g", l.bound)
	}
	return fmt.Sprintf("≤ %.4g", l.bound)
}

// A figure is one of a cell's figures, as a number.
type figure struct {
	name   string
	of     func(f figures) float64
	counts bool // 0 is a value, and not the lack of one
}

var (
	figP50        = figure{name: "p50", of: func(f figures) float64 { return micro(f.P50) }}
	figP99        = figure{name: "p99", of: func(f figures) float64 { return micro(f.P99) }}
	figRate       = figure{name: "per second", of: func(f figures) float64 { return f.PerSecond }}
	figCPU        = figure{name: "client CPU", of: func(f figures) float64 { return micro(f.CPU) }}
	figAllocs     = figure{name: "allocations", of: func(f figures) float64 { return f.Allocs }}
	figErrors     = figure{name: "errors", of: func(f figures) float64 { return float64(f.Errors) }, counts: true}
	figGoroutines = figure{name: "goroutines", of: func(f figures) float64 { return float64(f.Goroutines) }}
	figRequests   = figure{name: "requests", of: func(f figures) float64 { return f.Requests }}
	figFairness   = figure{name: "max / min", of: func(f figures) float64 { return f.Fairness }}
	figTrips      = figure{name: "p50 in round trips", of: func(f figures) float64 { return ratio(f.P50, f.RoundTrip) }}
	figAcquireP50 = figure{name: "acquire p50 in round trips", of: func(f figures) float64 { return ratio(f.AcquireP50, f.RoundTrip) }}
	figAcquireP99 = figure{name: "acquire p99 in round trips", of: func(f figures) float64 { return ratio(f.AcquireP99, f.RoundTrip) }}
)

func micro(d time.Duration) float64 { return float64(d) / float64(time.Microsecond) }

const (
	fencedLock   = "redlock"
	unfencedLock = "redlock-nofence"
)

// targets returns what redlock is to reach, with default options where nothing else is said.
func targets(p *plan) []target {
	var ts []target
	add := func(what string, k key, against string, f figure, l limit) {
		if k.Contender == "" {
			k.Contender = fencedLock
		}
		t := target{what: what, cell: k, figure: f, limit: l}
		if against != "" {
			t.base = k
			t.base.Contender = against
		}
		ts = append(ts, t)
	}
	apart := func(n, callers int, contender string) key {
		return key{Scenario: "throughput", N: n, Load: callers, Contender: contender}
	}

	plainP50 := map[int]float64{1: 1.25, 3: 1.1, 5: 1.1}
	for _, n := range []int{1, 3, 5} {
		what := fmt.Sprintf("p50 of acquire + release, 1 goroutine, N=%d", n)
		add(what, apart(n, 1, ""), baseline, figP50, atMost(0.75))
		add(what, apart(n, 1, ""), plainBaseline, figP50, atMost(plainP50[n]))
	}
	for _, r := range []struct {
		callers, n       int
		fenced, unfenced float64
	}{{64, 1, 4.5, 6}, {64, 3, 7, 10}, {64, 5, 8, 12}, {256, 3, 8.5, 13}, {256, 5, 9, 16}} {
		what := fmt.Sprintf("acquire + release per second, %d goroutines, N=%d", r.callers, r.n)
		add(what, apart(r.n, r.callers, ""), baseline, figRate, atLeast(r.fenced))
		add(what+", WithoutFencing", apart(r.n, r.callers, unfencedLock), baseline, figRate, atLeast(r.unfenced))
	}
	add("client CPU per lock, 256 goroutines, N=3", apart(3, 256, ""), baseline, figCPU, atMost(1.0/20))
	add("allocations per lock, 64 goroutines, N=3", apart(3, 64, ""), "", figAllocs, atMost(8))
	add("allocations per lock, 1 goroutine, N=3", apart(3, 1, ""), "", figAllocs, atMost(45))

	for _, o := range []outage{hung, killed} {
		before := key{Scenario: o.name, Case: o.before(), N: usual, Load: 64, Contender: fencedLock}
		during := before
		during.Case = o.name
		what := fmt.Sprintf("one of 3 %s, 64 goroutines: ", o.name)
		ts = append(ts, target{what + "per second, of healthy", during, before, figRate, atLeast(0.9)})
		ts = append(ts, target{what + "p99, of healthy", during, before, figP99, atMost(2)})
		add(what+"errors", during, "", figErrors, atMost(0))
		add(what+"goroutines", during, "", figGoroutines, atMost(64+8*usual+10))
	}
	before := key{Scenario: hung.name, Case: hung.before(), N: usual, Load: 1, Contender: fencedLock}
	during := before
	during.Case = hung.name
	ts = append(ts, target{"one of 3 hung, 1 goroutine: p50, of healthy", during, before, figP50, atMost(1.2)})

	add(fmt.Sprintf("hand-over to a local waiter, %d waiters once each, N=3", onceWaiters), key{Scenario: "handover", N: usual, Load: onceWaiters}, baseline, figP50, atMost(1.0/50))
	add("requests per instance and hand-over, 64 local waiters", key{Scenario: "local", N: usual, Load: 64}, "", figRequests, atMost(2.2))
	add("fairness, 64 local waiters", key{Scenario: "local", N: usual, Load: 64}, "", figFairness, atMost(1.2))

	crowds := p.crowds()
	across := func(i int) key {
		w := crowds[i]
		return key{Scenario: "processes", Case: w.name, N: usual, Load: w.processes * w.each}
	}
	add("fairness, two processes", across(2), "", figFairness, atMost(2))
	add("hand-over between processes, "+shortHold, across(0), plainBaseline, figP50, atMost(1.0/3))
	add("requests per instance and waiter-second, between processes, "+longHold, across(1), "", figRequests, atMost(5))

	add("10,000 renewals, N=3", key{Scenario: "renewals", N: usual, Load: 10_000}, baseline, figCPU, atMost(1.0/8))

	far := func(name string, callers int) key {
		return key{Scenario: "delay", Case: name, N: usual, Load: callers}
	}
	add("network delay, 1 goroutine: acquire", far(distant, 1), "", figAcquireP50, atMost(1.1))
	add("network delay, 1 goroutine: local hand-over", far(distantWaiter, 1), "", figTrips, atMost(1.1))
	add("network delay, 64 goroutines: acquire", far(distant, 64), "", figAcquireP50, atMost(1.4))
	add("network delay, 64 goroutines: acquire", far(distant, 64), "", figAcquireP99, atMost(2.2))
	return ts
}

// A row is a target with what was measured.
type row struct {
	What     string  `json:"what"`
	Figure   string  `json:"figure"`
	Measured float64 `json:"measured"`
	From     string  `json:"from"` // what was divided
	Target   string  `json:"target"`
	Met      bool    `json:"met"`
	Missing  bool    `json:"missing,omitempty"` // this run did not measure it
}

// id is what a guard calls the row.
func (r row) id() string { return r.What + ": " + r.Figure }

// judge compares the cells with the targets, of the scenarios that were measured.
func judge(p *plan, cells []*cell) []row {
	medians := make(map[key]figures)
	for _, c := range cells {
		medians[c.key] = c.Median
	}
	var rows []row
	for _, t := range targets(p) {
		if p.measures(t.cell.Scenario) {
			rows = append(rows, t.row(medians))
		}
	}
	return append(rows, leftOvers(cells)...)
}

func (p *plan) measures(scenario string) bool {
	for _, s := range p.scenarios {
		if s.name == scenario {
			return true
		}
	}
	return false
}

func (t target) row(medians map[key]figures) row {
	r := row{What: t.what, Figure: t.figure.name, Target: t.limit.String()}
	f, ok := medians[t.cell]
	r.Measured = t.figure.of(f)
	ok = ok && (t.figure.counts || r.Measured > 0)
	r.From = digits(r.Measured)
	if t.base.Contender != "" {
		base := t.figure.of(medians[t.base])
		ok = ok && base > 0
		r.From = fmt.Sprintf("%s / %s", digits(r.Measured), digits(base))
		r.Measured = ratio(r.Measured, base)
		if t.base.Contender != t.cell.Contender {
			r.Figure += " / " + t.base.Contender
		}
	}
	r.Missing = !ok
	r.Met = ok && t.limit.met(r.Measured)
	return r
}

// leftOvers sums up what our contenders left behind in all runs.
func leftOvers(cells []*cell) []row {
	var left, faults, fences int
	for _, c := range cells {
		if c.contender.ours {
			left += c.Median.KeysLeft
			faults += c.Median.FenceFaults
			fences += c.Median.FenceKeys
		}
	}
	return []row{
		{What: "lock keys left behind, all runs", Figure: "keys", Measured: float64(left), From: fmt.Sprint(left), Target: atMost(0).String(), Met: left == 0},
		{
			What: "fence keys that are not one per resource, or expire later than ttl + retention, all runs", Figure: "keys",
			Measured: float64(faults), From: fmt.Sprintf("%d of %d", faults, fences), Target: atMost(0).String(), Met: faults == 0,
		},
	}
}
