package redlock

import "time"

// This file knows which calls are in progress and which locks are held: what
// Close has to wait for, and what it has to release.

// enter begins a call; it fails once Close has begun.
func (l *Locker) enter() error {
	if l.inside.Add(1) < shutting {
		return nil
	}
	l.exit()
	return ErrClosed
}

// exit ends a call. The last one out lets Close go on.
func (l *Locker) exit() {
	if l.inside.Add(-1) == shutting {
		l.leftOnce.Do(func() { close(l.left) })
	}
}

// shutting is added to the number of calls in progress when Close begins.
const shutting = 1 << 40

// register puts k on the list of held locks. It takes two others off that their
// holders forgot and that have expired, if it comes across them: so the list
// stays short without a goroutine that looks after it.
func (l *Locker) register(k *Lock, now time.Time) error {
	forgotten, err := l.registerAndSweep(k, now)
	for _, old := range forgotten {
		if old != nil {
			old.observeForgotten(now)
		}
	}
	return err
}

func (l *Locker) registerAndSweep(k *Lock, now time.Time) (forgotten [2]*Lock, err error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.isShut {
		return forgotten, ErrClosed
	}
	k.next, k.prev = &l.locks, l.locks.prev
	k.prev.next, k.next.prev = k, k
	for i := range forgotten {
		old := l.sweep
		l.sweep = old.next
		if old != &l.locks && old.claim(now) {
			forgotten[i] = old
			l.unlinkLocked(old)
		}
	}
	return forgotten, nil
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
