package redlock

import (
	"context"
	"math/rand/v2"
	"slices"
	"time"
)

// pause waits between two rounds, and reports whether there is to be another
// one: not when ctx ends, the caller has waited for as long as it wanted, or the
// Locker closes.
func (l *Locker) pause(ctx context.Context, q *request, a *attempt, n int) bool {
	left := q.patience(l.now())
	delay := backoff(n, l.retryMin, l.retryMax)
	if free, ok := a.round.freeIn(); ok && free < delay {
		delay = free + rand.N(l.retryMin)
	}
	delay = max(delay-a.lingered, 0)
	if left <= 0 {
		return false
	}
	timer := time.NewTimer(min(delay, left))
	defer timer.Stop()
	select {
	case <-timer.C:
		return delay < left
	case <-ctx.Done():
	case <-l.closing.Done():
		a.err = ErrClosed
	}
	return false
}

// backoff returns the pause after round n, counted from 0: random, between least
// and a bound that doubles from one round to the next and ends at most.
func backoff(n int, least, most time.Duration) time.Duration {
	bound := most
	if n < 62 && least <= most>>(n+1) {
		bound = least << (n + 1)
	}
	return least + rand.N(max(bound-least, 1))
}

// freeIn returns how long it takes until so many leases of others, and so many
// quarantines, have run out that a quorum could grant; false if that is not what
// is in the way.
func (r *round) freeIn() (time.Duration, bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	return freeIn(r.tally, r.votes, r.leases)
}

func freeIn(t tally, votes []vote, leases []int64) (time.Duration, bool) {
	missing := t.quorum() - t.granted
	var left []int64
	for i, v := range votes {
		if v == refused && leases[i] >= 0 || v == failed && leases[i] > 0 {
			left = append(left, leases[i])
		}
	}
	if missing <= 0 || len(left) < missing {
		return 0, false
	}
	slices.Sort(left)
	// One more millisecond: a key with 0 left has not expired yet.
	return milliseconds(left[missing-1]) + time.Millisecond, true
}
