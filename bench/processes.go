package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/quorumlock/redlock/internal/redistest"
)

// A crowd is a number of processes that want one resource over and over, and hold it for a time.
type crowd struct {
	name      string
	processes int
	each      int // waiters in a process
	hold      time.Duration
}

const (
	shortHold = "hold 1 ms"
	longHold  = "hold 100 ms"
	twoSides  = "two processes, 8 waiters each, hold 1 ms"
)

func (p *plan) crowds() []crowd {
	return []crowd{
		{shortHold, p.processes, 1, time.Millisecond},
		{longHold, p.processes, 1, 100 * time.Millisecond},
		{twoSides, 2, 8, time.Millisecond},
	}
}

// acrossProcesses measures hand-overs from one process to another.
func acrossProcesses(p *plan) []trial {
	var trials []trial
	for _, w := range p.crowds() {
		for _, c := range p.quorumLocks() {
			trials = append(trials, trial{
				cells: []*cell{{key: key{Scenario: "processes", Case: w.name, N: usual, Load: w.processes * w.each, Contender: c.name}, contender: c}},
				run: func(ctx context.Context, ss servers) ([]figures, error) {
					f, err := p.compete(ctx, ss[:usual], c, w)
					return []figures{f}, err
				},
			})
		}
	}
	return trials
}

// compete lets the crowd's processes go at once, and puts together what they saw.
func (p *plan) compete(ctx context.Context, ss servers, c contender, w crowd) (f figures, err error) {
	if err := ss.flush(); err != nil {
		return f, err
	}
	job := job{Contender: c.name, Addrs: redistest.Addrs(ss), TTL: p.ttl, Waiters: w.each, Hold: w.hold, Duration: max(p.duration, 10*w.hold)}
	ctx, cancel := context.WithTimeout(ctx, job.Duration+2*patience)
	defer cancel()
	var children []*child
	defer func() {
		for _, c := range children {
			err = errors.Join(err, c.end())
		}
	}()
	for range w.processes {
		c, err := job.start(ctx)
		if err != nil {
			return f, err
		}
		children = append(children, c)
	}
	for _, c := range children {
		if err := c.ready(); err != nil {
			return f, err
		}
	}
	before, err := ss.work(c.scripted)
	if err != nil {
		return f, err
	}
	for _, c := range children {
		if err := c.begin(); err != nil {
			return f, err
		}
	}
	seen := make([]testimony, len(children))
	for i, c := range children {
		if seen[i], err = c.testify(); err != nil {
			return f, err
		}
	}
	after, err := ss.work(c.scripted)
	if err != nil {
		return f, err
	}
	f = assemble(seen, after.since(before), len(ss), job.Duration)
	left, err := ss.count(ctx, p.settle)
	f.audit(left, setting{contender: c, ttl: p.ttl, distinct: func() int { return 1 + w.processes }})
	return f, err
}

// assemble puts the turns of all processes in order. Their instants are of one wall clock, that of this machine.
func assemble(seen []testimony, w work, n int, d time.Duration) figures {
	var f figures
	type turnOf struct {
		turn
		process int
	}
	var turns []turnOf
	var waited time.Duration
	counts := make([]int, len(seen))
	for i, t := range seen {
		for _, err := range t.Errors {
			f.fail(errors.New(err))
		}
		waited += t.Waited
		counts[i] = len(t.Turns)
		for _, t := range t.Turns {
			turns = append(turns, turnOf{t, i})
		}
	}
	slices.SortFunc(turns, func(a, b turnOf) int { return cmp.Compare(a.Acquired, b.Acquired) })
	var times []time.Duration
	for i := 1; i < len(turns); i++ {
		last, next := turns[i-1], turns[i]
		if next.Acquired < last.Released {
			f.fail(fmt.Errorf("two holders: one from %d to %d, the next from %d", last.Acquired, last.Released, next.Acquired))
		}
		if last.process != next.process {
			times = append(times, time.Duration(next.Acquired-last.Released))
		}
	}
	f.P50, f.P99 = percentiles(times)
	f.Locks = len(turns)
	f.PerSecond = float64(len(turns)) / d.Seconds()
	f.Fairness = fairness(slices.Max(counts), slices.Min(counts))
	if waited > 0 {
		f.Requests = w.requests / float64(n) / waited.Seconds()
		f.Commands = w.commands / float64(n) / waited.Seconds()
	}
	return f
}
