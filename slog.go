package redlock

import (
	"context"
	"errors"
	"log/slog"
	"strings"
)

// SlogObserver returns an Observer that writes to log; nil is [slog.Default], as it is
// then.
//
// A record names the class of a resource, as class says, and never the resource
// itself: it may name a person, and each would be a line of its own in whatever counts
// them. A nil class names none. Of the owner, which releases the lock, it has
// the digest (see [OwnerDigest]).
//
// Contention is no record: that somebody else holds a lock is what locks are for, and
// so is a caller that gave up waiting for it. What goes well is at debug level.
//
//	error  what can damage data: a lease that was lost, a holder that outlived its own,
//	       an instance that can't vote until somebody acts, an owner left behind
//	warn   what took away some safety, or the lock from a caller: an instance that is down
//	       or quarantined, a renewal that failed, an acquire or a release without a quorum,
//	       a release that found another owner, max hold, events that were dropped
//	info   that it is over again; locks that Close released
func SlogObserver(log *slog.Logger, class func(resource string) string) Observer {
	s := &slogObserver{log: log, class: class}
	return Observer{
		Acquire:  s.acquire,
		Extend:   s.extend,
		Lost:     s.lost,
		Outlived: s.outlived,
		Release:  s.release,
		Round:    s.round,
		Instance: s.instance,
	}
}

type slogObserver struct {
	log   *slog.Logger
	class func(string) string
}

func (s *slogObserver) acquire(e AcquireEvent) {
	level := slog.LevelDebug
	switch {
	case e.Outcome == OutcomeTaken, e.Outcome == OutcomeClosed,
		e.Outcome == OutcomeCancelled && !errors.Is(e.Err, ErrNoQuorum):
		s.dropped(e.Context, e.Dropped)
		return
	case e.Outcome == OutcomeFailed:
		level = slog.LevelError
	case e.Outcome != OutcomeAcquired:
		level = slog.LevelWarn
	}
	if s.skips(e.Context, level, e.Dropped) {
		return
	}
	attrs := append(s.lock(e.LockEvent), slog.String("outcome", string(e.Outcome)),
		slog.Duration("took", e.End.Sub(e.Start)), slog.Duration("waited", e.Waited), slog.Int("rounds", e.Rounds),
		slog.Duration("ttl", e.TTL))
	if e.Outcome == OutcomeAcquired {
		attrs = append(attrs, slog.Duration("remaining", e.Remaining))
	}
	s.write(e.Context, level, "redlock: acquire", e.Dropped, withError(attrs, e.Resource, e.Err))
}

func (s *slogObserver) extend(e ExtendEvent) {
	level := slog.LevelDebug
	if e.Outcome == OutcomeNoQuorum || e.Outcome == OutcomeCancelled && errors.Is(e.Err, ErrNoQuorum) {
		level = slog.LevelWarn
	}
	if s.skips(e.Context, level, e.Dropped) {
		return
	}
	s.write(e.Context, level, "redlock: extend", e.Dropped, withError(append(s.lock(e.LockEvent),
		slog.String("outcome", string(e.Outcome)), slog.Bool("renewal", e.Renewal), slog.Duration("took", e.End.Sub(e.Start)),
		slog.Duration("ttl", e.TTL), slog.Duration("remaining", e.Remaining)), e.Resource, e.Err))
}

func (s *slogObserver) lost(e LostEvent) {
	level := slog.LevelError
	switch e.Reason {
	case LostMaxHold: // as it was asked for
		level = slog.LevelWarn
	case LostClosed:
		level = slog.LevelInfo
	}
	s.write(e.Context, level, "redlock: lease lost", e.Dropped, withError(append(s.lock(e.LockEvent),
		slog.String("reason", string(e.Reason)), slog.Duration("held", e.At.Sub(e.Acquired))), e.Resource, e.Err))
}

func (s *slogObserver) outlived(e OutlivedEvent) {
	s.write(e.Context, slog.LevelError, "redlock: a hold outlived its lease", e.Dropped, append(s.lock(e.LockEvent),
		slog.Duration("by", e.By), slog.Bool("released", e.Released), slog.Duration("held", e.At.Sub(e.Acquired))))
}

