package redlock

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"
)

// closeGrace is how long Close waits for workers beyond its limit.
const closeGrace = 200 * time.Millisecond

// maxCloseErrors is how many locks that it could not release Close names.
const maxCloseErrors = 10

// Close releases all locks that are held, waits for the clean-up of what failed
// rounds left behind, and ends the Locker. It returns within the instance
// time-out (1 s by default) and a little, also when instances hang. Its error names
// the locks that no majority let go of; what a minority still has ends with its ttl. Calls in progress and later ones return [ErrClosed].
// Clients that the caller brought stay open. Close again returns the same.
func (l *Locker) Close() error {
	if l == nil {
		return nil
	}
	l.mu.Lock()
	if l.isShut {
		l.mu.Unlock()
		<-l.closed
		return l.closeErr
	}
	l.isShut = true
	l.inside.Add(shutting + 1)
	l.exit() // itself: the last one out may be it
	l.shut(ErrClosed)
	var locks []*Lock
	for k := l.locks.next; k != &l.locks; k = k.next {
		locks = append(locks, k)
	}
	l.mu.Unlock()
	defer close(l.closed)

	// The second release of the clean-up list is sent a second after the first.
	ctx, cancel := context.WithTimeout(context.Background(), l.closeLimit()+closeGrace)
	defer cancel()
	errs := l.releaseAll(ctx, locks)
	select {
	case <-l.left:
	case <-ctx.Done():
	}
	l.keeper.wait()
	errs = append(errs, l.stop(ctx)...)
	errs = append(errs, l.leftBehind()...)
	if l.dispatcher != nil {
		l.observeClosed()
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
	failed := 0
	rounds := make([]*round, 0, len(locks))
	for _, k := range locks {
		if r := k.shut(); r != nil {
			rounds = append(rounds, r)
		}
	}
	for _, r := range rounds {
		_ = r.wait(ctx, l.closeLimit(), freed)
		r.mu.Lock()
		t := r.tally
		r.mu.Unlock()
		if t.granted+t.refused < t.quorum() {
			failed++
			if len(errs) < maxCloseErrors {
				errs = append(errs, r.quorumError(ErrNoQuorum))
			}
		}
		r.leave()
	}
	if failed > len(errs) {
		errs = append(errs, fmt.Errorf("and %d more locks", failed-len(errs)))
	}
	return errs
}

// leftBehind names the locks that so many instances may still have that nobody
// else gets a majority before their ttl ends.
func (l *Locker) leftBehind() []error {
	on := map[*Lock]int{}
	now := l.now()
	for _, in := range l.instances {
		for _, k := range in.unclean(now) {
			on[k]++
		}
	}
	var names []string
	n := len(l.instances)
	for k, count := range on {
		if k.endedBy() != LostClosed && count > n-quorumOf(n) { // those were named already
			names = append(names, quote(k.resource))
		}
	}
	if len(names) == 0 {
		return nil
	}
	slices.Sort(names)
	more := ""
	if len(names) > maxCloseErrors {
		more = fmt.Sprintf(" and %d more", len(names)-maxCloseErrors)
		names = names[:maxCloseErrors]
	}
	return []error{fmt.Errorf("%w: may stay until their ttl ends: %s%s", ErrNoQuorum, strings.Join(names, ", "), more)}
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
			if in.tap != nil {
				in.tap.close() // breaks the connection that is in use
			}
			_ = in.other.Close()
		}
	}
	l.deafen()
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
			if n := len(in.unclean(l.now())); n > 0 {
				l.observeInstance(in, CleanUpLeft, fmt.Errorf("%d owners", n))
			}
			continue
		case <-timer.C:
			timer.Reset(0)
		}
		errs = append(errs, &InstanceError{Instance: in.name, Op: "close", Err: errStuck})
	}
	return errs
}

var errStuck = errors.New("a call has not come back from its client")
