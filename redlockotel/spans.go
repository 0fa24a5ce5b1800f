package redlockotel

import (
	"errors"

	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/codes"
	"go.opentelemetry.io/otel/trace"

	"github.com/quorumlock/redlock"
)

// Spans are made when their events come: they begin and end at the events' instants,
// and not when the observer's goroutine got to them.

func (t *Telemetry) traceAcquire(e redlock.AcquireEvent, class string) {
	_, span := t.tracer.Start(e.Context, "redlock.acquire", trace.WithSpanKind(trace.SpanKindClient), trace.WithTimestamp(e.Start))
	defer span.End(trace.WithTimestamp(e.End))
	if !span.IsRecording() {
		return
	}
	describe(span, e.LockEvent, class, e.Outcome, e.Err)
	span.SetAttributes(attribute.Int("redlock.rounds", e.Rounds), attribute.Float64("redlock.ttl", e.TTL.Seconds()),
		attribute.Float64("redlock.waited", e.Waited.Seconds()), attribute.Float64("redlock.remaining", e.Remaining.Seconds()))
	addRounds(span, e.Last)
}

func (t *Telemetry) traceRelease(e redlock.ReleaseEvent, class string) {
	if !e.Again {
		t.traceHold(e, class)
	}
	if e.Round.Start.IsZero() {
		return
	}
	_, span := t.tracer.Start(e.Context, "redlock.release", trace.WithSpanKind(trace.SpanKindClient), trace.WithTimestamp(e.Start))
	defer span.End(trace.WithTimestamp(e.End))
	if !span.IsRecording() {
		return
	}
	describe(span, e.LockEvent, class, e.Outcome, e.Err)
	addRounds(span, []redlock.RoundTally{e.Round})
}

func (t *Telemetry) traceHold(e redlock.ReleaseEvent, class string) {
	_, span := t.tracer.Start(e.Context, "redlock.hold", trace.WithTimestamp(e.Acquired))
	defer span.End(trace.WithTimestamp(e.Start))
	if !span.IsRecording() {
		return
	}
	err := e.Err
	if e.Outcome != redlock.OutcomeLost {
		err = nil // of the release, not of the hold
	}
	describe(span, e.LockEvent, class, e.Outcome, err)
	span.SetAttributes(attribute.Int("redlock.extends", e.Extends), attribute.Float64("redlock.ttl", e.TTL.Seconds()),
		attribute.Float64("redlock.lease_used", e.Used), attribute.Float64("redlock.outlived", e.Outlived.Seconds()))
	addRounds(span, e.Last)
}

// describe sets what all spans have. An error's text names the resource: its kind is
// told in its place.
func describe(span trace.Span, e redlock.LockEvent, class string, outcome redlock.Outcome, err error) {
	kvs := make([]attribute.KeyValue, 0, 5)
	kvs = append(kvs, outcomeKey.String(string(outcome)))
	if class != "" {
		kvs = append(kvs, classKey.String(class))
	}
	if e.Owner != "" {
		kvs = append(kvs, attribute.String("redlock.owner", e.Owner))
	}
	if e.Token > 0 {
		kvs = append(kvs, attribute.Int64("redlock.token", int64(e.Token))) //nolint:gosec // below 2^53
	}
	var lost *redlock.LostError
	if errors.As(err, &lost) {
		kvs = append(kvs, reasonKey.String(string(lost.Reason)))
	}
	span.SetAttributes(kvs...)
	switch outcome {
	case redlock.OutcomeNoQuorum, redlock.OutcomeExpired, redlock.OutcomeLost, redlock.OutcomeFailed:
		if err != nil {
			span.SetStatus(codes.Error, string(outcome))
		}
	}
	// Taken and cancelled are no errors: that is what locks are for.
}

func addRounds(span trace.Span, rounds []redlock.RoundTally) {
	for _, r := range rounds {
		span.AddEvent("redlock.round", trace.WithTimestamp(r.Start), trace.WithAttributes(
			opKey.String(r.Op), attribute.Float64("redlock.took", r.End.Sub(r.Start).Seconds()), attribute.Int("redlock.granted", r.Granted),
			attribute.Int("redlock.refused", r.Refused), attribute.Int("redlock.failed", r.Failed), attribute.Int("redlock.pending", r.Pending)))
	}
}
