package recipes

import (
	"context"
	"errors"
	"slices"
	"time"

	"github.com/quorumlock/redlock"
)

// WithAll runs fn while it holds all resources: all or none, in sorted order. Two
// callers that want the same ones in another order would wait for each other, each
// with what the other needs, until somebody's ctx ends. The context of fn ends when
// the first of the locks is lost.
//
// One aggregate is better, where there is one: lock "account-group/7" and not the
// accounts 3 and 5 in it. It is one round in place of many, it can't be lost in half, and
// there is one fencing token to check. Several locks have several tokens, and the write
// has to check each at its own resource, in one transaction.
func WithAll(ctx context.Context, locker *redlock.Locker, ttl time.Duration, resources []string, fn func(ctx context.Context, locks []*redlock.Lock) error) (err error) {
	var locks []*redlock.Lock
	defer func() {
		for _, lock := range slices.Backward(locks) {
			err = errors.Join(err, lock.Release(ctx))
		}
	}()
	resources = slices.Sorted(slices.Values(resources))
	for _, resource := range slices.Compact(resources) {
		lock, err := locker.Acquire(ctx, resource, ttl)
		if err != nil {
			return err
		}
		locks = append(locks, lock)
		// Each is kept alive while the next ones are waited for, and ends the context
		// of all.
		ctx = lock.KeepAlive(ctx)
	}
	return fn(ctx, locks)
}
