package redlock

import (
	"context"
	"errors"
	"fmt"
	"os"
	"strings"
	"time"
	"unicode"

	"github.com/hashicorp/go-multierror"
)

// What went wrong, for [errors.Is]. A refusal and a failure are never mixed up:
// ErrTaken means that somebody else holds the lock, ErrNoQuorum that too few
// instances could be asked.
var (
	// ErrTaken: a quorum answered, and somebody else holds the lock.
	ErrTaken = errors.New("redlock: taken")
	// ErrNoQuorum: too few instances answered.
	ErrNoQuorum = errors.New("redlock: no quorum")
	// ErrExpired: a majority granted the lock, but so late that no useful
	// validity was left.
	ErrExpired = errors.New("redlock: expired")
	// ErrLost: the lock is no longer ours. Errors that match it carry a
	// *[LostError] with the reason.
	ErrLost = errors.New("redlock: lost")
	// ErrClosed: the [Locker] is closed.
	ErrClosed = errors.New("redlock: closed")
)

// A QuorumError tells how a vote ended that was not won: one line of text that
// names each instance which did not grant, and why. It matches ErrTaken,
// ErrNoQuorum or ErrExpired, and through Errs each *[InstanceError] and its
// cause.
type QuorumError struct {
	Op        string // "acquire", "extend" or "release"
	Resource  string
	Instances int // N
	Needed    int // the quorum, N/2+1
	Granted   int
	Refused   int               // the lock was somebody else's, or gone
	Errs      *multierror.Error // an *InstanceError for each instance that did not grant; nil if all did

	reason error
	held   bool // a quorum refused, for the same grant
	vacant bool // a quorum said that it is nobody's
}

func (e *QuorumError) Error() string {
	return fmt.Sprintf("%v: %s %s: %s", e.reason, e.Op, quote(e.Resource), e.votes())
}

func (e *QuorumError) votes() string {
	s := fmt.Sprintf("%d of %d granted, %d refused, %d needed", e.Granted, e.Instances, e.Refused, e.Needed)
	if e.Errs != nil {
		s += ": " + e.Errs.Error()
	}
	return s
}

// Unwrap returns the sentinel and the instances' errors.
func (e *QuorumError) Unwrap() []error {
	if e.Errs == nil {
		return []error{e.reason}
	}
	return []error{e.reason, e.Errs}
}

// An InstanceError is what one instance answered, or why it did not.
type InstanceError struct {
	Instance string // its name, never with a password
	Op       string // "acquire", "raise", "extend", "release" or "close"
	Err      error
}

func (e *InstanceError) Error() string { return e.Instance + ": " + cause(e.Err) }

// Unwrap returns the cause.
func (e *InstanceError) Unwrap() error { return e.Err }

// A LostReason says why a lock is no longer ours.
type LostReason string

// The reasons of a [LostError].
const (
	LostExpired   LostReason = "expired"    // the validity window is over, or the keys are gone
	LostTakenOver LostReason = "taken over" // somebody else holds it
	LostNoQuorum  LostReason = "no quorum"  // too few instances confirmed it until its window was over
	LostMaxHold   LostReason = "max hold"   // held for as long as WithMaxHold allows
	LostReleased  LostReason = "released"   // by its holder
	LostClosed    LostReason = "closed"     // the Locker was closed
)

// A LostError is the error of a lock that is no longer ours. It matches
// [ErrLost], and the votes that showed it where there are any; with the reason
// LostClosed, it matches [ErrClosed], too.
type LostError struct {
	Resource string
	Reason   LostReason

	cause error
}

func (e *LostError) Error() string {
	s := fmt.Sprintf("%v: %s: %s", ErrLost, quote(e.Resource), e.Reason)
	var votes *QuorumError
	switch {
	case errors.As(e.cause, &votes):
		s += ": " + votes.votes()
	case e.cause != nil && !errors.Is(e.cause, ErrClosed):
		s += ": " + e.cause.Error()
	}
	return s
}

