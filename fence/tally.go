package fence

import "sync/atomic"

// Counts is what a guard has counted since it was made.
type Counts struct {
	// Accepted counts tokens that passed. Whether the write then worked, or was
	// rolled back, a guard does not know.
	Accepted uint64
	// Stale counts writes that were refused because a larger token had been seen.
	// Each is a holder that came late, and damage that did not happen.
	Stale uint64
	// Duplicates counts what the application reported with CountDuplicate.
	Duplicates uint64
}

// A Counter is what all guards of this module are, for those who export metrics.
type Counter interface{ Counts() Counts }

// A Tally compares and counts for a guard; all of this module are built on it,
// and so can be one of your own. The zero Tally is ready to use, by any number of
// goroutines.
type Tally struct {
	accepted, stale, duplicates atomic.Uint64
}

// Compare counts token as accepted and returns nil if it is at least as large as
// mark, the largest that was seen before. Otherwise it counts it as stale and
// returns a *[StaleError].
func (t *Tally) Compare(resource string, token, mark uint64) error {
	if token < mark {
		t.stale.Add(1)
		return &StaleError{Resource: resource, Token: token, Current: mark}
	}
	t.accepted.Add(1)
	return nil
}

// CountDuplicate counts an execution that was found to be a duplicate: the work
// had been done before. Only the application can tell.
func (t *Tally) CountDuplicate() { t.duplicates.Add(1) }

// Counts returns what was counted.
func (t *Tally) Counts() Counts {
	return Counts{Accepted: t.accepted.Load(), Stale: t.stale.Load(), Duplicates: t.duplicates.Load()}
}
