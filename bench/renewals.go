package main

import (
	"context"
	"errors"
	"fmt"
	"sync"
)

// renewers is how many goroutines acquire and release the locks that are kept alive.
const renewers = 64

// renewals measures the client CPU of keeping locks alive: all of them, a third of the ttl from one renewal to the next.
func renewals(p *plan) []trial {
	var trials []trial
	for _, held := range p.held {
		for _, c := range p.quorumLocks() {
			if !c.renews {
				continue
			}
			trials = append(trials, trial{
				cells: []*cell{{key: key{Scenario: "renewals", N: usual, Load: held, Contender: c.name}, contender: c}},
				run: func(ctx context.Context, ss servers) ([]figures, error) {
					s, _ := p.loaded(c, ss, usual, held, oneResource)
					s.ttl, s.limit, s.distinct = p.lease, 10*p.lease, func() int { return held } // acquiring them all takes a while, too
					return p.measure(ctx, s, func(ctxs []context.Context, l locker) ([]figures, error) {
						f, err := keepAll(ctxs, l, s)
						return []figures{f}, err
					})
				},
			})
		}
	}
	return trials
}

// A keptLock is kept alive until its stop is called; lost ends before only if the lock is lost.
type keptLock struct {
	held
	lost context.Context //nolint:containedctx // the loss of a lock is a context
	stop context.CancelFunc
}

// keepAll acquires a lock for each ctx, watches over all of them for a ttl, in which each is renewed three times, and
// releases them.
func keepAll(ctxs []context.Context, l locker, s setting) (figures, error) {
	var f figures
	locks := make([]keptLock, len(ctxs))
	var mu sync.Mutex
	fail := func(err error) {
		if err != nil {
			mu.Lock()
			defer mu.Unlock()
			f.fail(err)
		}
	}
	inParallel(len(ctxs), func(i int) {
		lock, err := l.acquire(ctxs[i], fmt.Sprintf("bench/kept/%d", i))
		if err != nil {
			fail(fmt.Errorf("acquire: %w", err))
			return
		}
		ctx, stop := context.WithCancel(ctxs[i])
		lost := l.(keeper).keepAlive(ctx, lock, s.ttl)
		locks[i] = keptLock{lock, lost, stop}
	})

	before, err := s.instances.work(s.contender.scripted)
	if err != nil {
		return f, err
	}
	used := readUsage()
	err = sleep(ctxs[0], s.ttl)
	spent := readUsage().since(used)
	after, workErr := s.instances.work(s.contender.scripted)

	inParallel(len(locks), func(i int) {
		k := locks[i]
		if k.held == nil {
			return
		}
		if k.lost.Err() != nil {
			fail(fmt.Errorf("lost: %w", context.Cause(k.lost)))
		}
		k.stop()
		<-k.lost.Done()
		if err := k.Release(ctxs[i]); err != nil {
			fail(fmt.Errorf("release: %w", err))
		}
	})
	f.Locks = renewalsPerTTL * len(locks)
	f.PerSecond = float64(f.Locks) / s.ttl.Seconds()
	f.share(spent)
	f.serve(after.since(before), len(s.instances))
	return f, errors.Join(err, workErr)
}

// renewalsPerTTL is what redlock does by itself, and what the others are made to do.
const renewalsPerTTL = 3

// inParallel calls f with 0 to n-1, in a few goroutines.
func inParallel(n int, f func(i int)) {
	var all sync.WaitGroup
	for g := range renewers {
		all.Go(func() {
			for i := g; i < n; i += renewers {
				f(i)
			}
		})
	}
	all.Wait()
}
