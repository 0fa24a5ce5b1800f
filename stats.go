package redlock

import "time"

// Stats tells how a [Locker] stands.
type Stats struct {
	Held      int // locks that are valid, whoever holds them; one that was forgotten until its window ends
	Overdue   int // locks whose window is over and whose holder has not released them: forgotten, or still at work
	Waiting   int // calls of Acquire that wait for their turn
	Instances []InstanceStats
}

// InstanceStats tells how an instance stands.
type InstanceStats struct {
	Instance    string
	Down        bool          // its votes fail at once, and it is probed
	Quarantined time.Duration // until it counts again after a restart, as far as it was asked since; 0 if it counts
	CleanUp     int           // the length of its clean-up list: owners that it may still have, or may yet grant
}

// Stats returns how the Locker stands now. It asks no instance, but looks at every lock
// that is held, and none is acquired meanwhile. Locks that were kept alive are overdue for no longer than it takes to signal their loss, after which
// [Observer.Outlived] tells of their holders.
func (l *Locker) Stats() Stats {
	var s Stats
	if l == nil {
		return s
	}
	now := l.now()
	s.Waiting = int(l.waiting.Load())
	l.mu.Lock()
	for k := l.locks.next; k != &l.locks; k = k.next {
		if k.wanted(now) {
			s.Held++
		} else {
			s.Overdue++
		}
	}
	l.mu.Unlock()
	for _, in := range l.instances {
		in.mu.Lock()
		i := InstanceStats{Instance: in.name, Down: in.down != nil, CleanUp: len(in.leftovers.list)}
		in.mu.Unlock()
		i.Quarantined = max(time.Duration(in.quarantinedUntil.Load())-now.Sub(l.born), 0)
		s.Instances = append(s.Instances, i)
	}
	return s
}
