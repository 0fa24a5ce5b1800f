package main

import (
	"context"
	"time"

	"github.com/quorumlock/redlock"
)

// A keeper can keep its locks alive: until ctx ends, renewed at a third of the ttl. The context that it returns ends
// with ctx, or when the lock is lost.
type keeper interface {
	keepAlive(ctx context.Context, lock held, ttl time.Duration) context.Context
}

func (l redlockLocker) keepAlive(ctx context.Context, lock held, ttl time.Duration) context.Context {
	k := lock.(*redlock.Lock)
	return ticking(ctx, ttl, func(ctx context.Context) error { return k.Extend(ctx, ttl) })
}

func (l redsyncLocker) keepAlive(ctx context.Context, lock held, ttl time.Duration) context.Context {
	m := lock.(redsyncHeld)
	return ticking(ctx, ttl, func(ctx context.Context) error {
		if ok, err := m.ExtendContext(ctx); !ok {
			return err
		}
		return nil
	})
}

// ticking renews a lock with a goroutine and a ticker of its own, as one does without a library's help. The lock is lost
// when no renewal has succeeded for a ttl.
func ticking(ctx context.Context, ttl time.Duration, renew func(context.Context) error) context.Context {
	lost, lose := context.WithCancelCause(context.WithoutCancel(ctx))
	go func() {
		tick := time.NewTicker(ttl / renewalsPerTTL)
		defer tick.Stop()
		for renewed := time.Now(); ; {
			select {
			case <-ctx.Done():
				lose(context.Cause(ctx))
				return
			case <-tick.C:
				// A renewal that is under way is not cut off: the lock is about to be released.
				begin := time.Now()
				err := renew(context.WithoutCancel(ctx))
				switch {
				case err == nil:
					renewed = begin
				case time.Since(renewed) >= ttl:
					lose(err)
					return
				}
			}
		}
	}()
	return lost
}
