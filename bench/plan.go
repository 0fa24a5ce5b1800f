package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"time"

	"github.com/quorumlock/redlock/internal/redistest"
)

// A plan is everything one run measures.
type plan struct {
	contenders []contender
	sizes      []int // N
	goroutines []int
	duration   time.Duration // of a cell's measurement; a quarter of it goes before, to warm up
	reps       int
	load       workload
	ttl        time.Duration
	settle     time.Duration // for the releases that a library sends behind its caller's back, before keys count as left
	progress   io.Writer
}

// A cell is one contender at one size under one load, with what was measured.
type cell struct {
	Contender  string `json:"contender"`
	N          int    `json:"n"`
	Goroutines int    `json:"goroutines"`

	Median figures   `json:"median"` // of Reps; locks, errors and keys left are sums, so that none is lost
	Ratios ratios    `json:"ratios"`
	Reps   []figures `json:"reps"`

	contender contender
}

// patience is for the last lock of a cell, before its caller gives up.
const patience = 15 * time.Second

// run measures every cell on servers that are running. Repetitions are the outermost loop, so that a noisy minute
// spoils one repetition of many cells and not many of one, and every other one goes backwards, so that nobody always
// follows the same neighbour.
func (p plan) run(ctx context.Context, ss servers) ([]*cell, error) {
	cells := p.cells()
	for rep := range p.reps {
		for i := range cells {
			c := cells[i]
			if rep%2 == 1 {
				c = cells[len(cells)-1-i]
			}
			f, err := p.measure(ctx, ss[:c.N], c)
			if err != nil {
				return nil, fmt.Errorf("%s: %w", c, err)
			}
			c.Reps = append(c.Reps, f)
			p.log("rep %d/%d  %-36s %7.0f/s  p50 %-12v %s", rep+1, p.reps, c, f.PerSecond, f.P50, f.complaint())
		}
	}
	for _, c := range cells {
		c.Median = median(c.Reps)
	}
	compare(cells)
	return cells, nil
}

// cells lists what the plan measures: contenders innermost, so that those who are compared run side by side.
func (p plan) cells() []*cell {
	var cells []*cell
	for _, n := range p.sizes {
		for _, g := range p.goroutines {
			for _, c := range p.contenders {
				if c.single && n > 1 {
					continue
				}
				cells = append(cells, &cell{Contender: c.name, N: n, Goroutines: g, contender: c})
			}
		}
	}
	return cells
}

func (p plan) measure(ctx context.Context, ss servers, c *cell) (f figures, err error) {
	if err := ss.flush(); err != nil {
		return f, err
	}
	l, err := c.contender.open(redistest.Addrs(ss), p.ttl)
	if err != nil {
		return f, err
	}
	defer func() { err = errors.Join(err, l.close()) }()

	ctxs, cancel := callers(ctx, c.Goroutines)
	defer cancel()
	warmUp := p.duration / 4
	defer time.AfterFunc(warmUp+p.duration+2*patience, cancel).Stop()

	warm := drive(ctxs, l, p.load, warmUp, 0)
	f = drive(ctxs, l, p.load, p.duration, int(2*float64(warm.Locks)*float64(p.duration)/float64(warmUp)))
	if warm.Errors > 0 {
		f.Errors += warm.Errors
		f.Error = "while warming up: " + warm.Error
	}
	f.KeysLeft, err = ss.keysLeft(ctx, p.settle)
	return f, errors.Join(err, ctx.Err())
}

func (p plan) log(format string, args ...any) {
	fmt.Fprintf(p.progress, format+"\n", args...)
}

func (c *cell) String() string {
	return fmt.Sprintf("%s N=%d goroutines=%d", c.Contender, c.N, c.Goroutines)
}

// verdict returns an error if one of ours did not do what it promises, whatever its speed.
func verdict(cells []*cell) error {
	var errs []error
	for _, c := range cells {
		if c.contender.ours && (c.Median.Errors > 0 || c.Median.KeysLeft > 0) {
			errs = append(errs, fmt.Errorf("%s: %s", c, c.Median.complaint()))
		}
	}
	return errors.Join(errs...)
}
