package main

import (
	"cmp"
	"context"
	"crypto/rand"
	"errors"
	"flag"
	"fmt"
	"io"
	"slices"
	"strconv"
	"sync"
	"text/tabwriter"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/quorumlock/redlock"
)

const benchUsage = `Usage: redlock bench [flags]

Measures how fast the instances lock, from where it runs: each goroutine acquires
and releases a lock of its own, which is free, over and over. It says how many
locks a second that is, and how long half of them (p50) and all but a hundredth
(p99) took, acquire and release together.

These are numbers for sizing: of one process, on one machine, over your network, as
loaded as they are right now. Waiting for a lock that somebody holds is not in them.
The instances run some seconds at full load. Nothing is left on those that answer.

Exit codes: 0; 69 if no quorum of the instances can be reached; 64 if a flag or an
endpoint is wrong.

Examples:

  redlock bench
  redlock bench --time 10s --json
`

const (
	benchTTL  = 10 * time.Second
	benchTime = 2 * time.Second
)

var benchGoroutines = []int{1, 16, 64, 256}

// A result is what was measured with so many goroutines.
type result struct {
	Goroutines int           `json:"goroutines"`
	Locks      int           `json:"locks"`
	PerSecond  float64       `json:"locks_per_second"`
	P50        time.Duration `json:"p50_ns"`
	P99        time.Duration `json:"p99_ns"`
	Failed     int           `json:"failed"`
}

// A benchmark locks names that nobody else knows.
type benchmark struct {
	locker *redlock.Locker
	prefix string // of the benchmark's key prefix, and of its names
	names  []string
}

// bench prints how fast the instances lock.
func bench(flags *flag.FlagSet) action {
	s := endpointFlags(flags)
	var prefix string
	prefixFlag(flags, &prefix)
	each := benchTime
	flags.Var((*duration)(&each), "time", fmt.Sprintf("how long to measure with each number of goroutines, %v: a `duration`", benchGoroutines))
	asJSON := jsonFlag(flags)
	return func(ctx context.Context, _ []string, stdout, stderr io.Writer) int {
		code, err := s.bench(ctx, prefix, each, *asJSON, stdout)
		if err != nil {
			fmt.Fprintln(stderr, "redlock bench:", printable(err.Error()))
		}
		return code
	}
}

func (s *source) bench(ctx context.Context, prefix string, each time.Duration, asJSON bool, stdout io.Writer) (int, error) {
	if each <= 0 {
		return exitUsage, errors.New("--time is not positive")
	}
	endpoints, err := s.named()
	if err != nil {
		return exitUsage, err
	}
	clients, err := openClients(endpoints, prefix, "redlock-bench")
	if err != nil {
		return exitUsage, err
	}
	defer closeAll(clients)
	// Its locks are its own: a server that has just started has forgotten none of them.
	locker, err := redlock.Open(endpoints, redlock.WithKeyPrefix(prefix), redlock.WithQuarantine(0))
	if err != nil {
		return exitUsage, err
	}
	b := &benchmark{locker: locker, prefix: prefix}
	random := rand.Text()
	for i := range slices.Max(benchGoroutines) {
		b.names = append(b.names, "redlock-bench-"+random+"-"+strconv.Itoa(i))
	}
	results, err := b.run(ctx, each)
	left := errors.Join(locker.Close(), b.cleanUp(clients))
	switch {
	case ctx.Err() != nil:
		return interrupted(ctx), context.Cause(ctx)
	case err != nil:
		return exitUnavailable, err
	}
	if asJSON {
		printJSON(stdout, map[string]any{"instances": len(clients), "quorum": len(clients)/2 + 1, "results": results})
	} else {
		printResults(stdout, len(clients), each, results)
	}
	return exitOK, left
}

// run measures with each number of goroutines. An error means that there is no
// quorum.
func (b *benchmark) run(ctx context.Context, each time.Duration) (results []result, err error) {
	for _, n := range benchGoroutines {
		if err := b.warmUp(ctx, n); err != nil {
			return nil, err
		}
		results = append(results, b.measure(ctx, n, each))
		if ctx.Err() != nil {
			return nil, context.Cause(ctx)
		}
	}
	return results, nil
}

// warmUp makes the connections and the fences, so that they are not measured.
func (b *benchmark) warmUp(ctx context.Context, n int) error {
	errs := make([]error, n)
	var wg sync.WaitGroup
	for i, name := range b.names[:n] {
		wg.Go(func() { _, errs[i] = b.once(ctx, name) })
	}
	wg.Wait()
	return cmp.Or(errs...)
}

// once acquires and releases a lock, and returns how long both took.
func (b *benchmark) once(ctx context.Context, name string) (time.Duration, error) {
	start := time.Now()
	lock, err := b.locker.TryAcquire(ctx, name, benchTTL)
	if err == nil {
		err = lock.Release(ctx)
	}
	return time.Since(start), err
}

func (b *benchmark) measure(ctx context.Context, n int, each time.Duration) result {
	times, failed := make([][]time.Duration, n), make([]int, n)
	start := time.Now()
	var wg sync.WaitGroup
	for i, name := range b.names[:n] {
		wg.Go(func() {
			for time.Since(start) < each && ctx.Err() == nil {
				took, err := b.once(ctx, name)
				if err != nil {
					failed[i]++
					continue
				}
				times[i] = append(times[i], took)
			}
		})
	}
	wg.Wait()
	total := time.Since(start)
	all := slices.Concat(times...)
	slices.Sort(all)
	r := result{Goroutines: n, Locks: len(all), PerSecond: float64(len(all)) / total.Seconds()}
	for _, f := range failed {
		r.Failed += f
	}
	if len(all) > 0 {
		r.P50, r.P99 = all[len(all)/2], all[len(all)*99/100]
	}
	return r
}

// cleanUp deletes the fences, which would otherwise be kept for ten minutes. Their
// order is of no use to anybody: nobody else knows the names.
func (b *benchmark) cleanUp(clients []*redis.Client) error {
	keys := make([]string, len(b.names))
	for i, name := range b.names {
		keys[i] = fenceKey(b.prefix, name)
	}
	errs := make([]error, len(clients))
	var wg sync.WaitGroup
	for i, c := range clients {
		wg.Go(func() {
			ctx, cancel := context.WithTimeout(context.Background(), time.Second)
			defer cancel()
			if err := c.Del(ctx, keys...).Err(); err != nil {
				errs[i] = fmt.Errorf("some fence keys stay for ten minutes on %s: %w", c.Options().Addr, err)
			}
		})
	}
	wg.Wait()
	return errors.Join(errs...)
}

func printResults(w io.Writer, n int, each time.Duration, results []result) {
	fmt.Fprintf(w, "%s, a quorum is %d; acquire and release of a free lock, %v with each number of goroutines\n\n", count(n, "instance"), n/2+1, each)
	table := tabwriter.NewWriter(w, 0, 0, 2, ' ', tabwriter.AlignRight)
	fmt.Fprintln(table, "GOROUTINES\tLOCKS/S\tP50\tP99\tFAILED\t")
	for _, r := range results {
		fmt.Fprintf(table, "%d\t%.0f\t%.2fms\t%.2fms\t%d\t\n", r.Goroutines, r.PerSecond, milliseconds(r.P50), milliseconds(r.P99), r.Failed)
	}
	table.Flush()
}

func milliseconds(d time.Duration) float64 { return float64(d) / float64(time.Millisecond) }
