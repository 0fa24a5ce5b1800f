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

// ticking renews a lock with a goroutine and a ticker of its own, as one does without a library's help.
func ticking(ctx context.Context, ttl time.Duration, renew func(context.Context) error) context.Context {
	lost, lose := context.WithCancelCause(context.WithoutCancel(ctx))
	go func() {
		tick := time.NewTicker(ttl / renewalsPerTTL)
		defer tick.Stop()
		for {
			select {
			case <-ctx.Done():
				lose(context.Cause(ctx))
				return
			case <-tick.C:
				// A renewal that is under way is not cut off: the lock is about to be released.
				if err := renew(context.WithoutCancel(ctx)); err != nil {
					lose(err)
					return
				}
			}
		}
	}()
	return lost
}
