package redlock

import "time"

// This file is pure time arithmetic: every function takes its instants, none
// reads a clock.

// Limits of a time to live.
const (
	minTTL = 10 * time.Millisecond    // below it the default drift alone eats a fifth
	maxTTL = 365 * 24 * time.Hour     // beyond it the number is a mistake of units
	tick   = time.Millisecond         // the resolution of a Redis expiry
	never  = time.Duration(1<<63 - 1) // no limit
)

// serverTTL returns the whole milliseconds after which an instance expires a
// key: ttl rounded up, so that the server never expires it before we do.
func serverTTL(ttl time.Duration) int64 {
	ms := ttl.Milliseconds()
	if ttl%tick > 0 {
		ms++
	}
	return ms
}

// milliseconds returns ms as a Duration, or the longest that there is, nearly.
func milliseconds(ms int64) time.Duration {
	return time.Duration(min(ms, int64(never/time.Millisecond)-1)) * time.Millisecond
}

// validity returns how long a holder may rely on a lease of ttl, counted from
// before the first request was sent: ttl rounded down to whole milliseconds,
// less the drift, ttl*factor + base. It is zero or negative where the drift
// eats the ttl.
//
// The factor stands for clocks that run at different rates on the client and
// on the instances, the base for the resolution of a Redis expiry (the drift
// of https://redis.io/docs/latest/develop/clients/patterns/distributed-locks/).
func validity(ttl time.Duration, factor float64, base time.Duration) time.Duration {
	ttl = ttl.Truncate(tick)
	return ttl - time.Duration(float64(ttl)*factor) - base
}

// elapsed returns how much time went by from start to now, on the monotonic
// clock or on the wall clock, whichever says more, and never less than zero.
// A suspended machine stops the monotonic clock; a wall clock that was set back
// hides time from the other one. Believing the larger ends a lock early in
// either case, and late in neither.
func elapsed(start, now time.Time) time.Duration {
	return max(now.Sub(start), now.Round(0).Sub(start.Round(0)), 0)
}

// A window is the time in which a holder may rely on its lock: length, counted
// from start on both clocks.
type window struct {
	start  time.Time
	length time.Duration
}

// remaining returns what is left of w at now; zero or less once it is over.
func (w window) remaining(now time.Time) time.Duration {
	return w.length - elapsed(w.start, now)
}

// stepped reports whether w is over on the wall clock alone.
func (w window) stepped(now time.Time) bool {
	return w.remaining(now) <= 0 && now.Sub(w.start) < w.length
}

// end returns the end of w as a wall instant, to show.
func (w window) end() time.Time { return w.start.Round(0).Add(w.length) }

// endsBefore reports whether w, which starts later than v, is over before v is.
func (w window) endsBefore(v window) bool { return w.length < v.remaining(w.start) }

// A sighting is what is known of the moment at which an instance last set the
// expiry of a lock's key: not before from, and not more than width later.
type sighting struct {
	from  time.Time
	width time.Duration
	ttl   time.Duration // that it was given; 0 when nothing is known
	doubt bool          // a request may still reach it late, and set the expiry then
}

// missed returns by how much an instance's clock is out of what is possible, when
// it says that left was left of the key at a moment between sent and got: more
// than zero if it counted too much time since the sighting, less if too little,
// and zero if it agrees with our clocks, within the drift.
func (s sighting) missed(left time.Duration, sent, got time.Time, factor float64, base time.Duration) time.Duration {
	counted := s.ttl - left
	tolerance := func(d time.Duration) time.Duration {
		return time.Duration(float64(d)*factor) + base + 2*tick // both times were rounded
	}
	most := elapsed(s.from, got)
	if most += tolerance(most); counted > most {
		return counted - most
	}
	// On the clock that says less: the other one may have been set.
	last := s.from.Add(s.width)
	least := min(sent.Sub(last), sent.Round(0).Sub(last.Round(0)))
	if least -= tolerance(least); counted < least {
		return counted - least
	}
	return 0
}

// clockOffset returns how far a server's clock is ahead of ours, which read
// before and after it was asked.
func clockOffset(server, before, after time.Time) time.Duration {
	return server.Sub(before.Round(0).Add(after.Sub(before) / 2))
}

// checkClock refuses an offset that is beyond half the retention, also when the
// answer took so long that it is uncertain by uncertainty/2.
func checkClock(offset, uncertainty, retention time.Duration) error {
	if offset.Abs()-uncertainty/2 > retention/2 {
		return &clockError{offset, retention / 2}
	}
	return nil
}
