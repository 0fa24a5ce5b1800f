package faults

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"sync"
	"time"

	"github.com/quorumlock/redlock/chaos/history"
)

// A Config says how a scenario is run.
type Config struct {
	Seed       uint64        // of the schedule
	For        time.Duration // how long there are faults; longer if too few have hit anything by then
	Processes  int           // of clients, at least two
	Goroutines int           // in each
	Operations int           // fewer that could be checked are a failed run
	Port       int           // the instances listen on it and the next ones; 0: on free ones
	Keep       string        // where the history of a failed run is left; "": nowhere
}

// A planned is one step of the schedule.
type planned struct {
	fault  fault
	target int
	length time.Duration
	gap    time.Duration // before it
}

// plan returns the steps of one lane of s, one with each call. The same seed gives the
// same steps; how many of them a run gets to is the machine's affair.
func (s *scenario) plan(seed uint64, lane, targets, clients int) (next func() (planned, *rand.Rand)) {
	r := newRand(seed, lane)
	return func() (planned, *rand.Rand) {
		f := s.faults[r.IntN(len(s.faults))]
		of := targets
		if f.client {
			of = clients
		}
		return planned{
			fault:  f,
			target: lane + s.lanes*r.IntN((of-lane+s.lanes-1)/s.lanes), // no other lane has it
			length: f.least + time.Duration(r.Int64N(int64(f.most-f.least))),
			gap:    time.Duration(r.Int64N(int64(s.gap))),
		}, r
	}
}

// newRand returns what decides in a lane of a schedule, or in a worker.
func newRand(seed uint64, n int) *rand.Rand {
	return rand.New(rand.NewPCG(seed, uint64(n))) //nolint:gosec // no secret, and positive
}

// run runs the scenario once, and judges what happened. An error means that there is
// nothing to judge. When it returns, no process and no file of it is left.
func (s *scenario) run(ctx context.Context, c Config) (report *history.Report, err error) {
	a, err := start(ctx, s, c)
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, a.close()) }()
	if err := a.working(ctx); err != nil {
		return nil, err
	}
	if err := s.inject(ctx, a, c); err != nil {
		return nil, err
	}
	healed := time.Now()
	if err := errors.Join(a.working(ctx), sleep(ctx, s.calm)); err != nil {
		return nil, err
	}
	if err := a.each(func(p *process) error { return p.quiet(ctx) }); err != nil {
		return nil, err
	}
	left, err := a.clean(ctx, cleanPatience)
	if err != nil {
		return nil, err
	}
	if err := a.each(func(p *process) error { return p.end(ctx) }); err != nil {
		return nil, err
	}
	h, err := a.collect()
	if err != nil {
		return nil, err
	}
	h.Leftovers, h.Healed = left, healed.UnixNano()
	d := s.demand()
	d.Operations, d.Faults, d.Pictures = c.Operations, s.least, c.Keep
	report, err = h.Check(d)
	if err == nil && len(report.Failures) > 0 && c.Keep != "" {
		err = keep(h, historyFile(c.Keep, s))
	}
	return report, err
}

func historyFile(dir string, s *scenario) string { return filepath.Join(dir, s.name+".json") }

// keep writes h to path, as JSON.
func keep(h *history.History, path string) error {
	text, err := json.Marshal(h)
	if err != nil {
		return err
	}
	return os.WriteFile(path, text, 0o600)
}

// cleanPatience is how long lock keys may be there after the clients have stopped: the
// clean-up list asks twice, a second apart, and an instance that was down is probed
// at least every 750 ms. The leases of long locks are longer.
const cleanPatience = 10 * time.Second

// each calls f for all clients at once.
func (a *arena) each(f func(*process) error) error {
	errs := make([]error, len(a.clients))
	var wg sync.WaitGroup
	for i, p := range a.clients {
		wg.Go(func() { errs[i] = f(p) })
	}
	wg.Wait()
	return errors.Join(errs...)
}

// longestFor is how many times as long as it should a run may have faults until enough
// of them have hit something.
const longestFor = 10

// inject brings the faults of the schedule about, and returns when the last is over.
func (s *scenario) inject(ctx context.Context, a *arena, c Config) error {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	over, stop := context.WithTimeout(ctx, longestFor*c.For)
	defer stop()
	enough := time.Now().Add(c.For)
	var wg sync.WaitGroup
	for lane := range s.lanes {
		wg.Go(func() {
			next := s.plan(c.Seed, lane, len(a.instances), len(a.clients))
			for {
				p, r := next()
				if sleep(over, p.gap) != nil || time.Now().After(enough) && a.hit() >= s.least {
					return
				}
				if err := a.strike(over, p, r); err != nil {
					cancel(err)
					return
				}
			}
		})
	}
	wg.Wait()
	return context.Cause(ctx)
}

// strike brings one fault about, and records it.
func (a *arena) strike(ctx context.Context, p planned, r *rand.Rand) error {
	s := &strike{arena: a, length: p.length, rand: r}
	var target string
	if p.fault.client {
		s.client = a.clients[p.target]
		target = s.client.name
	} else {
		s.instance = a.instances[p.target]
		target = s.instance.name
	}
	f := history.Fault{Name: p.fault.name, Target: target, From: time.Now().UnixNano()}
	hits, err := p.fault.do(ctx, s)
	if err != nil {
		return fmt.Errorf("%s of %s: %w", f.Name, target, err)
	}
	f.To, f.Hits = time.Now().UnixNano(), hits
	a.record(f)
	return nil
}
