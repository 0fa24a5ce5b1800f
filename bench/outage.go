package main

import (
	"context"
	"errors"
	"runtime"
	"time"

	"github.com/quorumlock/redlock/internal/redistest"
)

// An outage is what happens to one of three instances.
type outage struct {
	name       string
	begin, end func(*redistest.Server) error
}

var (
	hung   = outage{"hung", (*redistest.Server).Pause, (*redistest.Server).Resume}
	killed = outage{"killed", (*redistest.Server).Kill, (*redistest.Server).Restart}
)

// before names the cell of the same Locker before the outage.
func (o outage) before() string { return "before " + o.name }

var outageLoads = []int{1, 64}

// trials compares each contender with itself before one of its instances goes.
func (o outage) trials(p *plan) []trial {
	var trials []trial
	for _, g := range outageLoads {
		for _, c := range p.quorumLocks() {
			slow := c.waitsForAll && o.name == hung.name
			if slow && !p.slow {
				continue
			}
			before := key{Scenario: o.name, Case: o.before(), N: usual, Load: g, Contender: c.name}
			during := before
			during.Case = o.name
			trials = append(trials, trial{
				cells: []*cell{{key: before, contender: c}, {key: during, contender: c}},
				once:  slow,
				run: func(ctx context.Context, ss servers) ([]figures, error) {
					return p.outlive(ctx, ss, c, g, o)
				},
			})
		}
	}
	return trials
}

func (p *plan) outlive(ctx context.Context, ss servers, c contender, callers int, o outage) ([]figures, error) {
	s, rs := p.loaded(c, ss, usual, callers, ownResources)
	s.limit += p.duration
	victim := s.instances[usual-1]
	idle := goroutines(ctx)
	return p.measure(ctx, s, func(ctxs []context.Context, l locker) ([]figures, error) {
		before, err := p.steady(ctxs, l, s, rs)
		if err != nil {
			return nil, err
		}
		if err := o.begin(victim); err != nil {
			return nil, err
		}
		// No time to get used to it: how the loss is found out is a part of what callers see.
		var during figures
		most := peak(func() { during = drive(ctxs, l, rs, p.duration, 2*before.Locks) })
		during.Goroutines = most - idle
		return []figures{before, during}, errors.Join(err, o.end(victim))
	})
}

// goroutines returns how many run, once the number stands still: one of the cell before may still be ending.
func goroutines(ctx context.Context) int {
	n := runtime.NumGoroutine()
	for still := 0; still < 5 && sleep(ctx, 5*time.Millisecond) == nil; still++ {
		if now := runtime.NumGoroutine(); now < n {
			n, still = now, 0
		}
	}
	return n
}

// peak returns the most goroutines that were seen while f ran, its own sampler not counted.
func peak(f func()) int {
	done := make(chan struct{})
	most := make(chan int)
	go func() {
		n := 0
		for tick := time.NewTicker(time.Millisecond); ; {
			select {
			case <-tick.C:
				n = max(n, runtime.NumGoroutine()-1)
			case <-done:
				tick.Stop()
				most <- n
				return
			}
		}
	}()
	f()
	close(done)
	return <-most
}
