package redlock

import (
	"errors"
	"fmt"
	"strings"
	"time"
)

// An instance that restarted may have forgotten what it granted: with A, B and C,
// a lock on A and B, and B restarted empty, B and C would grant it again. So it
// does not count until everything that it may have granted has expired, and every
// fence that it may have forgotten is below every later seed.

const (
	maxQuarantineTTL = time.Hour
	// quarantineMargin is a second for the clients' clocks, and one for the server,
	// which tells its uptime as a difference of two whole seconds.
	quarantineMargin = 2 * time.Second
)

// ErrQuarantined means that an instance does not count, because it restarted and may
// have forgotten what it granted. It is the cause at an instance, found behind
// [ErrNoQuorum] and in what ended a lock; [QuarantineError] tells how long.
var ErrQuarantined = errors.New("redlock: quarantined")

// A QuarantineError is the failed vote of an instance in quarantine. It matches
// [ErrQuarantined].
type QuarantineError struct {
	Left time.Duration // until the instance counts again

	absent bool // it has lost the key, and may get it back
}

func (e *QuarantineError) Error() string {
	return fmt.Sprintf("quarantined for %v more: it started, or took over, too recently to remember every lock", e.Left.Round(time.Millisecond))
}

// Is reports whether target is ErrQuarantined.
func (e *QuarantineError) Is(target error) bool {
	return target == ErrQuarantined || target == errAbsent && e.absent
}

// quarantine returns how long an instance has to be up before it counts.
func (l *Locker) quarantine() time.Duration {
	if l.quarantined != quarantineByTTL {
		return l.quarantined
	}
	return min(time.Duration(l.longestTTL.Load()), maxQuarantineTTL) + quarantineMargin
}

// asksFor notes that the Locker is asked for a lock of ttl.
func (l *Locker) asksFor(ttl time.Duration) {
	for longest := l.longestTTL.Load(); int64(ttl) > longest; longest = l.longestTTL.Load() {
		if l.longestTTL.CompareAndSwap(longest, int64(ttl)) {
			return
		}
	}
}

// A memory is what is known of how far back a server remembers.
type memory struct {
	runID    string
	since    time.Time // it forgot nothing after this; zero where it never told
	answered time.Time // its last answer
	blind    bool      // the observer knows that it does not tell
	told     bool      // the observer knows of the quarantine
}

// meet takes who answers on a new connection. A run_id that is the last one is that
// of the same process, which remembers: that its uptime has fallen says only that
// its clock was set back.
func (m *memory) meet(s serverInfo, now time.Time) {
	known, last := !m.since.IsZero(), m.answered
	m.answered = now
	switch changed := s.runID != m.runID && s.runID != ""; {
	case known && !changed && s.runID != "":
		return
	case known && changed && (!s.tells || s.started.Add(time.Second).Before(last)):
		// It was up already when the last one answered, or may have been: a failover, or
		// another server behind the name. What it has missed, it may have missed until
		// now.
		m.since = now
	case s.tells && s.started.After(m.since):
		m.since = s.started
	}
	if s.runID != "" {
		m.runID = s.runID
	}
}

// follows notes that the server is a replica: what it may have missed when it is
// promoted, it may miss until then.
func (m *memory) follows(now time.Time) {
	if !m.since.IsZero() {
		m.since = now
	}
}

// left returns how much of a quarantine is left at now; zero or less when it is
// over. It trusts the monotonic clock alone: a wall clock that is set forward
// ends no quarantine.
func (m *memory) left(quarantine time.Duration, now time.Time) time.Duration {
	if m.since.IsZero() || quarantine == 0 {
		return 0
	}
	return quarantine - now.Sub(m.since)
}

// weigh returns what a counts for: nothing, as long as the instance is in
// quarantine or unfit. Releases and heals are no votes.
func (in *instance) weigh(r *round, a answer, now time.Time) answer {
	m := &in.memory
	if a.vote == failed && strings.HasPrefix(a.err.Error(), "READONLY") {
		m.follows(now)
	}
	if a.vote == failed || r.op == opRelease || r.op == opHeal {
		return a
	}
	left := m.left(in.locker.quarantine(), now)
	if left <= 0 {
		if m.told {
			m.told = false
			in.locker.observeInstance(in, QuarantineOver, nil)
		}
		if a.vote == granted && in.unfit != nil {
			return answer{vote: failed, err: in.unfit}
		}
		return a
	}
	in.quarantinedUntil.Store(int64(now.Sub(in.locker.born) + left))
	err := &QuarantineError{Left: left, absent: errors.Is(a.err, errAbsent)}
	if !m.told {
		m.told = true
		in.locker.observeInstance(in, InstanceQuarantined, err)
	}
	return answer{vote: failed, fence: a.fence, lease: max(a.lease, left.Milliseconds()+1), err: err}
}
