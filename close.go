package redlock

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/hashicorp/go-multierror"
)

// closeGrace is how long Close waits for workers beyond its limit.
const closeGrace = 250 * time.Millisecond

// enter begins a call; it fails once Close has begun.
func (l *Locker) enter() error {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.isShut {
		return ErrClosed
	}
	l.inside++
	return nil
}

// exit ends a call.
func (l *Locker) exit() {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.inside--
	if l.isShut && l.inside == 0 {
		close(l.left)
	}
}

// register puts k on the list of held locks. It takes two others off that their
// holders forgot and that have expired, if it comes across them: so the list
// stays short without a goroutine that looks after it.
func (l *Locker) register(k *Lock, now time.Time) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.isShut {
		return ErrClosed
	}
	k.next, k.prev = &l.locks, l.locks.prev
	k.prev.next, k.next.prev = k, k
	for range 2 {
		old := l.sweep
		l.sweep = old.next
		if old != &l.locks && !old.wanted(now) {
			l.unlinkLocked(old)
		}
	}
	return nil
}

// forget takes k off the list of held locks.
func (l *Locker) forget(k *Lock) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.unlinkLocked(k)
}

func (l *Locker) unlinkLocked(k *Lock) {
	if k.next == nil {
		return
	}
	if l.sweep == k {
		l.sweep = k.next
	}
	k.prev.next, k.next.prev = k.next, k.prev
	k.next, k.prev = nil, nil
}

// Close releases all locks that are held, waits for the clean-up of what failed
// rounds left behind, and ends the Locker. It returns within the instance
// time-out (1 s by default) and a little, also when instances hang; what it could
// not do is its error. Calls in progress and later ones return [ErrClosed].
// Clients that the caller brought stay open. Close again returns the same.
func (l *Locker) Close() error {
	l.mu.Lock()
	if l.isShut {
		l.mu.Unlock()
		<-l.closed
		return l.closeErr
	}
	l.isShut = true
	close(l.closing)
	if l.inside == 0 {
		close(l.left)
	}
	var locks []*Lock
	for k := l.locks.next; k != &l.locks; k = k.next {
		locks = append(locks, k)
	}
	l.mu.Unlock()
	defer close(l.closed)

	ctx, cancel := context.WithTimeout(context.Background(), l.closeLimit())
	defer cancel()
	errs := l.releaseAll(ctx, locks)
	select {
	case <-l.left:
	case <-ctx.Done():
	}
	errs = append(errs, l.stop(ctx)...)
	if l.dispatcher != nil {
		l.dispatcher.stop()
	}
	if err := joinFaults(errs); err != nil {
		l.closeErr = fmt.Errorf("redlock: close: %w", err)
	}
	return l.closeErr
}

// releaseAll releases locks in parallel.
func (l *Locker) releaseAll(ctx context.Context, locks []*Lock) []error {
	var errs []error
	rounds := make([]*round, 0, len(locks))
	for _, k := range locks {
		if r := k.close(); r != nil {
			rounds = append(rounds, r)
		}
	}
	for _, r := range rounds {
		_ = r.wait(ctx, l.closeLimit(), confirmed)
		r.mu.Lock()
		t := r.tally
		r.mu.Unlock()
		if t.granted+t.refused < t.quorum() {
			errs = append(errs, r.quorumError(ErrNoQuorum))
		}
		r.leave()
	}
	return errs
}

// stop lets the workers finish what is queued and the clean-up, until ctx ends,
// and then ends them.
func (l *Locker) stop(ctx context.Context) []error {
	for _, in := range l.instances {
		in.finish()
	}
	for _, in := range l.instances {
		select {
		case <-in.done:
		case <-ctx.Done():
		}
	}
	l.cancel()
	for _, in := range l.instances {
		in.shut()
		if l.owned {
			_ = in.client.Close() // breaks the connection that is in use
		}
	}
	// A client that the caller brought comes back from its call within the limit
	// of a connection, unless its own time-outs are longer.
	grace := closeGrace
	if !l.owned {
		grace += max(0, l.sendLimit()-l.closeLimit())
	}
	timer := time.NewTimer(grace)
	defer timer.Stop()
	var errs []error
	for _, in := range l.instances {
		select {
		case <-in.done:
			continue
		case <-timer.C:
			timer.Reset(0)
		}
		errs = append(errs, &InstanceError{Instance: in.name, Op: "close", Err: errStuck})
	}
	return errs
}

var errStuck = errors.New("a call has not come back from its client")

// joinFaults returns errs as one error of one line; nil if there is none.
func joinFaults(errs []error) error {
	if len(errs) == 0 {
		return nil
	}
	return &multierror.Error{Errors: errs, ErrorFormat: oneLine}
}