func (s *slogObserver) release(e ReleaseEvent) {
	level := slog.LevelDebug // also of a lock that was lost: that is told
	if e.Outcome == OutcomeNoQuorum {
		level = slog.LevelWarn
	}
	if s.skips(e.Context, level, e.Dropped) {
		return
	}
	s.write(e.Context, level, "redlock: release", e.Dropped, withError(append(s.lock(e.LockEvent),
		slog.String("outcome", string(e.Outcome)), slog.Duration("held", e.Start.Sub(e.Acquired)), slog.Duration("took", e.End.Sub(e.Start)),
		slog.Float64("used", e.Used)), e.Resource, e.Err))
}

func (s *slogObserver) round(e RoundEvent) {
	s.dropped(e.Context, e.Dropped)
	if e.Foreign() > 0 {
		var names []string
		for _, v := range e.Votes {
			if v.Foreign {
				names = append(names, v.Instance)
			}
		}
		s.write(e.Context, slog.LevelWarn, "redlock: a release found another owner", 0,
			append(s.lock(e.LockEvent), slog.Any("instances", names)))
	}
	if n := e.Thin(); n > 0 && e.Won && e.Op != "release" && s.enabled(e.Context, slog.LevelDebug) {
		s.write(e.Context, slog.LevelDebug, "redlock: thin hold", 0,
			append(s.lock(e.LockEvent), slog.String("op", e.Op), slog.Int("instances", n)))
	}
}

func (s *slogObserver) instance(e InstanceEvent) {
	level := slog.LevelWarn
	switch e.Change {
	case InstanceUp, QuarantineOver:
		level = slog.LevelInfo
	case InstanceDuplicate, ClockOff, CleanUpOverflow:
		level = slog.LevelError
	}
	attrs := []slog.Attr{slog.String("instance", e.Instance), slog.String("change", string(e.Change))}
	if e.Err != nil {
		attrs = append(attrs, slog.String("error", cause(e.Err)))
	}
	s.write(context.Background(), level, "redlock: instance "+string(e.Change), e.Dropped, attrs)
}

// lock returns the attributes that all records about a lock have.
func (s *slogObserver) lock(e LockEvent) []slog.Attr {
	attrs := make([]slog.Attr, 0, 12)
	if s.class != nil {
		attrs = append(attrs, slog.String("class", s.class(e.Resource)))
	}
	if e.Owner != "" {
		attrs = append(attrs, slog.String("owner", e.Owner))
	}
	if e.Token > 0 {
		attrs = append(attrs, slog.Uint64("token", e.Token))
	}
	return attrs
}

func (s *slogObserver) logger() *slog.Logger {
	if s.log == nil {
		return slog.Default()
	}
	return s.log
}

func (s *slogObserver) enabled(ctx context.Context, level slog.Level) bool {
	return s.logger().Enabled(ctx, level)
}

// skips reports whether a record at level is not written; that events were dropped
// before it is, all the same.
func (s *slogObserver) skips(ctx context.Context, level slog.Level, dropped int) bool {
	if s.enabled(ctx, level) {
		return false
	}
	s.dropped(ctx, dropped)
	return true
}

func (s *slogObserver) write(ctx context.Context, level slog.Level, message string, dropped int, attrs []slog.Attr) {
	s.dropped(ctx, dropped)
	s.logger().LogAttrs(ctx, level, message, attrs...)
}

func (s *slogObserver) dropped(ctx context.Context, n int) {
	if n > 0 {
		s.logger().LogAttrs(ctx, slog.LevelWarn, "redlock: events were dropped", slog.Int("events", n))
	}
}

// withError adds what err says without naming the resource, as the texts of this
// package's errors do: the votes, and otherwise the type.
func withError(attrs []slog.Attr, resource string, err error) []slog.Attr {
	var votes *QuorumError
	var lost *LostError
	var text string
	switch {
	case err == nil:
		return attrs
	case errors.As(err, &votes):
		text = trim(votes.reason) + ": " + votes.votes()
	case errors.As(err, &lost):
		text = string(lost.Reason)
		if cause := lost.cause; cause != nil && trim(cause) != text {
			text += ": " + trim(cause)
		}
	default:
		// Of a fencing source, or a client's own: it says what it likes.
		text = strings.NewReplacer(quote(resource), "<resource>", resource, "<resource>").Replace(trim(err))
	}
	return append(attrs, slog.String("error", text))
}
