package main

import (
	"context"
	"fmt"
	"math/rand/v2"
	"sync"
	"time"

	"github.com/quorumlock/redlock"
	"github.com/quorumlock/redlock/fence"
	"github.com/quorumlock/redlock/internal/redistest"
	"github.com/quorumlock/redlock/redlockotel"
)

// A mark is a fault of the run.
type mark struct {
	at   time.Duration
	what string
}

const (
	length     = 90 * time.Second
	quarantine = 8 * time.Second
	kept       = 40 // locks that are kept alive
)

// workload locks for a while on three servers, on which it brings faults, and returns
// what it did to them.
func workload(ctx context.Context, tel *redlockotel.Telemetry) ([]mark, error) {
	var servers []*redistest.Server
	for range 3 {
		s, err := redistest.Launch()
		if err != nil {
			return nil, err
		}
		defer s.Close()
		servers = append(servers, s)
	}
	l, err := redlock.Open(redistest.Addrs(servers), redlock.WithObserver(tel.Observer()), redlock.WithQuarantine(quarantine))
	if err != nil {
		return nil, err
	}
	defer l.Close()
	guard := new(fence.HighWater)
	tel.WatchGuard("ledger", guard)

	ctx, cancel := context.WithTimeout(ctx, length)
	defer cancel()
	start := time.Now()
	var workers sync.WaitGroup
	defer workers.Wait()
	for i := range 12 {
		workers.Go(func() { order(ctx, l, guard, fmt.Sprintf("order:%d", i%4)) })
	}
	for i := range kept {
		workers.Go(func() { job(ctx, l, guard, fmt.Sprintf("job:%d", i), i%8 == 0) })
	}

	var marks []mark
	var failure error
	do := func(at time.Duration, what string, act func() error) {
		select {
		case <-time.After(time.Until(start.Add(at))):
		case <-ctx.Done():
		}
		if what != "" {
			marks = append(marks, mark{time.Since(start), what})
		}
		if err := act(); err != nil && failure == nil {
			failure = err
		}
	}
	do(22*time.Second, "one hangs", servers[0].Pause)
	do(29*time.Second, "", servers[0].Resume)
	do(42*time.Second, "one restarts", servers[1].Kill)
	do(44*time.Second, "", servers[1].Restart)
	do(65*time.Second, "two hang", servers[1].Pause)
	do(65*time.Second, "", servers[2].Pause)
	do(71*time.Second, "", servers[1].Resume)
	do(71*time.Second, "", servers[2].Resume)
	<-ctx.Done()
	return marks, failure
}

// order is a short piece of work that several contend for.
func order(ctx context.Context, l *redlock.Locker, guard *fence.HighWater, resource string) {
	for ctx.Err() == nil {
		_ = l.Do(ctx, resource, 2*time.Second, func(ctx context.Context, k *redlock.Lock) error {
			time.Sleep(5*time.Millisecond + rand.N(15*time.Millisecond))
			return guard.Check(ctx, resource, k.FencingToken())
		}, redlock.WithMaxWait(time.Second))
	}
}

// job is a long piece of work under a lock that is kept alive, by two that want it. A
// careless one does not listen when it is told that the lock is lost.
func job(ctx context.Context, l *redlock.Locker, guard *fence.HighWater, resource string, careless bool) {
	var both sync.WaitGroup
	for range 2 {
		both.Go(func() {
			for ctx.Err() == nil {
				k, err := l.Acquire(ctx, resource, 3*time.Second)
				if err != nil {
					continue
				}
				_ = guard.Check(ctx, resource, k.FencingToken())
				kept := k.KeepAlive(ctx)
				select {
				case <-kept.Done():
					if careless {
						time.Sleep(5 * time.Second)
						_ = guard.Check(context.Background(), resource, k.FencingToken())
					}
				case <-time.After(2*time.Second + rand.N(8*time.Second)):
				}
				k.Release(ctx)
			}
		})
	}
	both.Wait()
}
