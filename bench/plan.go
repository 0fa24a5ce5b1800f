package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"slices"
	"time"

	"github.com/quorumlock/redlock/internal/redistest"
)

// A plan is everything one run measures.
type plan struct {
	scenarios  []scenario
	contenders []contender
	sizes      []int         // N, where callers do not meet
	goroutines []int         // callers that do not meet
	waiters    []int         // callers that want one resource
	held       []int         // locks that are kept alive
	processes  int           // that want one resource
	delay      time.Duration // of a round trip
	duration   time.Duration // of a cell's measurement; a quarter of it goes before, to warm up
	reps       int
	ttl        time.Duration
	lease      time.Duration // the ttl of the locks that are kept alive
	settle     time.Duration // for the releases that a library sends behind its caller's back, before keys count as left
	slow       bool          // measure also what takes ten seconds an operation
	progress   io.Writer
}

// A scenario is a question with the trials that answer it.
type scenario struct {
	name    string
	title   string
	load    string // what a cell's load counts
	trials  func(p *plan) []trial
	columns []column
}

// A trial is one measurement. It fills one cell, or more where a contender is compared with itself.
type trial struct {
	cells []*cell
	once  bool // too slow to repeat
	run   func(ctx context.Context, ss servers) ([]figures, error)
}

// A cell is one contender in one setting, with what was measured.
type cell struct {
	key

	Median figures   `json:"median"` // of Reps; counts are sums, so that none is lost
	Ratios ratios    `json:"ratios"`
	Reps   []figures `json:"reps"`

	contender contender
}

// A key names a cell.
type key struct {
	Scenario  string `json:"scenario"`
	Case      string `json:"case,omitempty"` // the setting, where a scenario has several
	N         int    `json:"n"`
	Load      int    `json:"load"` // callers, waiters or locks held
	Contender string `json:"contender"`
}

func (k key) String() string {
	name := k.Scenario
	if k.Case != "" {
		name += " (" + k.Case + ")"
	}
	return fmt.Sprintf("%s N=%d %d %s", name, k.N, k.Load, k.Contender)
}

// usual is N where how cost grows with it is not the question.
const usual = 3

// patience is for the last lock of a cell, before its caller gives up.
const patience = 15 * time.Second

// servers returns how many servers the plan needs.
func (p *plan) servers() int { return max(slices.Max(p.sizes), usual) }

// quorumLocks returns the contenders that know more than one server.
func (p *plan) quorumLocks() []contender {
	return slices.DeleteFunc(slices.Clone(p.contenders), func(c contender) bool { return c.single })
}

// run measures every cell on servers that are running. Within a scenario, repetitions are the outermost loop, so that
// a noisy minute spoils one repetition of many cells and not many of one, and every other one goes backwards, so that
// nobody always follows the same neighbour.
func (p *plan) run(ctx context.Context, ss servers) ([]*cell, error) {
	var cells []*cell
	for _, s := range p.scenarios {
		trials := s.trials(p)
		for rep := range p.reps {
			for _, t := range trials {
				if t.once && rep > 0 {
					continue
				}
				if err := p.try(ctx, ss, t, rep); err != nil {
					return nil, fmt.Errorf("%s: %w", t.cells[0], err)
				}
			}
			slices.Reverse(trials)
		}
		if p.reps%2 == 1 {
			slices.Reverse(trials)
		}
		for _, t := range trials {
			cells = append(cells, t.cells...)
		}
	}
	for _, c := range cells {
		c.Median = median(c.Reps)
	}
	compare(cells)
	return cells, nil
}

func (p *plan) try(ctx context.Context, ss servers, t trial, rep int) error {
	fs, err := t.run(ctx, ss)
	if err != nil {
		return err
	}
	for i, c := range t.cells {
		c.Reps = append(c.Reps, fs[i])
		fmt.Fprintf(p.progress, "rep %d/%d  %-68s %s\n", rep+1, p.reps, c, fs[i].brief())
	}
	return nil
}

// A setting is where a contender is measured.
type setting struct {
	contender contender
	instances servers
	addrs     []string // of the instances, or of what stands before them
	ttl       time.Duration
	callers   int
	limit     time.Duration // after which callers give up; patience is added
	distinct  func() int    // how many resources were locked
}

// measure opens the contender on empty instances, has f measure it, and adds what is left behind to f's last figures.
func (p *plan) measure(ctx context.Context, s setting, f func(ctxs []context.Context, l locker) ([]figures, error)) (fs []figures, err error) {
	if err := s.instances.flush(); err != nil {
		return nil, err
	}
	l, err := s.contender.open(s.addrs, s.ttl)
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, l.close()) }()

	ctxs, cancel := callers(ctx, s.callers)
	defer cancel()
	defer time.AfterFunc(s.limit+2*patience, cancel).Stop()
	if fs, err = f(ctxs, l); err != nil {
		return nil, err
	}
	left, err := s.instances.count(ctx, p.settle)
	fs[len(fs)-1].audit(left, s)
	return fs, errors.Join(err, ctx.Err())
}

// fenceRetention is redlock's default.
const fenceRetention = 10 * time.Minute

// audit writes down which keys were left: no lock key may be, and of fence keys one for each resource, for a time.
func (f *figures) audit(left census, s setting) {
	f.KeysLeft, f.FenceKeys = left.locks, left.fences
	if !s.contender.ours {
		return
	}
	want := 0
	if s.contender.fenced {
		want = s.distinct()
	}
	f.FenceFaults = max(want-left.fences, left.fences-want) + left.forever
	if left.longest > s.ttl+fenceRetention {
		f.FenceFaults++
	}
}

// loaded returns a setting in which callers put a load on the first n servers, and their resources.
func (p *plan) loaded(c contender, ss servers, n, callers int, load workload) (setting, []*resources) {
	rs := load.resources(callers)
	return setting{
		contender: c, instances: ss[:n], addrs: redistest.Addrs(ss[:n]), ttl: p.ttl,
		callers: callers, limit: p.warmUp() + p.duration,
		distinct: func() int { return load.distinct(rs) },
	}, rs
}

func (p *plan) warmUp() time.Duration { return p.duration / 4 }

// steady measures a load on l after a time to warm up, with what the instances do for it.
func (p *plan) steady(ctxs []context.Context, l locker, s setting, rs []*resources) (figures, error) {
	warm := drive(ctxs, l, rs, p.warmUp(), 0)
	before, err := s.instances.work(s.contender.scripted)
	if err != nil {
		return figures{}, err
	}
	f := drive(ctxs, l, rs, p.duration, int(2*float64(warm.Locks)*float64(p.duration)/float64(p.warmUp())))
	after, err := s.instances.work(s.contender.scripted)
	f.serve(after.since(before), len(s.instances))
	if warm.Errors > 0 {
		f.Errors += warm.Errors
		f.Error = "while warming up: " + warm.Error
	}
	return f, err
}

// verdict returns an error if one of ours did not do what it promises, whatever its speed.
func verdict(cells []*cell) error {
	var errs []error
	for _, c := range cells {
		if s := c.Median.complaint(); s != "" && c.contender.ours {
			errs = append(errs, fmt.Errorf("%s: %s", c, s))
		}
	}
	return errors.Join(errs...)
}
