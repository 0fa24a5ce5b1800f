package client

import (
	"context"
	"errors"
	"sync"
	"time"

	"github.com/quorumlock/redlock"
)

// Redlock opens this repository's library, with its defaults.
func Redlock(j Job) (Locker, error) {
	r := &redlocker{ttl: j.TTL}
	var err error
	r.locker, err = redlock.Open(j.Endpoints, redlock.WithObserver(redlock.Observer{Instance: r.observe}))
	return r, err
}

type redlocker struct {
	locker *redlock.Locker
	ttl    time.Duration

	mu          sync.Mutex
	quarantines []Quarantine
}

func (r *redlocker) Acquire(ctx context.Context, resource string) (Lease, error) {
	lock, err := r.locker.Acquire(ctx, resource, r.ttl)
	if err != nil {
		return nil, err
	}
	return redlockLease{lock, r.ttl}, nil
}

// Close ignores releases that no quorum confirmed: the comparison closes while
// instances may be down.
func (r *redlocker) Close() error {
	if err := r.locker.Close(); err != nil && !errors.Is(err, redlock.ErrNoQuorum) {
		return err
	}
	return nil
}

func (r *redlocker) observe(e redlock.InstanceEvent) {
	q, ok := errors.AsType[*redlock.QuarantineError](e.Err)
	if e.Change != redlock.InstanceQuarantined || !ok {
		return
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	r.quarantines = append(r.quarantines, Quarantine{e.Instance, e.At.UnixNano(), q.Left})
}

func (r *redlocker) Quarantines() []Quarantine {
	r.mu.Lock()
	defer r.mu.Unlock()
	return append([]Quarantine(nil), r.quarantines...)
}

type redlockLease struct {
	lock *redlock.Lock
	ttl  time.Duration
}

func (l redlockLease) Until() time.Time                  { return time.Now().Add(l.lock.Remaining()) }
func (l redlockLease) Token() uint64                     { return l.lock.FencingToken() }
func (l redlockLease) Extend(ctx context.Context) error  { return l.lock.Extend(ctx, l.ttl) }
func (l redlockLease) Release(ctx context.Context) error { return l.lock.Release(ctx) }
