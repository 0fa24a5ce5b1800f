package redlock

import (
	"errors"
	"slices"
	"time"
)

// wait stands on w's list until the lock is acquired, ctx ends, the caller has
// waited for as long as it wanted, or the Locker closes. last is its last round,
// if it had one.
func (l *Locker) wait(w *waiter, last attempt) (*Lock, error) {
	w.q.waiting = l.now()
	l.waiting.Add(1)
	defer l.waiting.Add(-1)
	for n := 0; ; n++ {
		r, again := l.pause(w, &last, n)
		if !again {
			return l.quit(w, last)
		}
		var a attempt
		if r != nil {
			a = l.finish(w.ctx, w.q, r, decided)
		} else {
			a = l.attemptOf(w.ctx, w.q, w.looks)
		}
		if a.lock != nil || a.final {
			l.waitlists.concluded(w, a.lock, nil)
			last.drop()
			return a.lock, a.close(w.ctx)
		}
		reason := l.waitlists.lastReason(w)
		if reason != nil && a.cutShort(w.ctx, w.q) {
			a.drop() // the one before tells the reason better
		} else {
			last.drop()
			last, reason = a, a.why()
		}
		l.waitlists.concluded(w, nil, reason)
	}
}

// pause waits until it is w's turn, with the round that a release sent for it; or
// until w is to send one of its own. It reports whether there is to be another
// round.
func (l *Locker) pause(w *waiter, last *attempt, n int) (turn *round, again bool) {
	delay, slow, free := l.delay(last, n)
	begin := l.now()
	timer := time.NewTimer(never)
	defer timer.Stop()
	for {
		now := l.now()
		left := w.q.patience(now)
		if left <= 0 || w.ctx.Err() != nil {
			return nil, false
		}
		past := elapsed(begin, now)
		wait := l.waitlists.ask(w, now, delay-past, slow-past, free)
		if wait <= 0 {
			return nil, true
		}
		timer.Reset(min(wait, left))
		closed := false
		select {
		case turn = <-w.turn:
		case <-w.poke:
		case <-timer.C:
		case <-w.ctx.Done():
		case <-l.closing.Done():
			closed = true
		}
		l.resume(w.ctx)
		switch {
		case turn != nil:
			return turn, true
		case closed:
			last.err = ErrClosed
			return nil, false
		}
	}
}

// quit takes w off its list, and returns why it has no lock. Where nobody on the list
// has asked yet, as others were to have their chance, nobody knows; and where w has only
// looked, and found the lock free, there is no reason: then it asks once.
func (l *Locker) quit(w *waiter, last attempt) (*Lock, error) {
	if !l.waitlists.leave(w) {
		// Its turn came at the last moment.
		turn := <-w.turn
		turn.lock.abandon(w.ctx, turn)
		turn.leave()
		l.waitlists.concluded(w, nil, nil)
	}
	reason := l.waitlists.lastReason(w)
	switch {
	case errors.Is(last.err, ErrClosed):
		return nil, last.close(w.ctx)
	case last.round != nil && (w.ctx.Err() != nil || !last.round.foundFree()):
		return nil, last.close(w.ctx)
	case w.ctx.Err() != nil:
		return nil, &endedError{op: "acquire", resource: w.q.resource, ctx: w.ctx, last: reason}
	case last.round != nil, reason == nil:
		last.drop()
		a := l.attempt(w.ctx, w.q, explained)
		return a.lock, a.close(w.ctx)
	}
	return nil, reason
}

// Those that are told of releases wait for so many times the longest pause, and for
// no longer than the mark says that they do.
const (
	slowPoll    = 4
	maxSlowPoll = 1500 * time.Millisecond
)

// delay returns how long to wait after round n, which was last; and how long for
// one that is told of releases. It reports whether the leases in the way have run out
// then.
func (l *Locker) delay(last *attempt, n int) (delay, slow time.Duration, free bool) {
	if last.round == nil {
		return 0, 0, false
	}
	delay = backoff(n, l.retryMin, l.retryMax, l.jitter)
	slow = min(slowPoll*(l.retryMax/2+l.jitter(l.retryMax)), maxSlowPoll)
	if end, ok := last.round.freeIn(); ok {
		end += l.jitter(l.retryMin)
		free = end <= slow
		delay, slow = min(delay, end), min(slow, end)
	}
	return max(delay-last.lingered, 0), max(slow-last.lingered, 0), free
}

// backoff returns the pause after round n, counted from 0: random, between least
// and a bound that doubles from one round to the next and ends at most.
func backoff(n int, least, most time.Duration, jitter func(time.Duration) time.Duration) time.Duration {
	bound := most
	if n < 62 && least <= most>>(n+1) {
		bound = least << (n + 1)
	}
	return least + jitter(max(bound-least, 1))
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
