package redlock

import (
	"context"
	"time"
)

// Do runs fn under the lock of resource: it acquires the lock as
// [Locker.Acquire] does, keeps it alive while fn runs, and releases it. The
// context that fn gets ends when the lock is lost, as that of [Lock.KeepAlive].
//
// Do returns the error of the acquire, and otherwise fn's error; to that it joins
// an error that matches [ErrLost] if the lock was lost before it could be released,
// also if fn returned nil, and the error of a release that no majority confirmed. An
// fn that releases the lock itself has not lost it. If fn panics, the lock is released
// and the panic goes on.
func (l *Locker) Do(ctx context.Context, resource string, ttl time.Duration, fn func(ctx context.Context, lock *Lock) error, opts ...AcquireOption) (err error) {
	if fn == nil {
		return errNilFunc
	}
	lock, err := l.Acquire(ctx, resource, ttl, opts...)
	if err != nil {
		return err
	}
	defer func() {
		// Also after a panic, whose value nothing here touches.
		err = joined(err, lock.Release(ctx))
	}()
	return fn(lock.KeepAlive(ctx), lock)
}
