package main

import (
	"context"
	"fmt"
	"sync"
	"time"
)

// onceWaiters want the lock once each.
const onceWaiters = 16

// handOvers measures how long it takes from a release until the next waiter in the process has the lock.
func handOvers(p *plan) []trial {
	var trials []trial
	for _, c := range p.quorumLocks() {
		trials = append(trials, trial{
			cells: []*cell{{key: key{Scenario: "handover", N: usual, Load: onceWaiters, Contender: c.name}, contender: c}},
			run: func(ctx context.Context, ss servers) ([]figures, error) {
				s, _ := p.loaded(c, ss, usual, onceWaiters+1, oneResource)
				s.distinct = one
				return p.measure(ctx, s, func(ctxs []context.Context, l locker) ([]figures, error) {
					f := relays(ctxs, l, p.duration)
					return []figures{f}, nil
				})
			},
		})
	}
	return trials
}

// queueUp is how long a relay's holder gives the others to start waiting: the refusals of a loopback are long back.
const queueUp = 50 * time.Millisecond

// relays runs relays for d, one at least.
func relays(ctxs []context.Context, l locker, d time.Duration) figures {
	var f figures
	var times []time.Duration
	before := readUsage()
	for begin := time.Now(); len(times) == 0 && f.Errors == 0 || time.Since(begin) < d; {
		r := relay{locker: l}
		if err := r.run(ctxs); err != nil {
			f.fail(err)
			break
		}
		for _, err := range r.errs {
			f.fail(err)
		}
		times = append(times, r.times...)
	}
	f.Locks = len(times)
	f.P50, f.P99 = percentiles(times)
	f.share(readUsage().since(before))
	return f
}

// A relay is a holder whose lock goes through the hands of all who wait for it.
type relay struct {
	locker locker

	mu       sync.Mutex
	released time.Time       // when the last holder began to release
	times    []time.Duration // from there to the next one's lock
	errs     []error
}

// run has the first ctx hold the lock until the others wait for it. It returns when each of them had it.
func (r *relay) run(ctxs []context.Context) error {
	lock, err := r.locker.acquire(ctxs[0], relayResource)
	if err != nil {
		return fmt.Errorf("acquire: %w", err)
	}
	var all sync.WaitGroup
	for _, ctx := range ctxs[1:] {
		all.Go(func() { r.waiter(ctx) })
	}
	err = sleep(ctxs[0], queueUp)
	r.release(ctxs[0], lock)
	all.Wait()
	return err
}

const relayResource = "bench/relay"

func one() int { return 1 }

func (r *relay) waiter(ctx context.Context) {
	lock, err := r.locker.acquire(ctx, relayResource)
	now := time.Now()
	r.mu.Lock()
	if err == nil {
		r.times = append(r.times, now.Sub(r.released))
	} else {
		r.errs = append(r.errs, fmt.Errorf("acquire: %w", err))
	}
	r.mu.Unlock()
	if err == nil {
		r.release(ctx, lock)
	}
}

func (r *relay) release(ctx context.Context, lock held) {
	r.mu.Lock()
	r.released = time.Now()
	r.mu.Unlock()
	if err := lock.Release(ctx); err != nil {
		r.mu.Lock()
		r.errs = append(r.errs, fmt.Errorf("release: %w", err))
		r.mu.Unlock()
	}
}
