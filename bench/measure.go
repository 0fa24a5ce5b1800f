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

// figures are what one repetition of a cell measured.
type figures struct {
	P50       time.Duration `json:"p50_ns"` // of an acquire with its release
	P99       time.Duration `json:"p99_ns"`
	PerSecond float64       `json:"per_second"`
	Allocs    float64       `json:"allocs_per_lock"` // of the whole process, as is the CPU
	CPU       time.Duration `json:"cpu_ns_per_lock"`
	Locks     int           `json:"locks"` // acquired and released without an error
	Errors    int           `json:"errors"`
	Error     string        `json:"error,omitempty"` // the first
	KeysLeft  int           `json:"keys_left"`       // lock keys on the servers after everybody has released
}

// A workload says which resource a goroutine locks next.
type workload struct {
	title     string
	resources func(goroutine int) (next func() string)
}

// ownResources is a service's everyday: the callers do not meet, and each comes back to its resources.
func ownResources() workload {
	const each = 100
	return workload{
		title: fmt.Sprintf("acquire + release, every goroutine its own %d resources in turn", each),
		resources: func(goroutine int) func() string {
			names := make([]string, each)
			for i := range names {
				names[i] = fmt.Sprintf("bench/%d/%d", goroutine, i)
			}
			i := -1
			return func() string {
				i = (i + 1) % each
				return names[i]
			}
		},
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

// A worker is one goroutine of the load with what it saw. Latencies are kept one by one: an exact p99 costs eight
// bytes a lock.
type worker struct {
	next      func() string
	latencies []time.Duration
	inTime    int // locks that were over before the deadline: a straggler must not stretch the rate
	errors    int
	err       error
}

func (w *worker) run(ctx context.Context, l locker, deadline time.Time) {
	for begin := time.Now(); begin.Before(deadline); {
		err := lockOnce(ctx, l, w.next())
		end := time.Now()
		switch {
		case err == nil:
			w.latencies = append(w.latencies, end.Sub(begin))
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

func lockOnce(ctx context.Context, l locker, resource string) error {
	lock, err := l.acquire(ctx, resource)
	if err != nil {
		return fmt.Errorf("acquire: %w", err)
	}
	if err := lock.Release(ctx); err != nil {
		return fmt.Errorf("release: %w", err)
	}
	return nil
}

// drive puts the load on l for d, one goroutine for each ctx, and returns when all of them have ended. expect is the
// number of locks to keep room for, so that a growing slice is not taken for the library's work.
func drive(ctxs []context.Context, l locker, load workload, d time.Duration, expect int) figures {
	workers := make([]worker, len(ctxs))
	var (
		deadline time.Time
		start    = make(chan struct{})
		all      sync.WaitGroup
	)
	for i := range workers {
		w := &workers[i]
		w.next = load.resources(i)
		w.latencies = make([]time.Duration, 0, expect/len(workers))
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
	var latencies []time.Duration
	inTime := 0
	for _, w := range workers {
		latencies = append(latencies, w.latencies...)
		inTime += w.inTime
		f.Errors += w.errors
		if w.err != nil && f.Error == "" {
			f.Error = w.err.Error()
		}
	}
	slices.Sort(latencies)
	f.Locks = len(latencies)
	f.PerSecond = float64(inTime) / d.Seconds()
	if f.Locks > 0 {
		f.P50, f.P99 = percentile(latencies, 0.50), percentile(latencies, 0.99)
		f.Allocs = float64(used.mallocs) / float64(f.Locks)
		f.CPU = used.cpu / time.Duration(f.Locks)
	}
	return f
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
