package main

import (
	"context"
	"fmt"
	"math"
	"runtime"
	"slices"
	"sync"
	"syscall"
	"time"
)

// figures are what one repetition measured of a cell. A lock is what the scenario counts: an acquire with its release,
// a hand-over, a renewal. A scenario leaves at 0 what it does not measure.
type figures struct {
	P50        time.Duration `json:"p50_ns,omitempty"` // of a lock, seen by its caller
	P99        time.Duration `json:"p99_ns,omitempty"`
	AcquireP50 time.Duration `json:"acquire_p50_ns,omitempty"` // of its acquire alone
	AcquireP99 time.Duration `json:"acquire_p99_ns,omitempty"`
	RoundTrip  time.Duration `json:"round_trip_ns,omitempty"` // the p50 of a PING on the same line
	PerSecond  float64       `json:"per_second,omitempty"`
	Allocs     float64       `json:"allocs_per_lock,omitempty"` // of the whole process, as is the CPU
	CPU        time.Duration `json:"cpu_ns_per_lock,omitempty"`
	ServerCPU  time.Duration `json:"server_cpu_ns_per_lock,omitempty"` // of one instance
	Requests   float64       `json:"requests,omitempty"`               // that one instance got, per lock or per second of waiting
	Commands   float64       `json:"commands,omitempty"`               // that it executed for them, those in scripts included
	Fairness   float64       `json:"fairness,omitempty"`               // the locks of the luckiest by those of the unluckiest, at least 1
	Goroutines int           `json:"goroutines,omitempty"`             // the most at any time, callers included
	KeyBytes   float64       `json:"bytes_per_fence_key,omitempty"`
	Shares     shares        `json:"shares_of_cpu,omitzero"`

	Locks       int    `json:"locks"` // that ended without an error
	Errors      int    `json:"errors"`
	Error       string `json:"error,omitempty"` // the first
	KeysLeft    int    `json:"keys_left"`       // lock keys on the servers after everybody has released
	FenceKeys   int    `json:"fence_keys"`      // of different names
	FenceFaults int    `json:"fence_faults"`    // fence keys too many, too few, or with too long an expiry
}

func (f *figures) fail(err error) {
	f.Errors++
	if f.Error == "" {
		f.Error = err.Error()
	}
}

// callers are the contexts of a cell's goroutines, cancellable as a request's is, one each. They outlive the load:
// a library may still be sending releases when it has returned.
func callers(ctx context.Context, goroutines int) (ctxs []context.Context, cancel func()) {
	ctxs = make([]context.Context, goroutines)
	cancels := make([]context.CancelFunc, goroutines)
	for i := range ctxs {
		ctxs[i], cancels[i] = context.WithCancel(ctx)
	}
	return ctxs, func() {
		for _, cancel := range cancels {
			cancel()
		}
	}
}

// A worker is one goroutine of the load with what it saw. Latencies are kept one by one: an exact p99 costs sixteen
// bytes a lock.
type worker struct {
	resources *resources
	latencies []latency
	inTime    int // locks that were over before the deadline: a straggler must not stretch the rate
	errors    int
	err       error
}

type latency struct{ acquire, lock time.Duration }

func (w *worker) run(ctx context.Context, l locker, deadline time.Time) {
	for begin := time.Now(); begin.Before(deadline); {
		acquired, err := lockOnce(ctx, l, w.resources.next())
		end := time.Now()
		switch {
		case err == nil:
			w.latencies = append(w.latencies, latency{acquired.Sub(begin), end.Sub(begin)})
			if end.Before(deadline) {
				w.inTime++
			}
		default:
			w.errors++
			if w.err == nil {
				w.err = err
			}
			if ctx.Err() != nil {
				return
			}
		}
		begin = end
	}
}

// lockOnce acquires and releases, and returns when it had the lock.
func lockOnce(ctx context.Context, l locker, resource string) (acquired time.Time, err error) {
	lock, err := l.acquire(ctx, resource)
	if err != nil {
		return acquired, fmt.Errorf("acquire: %w", err)
	}
	acquired = time.Now()
	if err := lock.Release(ctx); err != nil {
		return acquired, fmt.Errorf("release: %w", err)
	}
	return acquired, nil
}

// drive puts the load on l for d, one goroutine for each ctx, and returns when all of them have ended. expect is the
// number of locks to keep room for, so that a growing slice is not taken for the library's work.
func drive(ctxs []context.Context, l locker, rs []*resources, d time.Duration, expect int) figures {
	workers := make([]worker, len(ctxs))
	var (
		deadline time.Time
		start    = make(chan struct{})
		all      sync.WaitGroup
	)
	for i := range workers {
		w := &workers[i]
		w.resources = rs[i]
		w.latencies = make([]latency, 0, expect/len(workers))
		all.Go(func() {
			<-start
			w.run(ctxs[i], l, deadline)
		})
	}

	runtime.GC()
	before := readUsage()
	deadline = time.Now().Add(d)
	close(start)
	all.Wait()
	used := readUsage().since(before)

	return summary(workers, d, used)
}

func summary(workers []worker, d time.Duration, used usage) figures {
	var f figures
	var acquires, locks []time.Duration
	inTime, most, least := 0, 0, math.MaxInt
	for _, w := range workers {
		for _, l := range w.latencies {
			acquires, locks = append(acquires, l.acquire), append(locks, l.lock)
		}
		inTime += w.inTime
		most, least = max(most, w.inTime), min(least, w.inTime)
		f.Errors += w.errors
		if w.err != nil && f.Error == "" {
			f.Error = w.err.Error()
		}
	}
	f.P50, f.P99 = percentiles(locks)
	f.AcquireP50, f.AcquireP99 = percentiles(acquires)
	f.PerSecond = float64(inTime) / d.Seconds()
	f.Fairness = fairness(most, least)
	f.Locks = len(locks)
	f.share(used)
	return f
}

// share divides what was used among the locks.
func (f *figures) share(used usage) {
	if f.Locks > 0 {
		f.Allocs = float64(used.mallocs) / float64(f.Locks)
		f.CPU = used.cpu / time.Duration(f.Locks)
	}
}

// fairness divides the most by the least; who got nothing is counted as if it had got one.
func fairness(most, least int) float64 { return float64(most) / float64(max(least, 1)) }

// percentiles sorts values and returns their p50 and p99; 0 of none.
func percentiles(values []time.Duration) (p50, p99 time.Duration) {
	if len(values) == 0 {
		return 0, 0
	}
	slices.Sort(values)
	return percentile(values, 0.50), percentile(values, 0.99)
}

// percentile returns the smallest value that a share p of sorted does not exceed.
func percentile(sorted []time.Duration, p float64) time.Duration {
	return sorted[max(0, int(math.Ceil(p*float64(len(sorted))))-1)]
}

// usage is what the process has used since it started.
type usage struct {
	mallocs uint64
	cpu     time.Duration
}

func readUsage() usage {
	var mem runtime.MemStats
	runtime.ReadMemStats(&mem)
	var ru syscall.Rusage
	if err := syscall.Getrusage(syscall.RUSAGE_SELF, &ru); err != nil {
		panic(err) // impossible: the argument is valid
	}
	return usage{mem.Mallocs, time.Duration(ru.Utime.Nano() + ru.Stime.Nano())}
}

func (u usage) since(before usage) usage {
	return usage{u.mallocs - before.mallocs, u.cpu - before.cpu}
}