// unlessReleased returns e, or nil if the lock was released by its holder: what a
// Release returns that finds the lock ended.
func (e *LostError) unlessReleased() error {
	if e.Reason == LostReleased {
		return nil
	}
	return e
}

// Unwrap returns ErrLost and the cause.
func (e *LostError) Unwrap() []error {
	if e.cause == nil {
		return []error{ErrLost}
	}
	return []error{ErrLost, e.cause}
}

// An endedError is the error of a call whose context ended: it matches the
// context's error and the last real reason for which the call had not succeeded.
type endedError struct {
	op, resource string
	ctx          context.Context
	last         error // nil when nothing was tried
}

func (e *endedError) Error() string {
	s := "redlock: " + e.op
	if e.resource != "" { // a Check has none
		s += " " + quote(e.resource)
	}
	s += ": " + e.ctx.Err().Error()
	if cause := context.Cause(e.ctx); !errors.Is(cause, e.ctx.Err()) {
		s += " (" + line(cause.Error()) + ")"
	}
	if e.last != nil {
		s += "; before that: " + trim(e.last)
	}
	return s
}

func (e *endedError) Unwrap() []error {
	errs := []error{e.ctx.Err(), context.Cause(e.ctx)}
	if e.last != nil {
		errs = append(errs, e.last)
	}
	return errs
}

// quote returns s for an error's text: on one line, and short.
func quote(s string) string {
	const most = 64
	if len(s) <= most {
		return fmt.Sprintf("%q", s)
	}
	return fmt.Sprintf("%q... (%d bytes)", s[:most], len(s))
}

// oneLine formats a multierror on one line.
func oneLine(errs []error) string {
	texts := make([]string, len(errs))
	for i, err := range errs {
		texts[i] = trim(err)
	}
	return strings.Join(texts, "; ")
}

// trim returns the text of err without the name of the package.
func trim(err error) string { return strings.TrimPrefix(line(err.Error()), "redlock: ") }

// line returns s, which somebody else wrote, on one line.
func line(s string) string {
	return strings.Map(func(r rune) rune {
		if unicode.IsPrint(r) {
			return r
		}
		return ' '
	}, s)
}

// cause returns the text of an instance's error: on one line, and short.
func cause(err error) string {
	const most = 300
	s := line(err.Error())
	if len(s) > most {
		s = s[:most] + "..."
	}
	return s
}

// joined returns both errors as one; the one that there is, unchanged, if the other
// is nil.
func joined(err, other error) error {
	switch {
	case other == nil:
		return err
	case err == nil:
		return other
	}
	var a, b *LostError
	if errors.As(err, &a) && errors.As(other, &b) && a.Resource == b.Resource {
		return err // it says so already
	}
	return &multierror.Error{Errors: []error{err, other}, ErrorFormat: oneLine}
}

// joinFaults returns errs as one error of one line; nil if there is none.
func joinFaults(errs []error) error {
	if len(errs) == 0 {
		return nil
	}
	return &multierror.Error{Errors: errs, ErrorFormat: oneLine}
}

// A timeoutError is the failed vote of an instance that said nothing in time.
// It matches os.ErrDeadlineExceeded; never context.DeadlineExceeded, which is
// for the caller's own deadline.
type timeoutError struct{ limit time.Duration }

func (e *timeoutError) Error() string        { return fmt.Sprintf("no answer within %v", e.limit) }
func (e *timeoutError) Timeout() bool        { return true }
func (e *timeoutError) Is(target error) bool { return target == os.ErrDeadlineExceeded }

// A leaseError is the refusal of an instance on which another owner holds the
// lock.
type leaseError struct{ left time.Duration }

func newLeaseError(ms int64) error {
	return &leaseError{milliseconds(ms)}
}

func (e *leaseError) Error() string { return fmt.Sprintf("%v for %v more", errForeign, e.left) }
func (e *leaseError) Unwrap() error { return errForeign }
