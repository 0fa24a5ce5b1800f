package redlock

import (
	"context"
	"fmt"
	"slices"
	"time"
)

// Limits of an instance's clean-up list.
const (
	maxLeftovers  = 100_000
	cleanInterval = time.Second
)

// leftovers is the clean-up list of one instance: owners that may be on it, or
// may yet get there. A batch that ended in silence or a broken connection leaves
// its grants ambiguous: the request may sit in a socket buffer and run when the
// server resumes, even after a release that was sent on a new connection. So an
// owner stays on the list until releases were answered twice, at least a second
// apart, after the break: what was in a buffer before the first has run before the
// second. The ttl is no limit while the
// server says nothing.
//
// An owner that still holds its lock stays on the list untouched.
type leftovers struct {
	list    []*leftover
	next    time.Time // when to look again
	dropped int       // owners that the list had no room for
}

type leftover struct {
	lock     *Lock
	tried    time.Time // when the last release was sent
	answered time.Time // when the first one was answered; zero before
	refused  time.Time // when the instance first would not delete; zero before
	done     bool
}

// due returns how long until the list wants to be worked on: never if it is
// empty.
func (l *leftovers) due(now time.Time) time.Duration {
	if len(l.list) == 0 {
		return never
	}
	return max(l.next.Sub(now), 0)
}

// work reports whether there is an owner that nobody wants any more.
func (l *leftovers) work(now time.Time) bool {
	return slices.ContainsFunc(l.list, func(o *leftover) bool { return !o.lock.wanted(now) })
}

// broken forgets what was answered: a connection has broken since.
func (l *leftovers) broken() {
	for _, o := range l.list {
		o.answered, o.refused = time.Time{}, time.Time{}
	}
}

// pick returns up to n owners that nobody wants any more and whose next release
// is due, and sets when to look again.
func (l *leftovers) pick(n int, now time.Time) []*leftover {
	var picked []*leftover
	l.next = now.Add(cleanInterval)
	for _, o := range l.list {
		if now.Sub(o.tried) < cleanInterval || !o.lock.claim(now) {
			continue
		}
		if len(picked) == n {
			l.next = now
			break
		}
		o.tried = now
		picked = append(picked, o)
	}
	return picked
}

// sweep removes what is done.
func (l *leftovers) sweep() {
	l.list = slices.DeleteFunc(l.list, func(o *leftover) bool { return o.done })
}

// settle takes what the instance answered to a release of o.
func (o *leftover) settle(v vote, now time.Time) {
	switch {
	case v != failed && !o.answered.IsZero():
		o.done = true
	case v != failed:
		o.answered = now
	case o.refused.IsZero():
		o.refused = now
	case now.Sub(o.refused) > o.lock.longest()+cleanInterval:
		// It answers, refuses to delete, and what it had has expired.
		o.done = true
	}
}

// unclean returns the owners that nobody wants any more and that the instance has
// not once let go of.
func (in *instance) unclean(now time.Time) []*Lock {
	in.mu.Lock()
	defer in.mu.Unlock()
	var locks []*Lock
	for _, o := range in.leftovers.list {
		if o.answered.IsZero() && !o.lock.wanted(now) {
			locks = append(locks, o.lock)
		}
	}
	return locks
}

// remember puts lock on the clean-up list.
func (in *instance) remember(lock *Lock, now time.Time) {
	in.mu.Lock()
	l := &in.leftovers
	dropped := 0
	switch {
	case lock.listed(in.index):
	case len(l.list) >= maxLeftovers:
		l.dropped++
		dropped = l.dropped
	default:
		lock.list(in.index)
		if len(l.list) == 0 {
			l.next = now
		}
		l.list = append(l.list, &leftover{lock: lock})
	}
	in.mu.Unlock()
	if dropped > 0 {
		in.locker.observeInstance(in, CleanUpOverflow, fmt.Errorf("%d owners beyond the %d that can be remembered", dropped, maxLeftovers))
	}
	in.signal()
}

// cleanUp sends one batch of releases.
func (in *instance) cleanUp(now time.Time) {
	n := maxBatch
	in.mu.Lock()
	if in.sharded.Load() || in.alone > 0 {
		n = 1
	}
	picked := in.leftovers.pick(n, now)
	in.mu.Unlock()
	if len(picked) == 0 {
		return
	}

	rounds, batch := make([]*round, len(picked)), make([]*round, len(picked))
	for i, o := range picked {
		r := in.locker.newRound(context.Background(), opRelease, o.lock)
		r.cleaning = true
		r.refs.Add(1) // the batch's
		rounds[i], batch[i] = r, r
	}
	res := in.exchange(batch, in.takeText(), now)
	if res.again {
		res = in.exchange(batch, in.takeText(), now)
	}
	if res.again {
		res = result{err: errPending} // next time, one by one
	}
	in.deliver(batch, res)

	now = in.locker.now()
	in.mu.Lock()
	defer in.mu.Unlock()
	for i, o := range picked {
		if res.err == nil || isReply(res.err) {
			o.settle(rounds[i].votes[in.index], now)
			if o.done {
				o.lock.unlist(in.index)
			}
		}
		rounds[i].leave()
	}
	in.leftovers.sweep()
}
