package redlockotel

import (
	"context"
	"errors"
	"slices"

	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/metric"

	"github.com/quorumlock/redlock"
)

// The attributes.
const (
	outcomeKey  = attribute.Key("redlock.outcome")
	reasonKey   = attribute.Key("redlock.reason")
	classKey    = attribute.Key("redlock.class")
	renewalKey  = attribute.Key("redlock.renewal")
	instanceKey = attribute.Key("redlock.instance")
	opKey       = attribute.Key("redlock.op")
	voteKey     = attribute.Key("redlock.vote")
	changeKey   = attribute.Key("redlock.change")
	guardKey    = attribute.Key("redlock.guard")
)

// The bounds of the histograms' buckets, as advice to the SDK.
var (
	// A round takes a fraction of a millisecond in a rack, and a second at most.
	callBounds = []float64{0.0001, 0.00025, 0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10}
	// With the wait for the turn, it is as long as the caller's patience.
	acquireBounds = append(slices.Clone(callBounds), 30, 60, 300, 3600)
	// Waits, holds and validities go from milliseconds to hours.
	leaseBounds = []float64{0.001, 0.005, 0.01, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 300, 900, 3600}
	// Renewals come at a third. What is close to 1 is too close, and above it is late.
	shareBounds = []float64{0.01, 0.05, 0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 0.95, 1, 1.5, 2, 5}
	roundBounds = []float64{1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 64, 128, 256, 1024}
)

type instruments struct {
	acquireDuration, acquireRemaining, waitDuration metric.Float64Histogram
	acquireRounds                                   metric.Int64Histogram
	holdDuration, leaseUsed                         metric.Float64Histogram
	extendDuration, extendRemaining                 metric.Float64Histogram
	releaseDuration, voteDuration                   metric.Float64Histogram
	holdOutlived, holdThin, leaseLost, foreign      metric.Int64Counter
	changes, dropped                                metric.Int64Counter

	held, overdue, waiting     metric.Int64ObservableUpDownCounter
	down, quarantined, cleanUp metric.Int64ObservableUpDownCounter
	accepted, stale, duplicate metric.Int64ObservableCounter
}

func (t *Telemetry) build(m metric.Meter) error {
	var errs []error
	seconds := func(name, what string, bounds []float64) metric.Float64Histogram {
		h, err := m.Float64Histogram(name, metric.WithUnit("s"), metric.WithDescription(what), metric.WithExplicitBucketBoundaries(bounds...))
		errs = append(errs, err)
		return h
	}
	counter := func(name, unit, what string) metric.Int64Counter {
		c, err := m.Int64Counter(name, metric.WithUnit(unit), metric.WithDescription(what))
		errs = append(errs, err)
		return c
	}
	now := func(name, unit, what string) metric.Int64ObservableUpDownCounter {
		c, err := m.Int64ObservableUpDownCounter(name, metric.WithUnit(unit), metric.WithDescription(what))
		errs = append(errs, err)
		return c
	}
	total := func(name, unit, what string) metric.Int64ObservableCounter {
		c, err := m.Int64ObservableCounter(name, metric.WithUnit(unit), metric.WithDescription(what))
		errs = append(errs, err)
		return c
	}

	t.acquireDuration = seconds("redlock.acquire.duration", "Time from the call for a lock to its end.", acquireBounds)
	t.acquireRemaining = seconds("redlock.acquire.remaining", "Validity that was left when a lock was acquired.", leaseBounds)
	t.waitDuration = seconds("redlock.wait.duration", "Time that calls for a lock waited for their turn.", leaseBounds)
	t.holdDuration = seconds("redlock.hold.duration", "Time from acquiring a lock to the call of Release.", leaseBounds)
	t.extendDuration = seconds("redlock.extend.duration", "Time that extends and renewals took.", callBounds)
	t.extendRemaining = seconds("redlock.extend.remaining", "Validity that was left when an extend ended, without what it gained.", leaseBounds)
	t.releaseDuration = seconds("redlock.release.duration", "Time that releases took.", callBounds)
	t.voteDuration = seconds("redlock.vote.duration", "Time from the start of a round to an instance's vote.", callBounds)
	var err error
	t.leaseUsed, err = m.Float64Histogram("redlock.hold.lease_used", metric.WithUnit("1"),
		metric.WithDescription("Share of the ttl that had gone by at the release since it was last set."), metric.WithExplicitBucketBoundaries(shareBounds...))
	errs = append(errs, err)
	t.acquireRounds, err = m.Int64Histogram("redlock.acquire.rounds", metric.WithUnit("{round}"),
		metric.WithDescription("Rounds that calls for a lock took."), metric.WithExplicitBucketBoundaries(roundBounds...))
	errs = append(errs, err)

	t.holdOutlived = counter("redlock.hold.outlived", "{hold}", "Holds that outlived their lease.")
	t.holdThin = counter("redlock.hold.thin", "{hold}", "Holds that some instance has with a larger fence.")
	t.leaseLost = counter("redlock.lease.lost", "{lease}", "Leases that ended before their holder released them.")
	t.foreign = counter("redlock.release.foreign", "{release}", "Releases that found another owner where the lock had been granted.")
	t.changes = counter("redlock.instance.changes", "{change}", "Changes of the state of an instance.")
	t.dropped = counter("redlock.event.dropped", "{event}", "Events that came too fast to be told.")

	t.held = now("redlock.held", "{lock}", "Locks that are valid now.")
	t.overdue = now("redlock.overdue", "{lock}", "Locks that are over and not released.")
	t.waiting = now("redlock.waiting", "{call}", "Calls for a lock that wait now.")
	t.down = now("redlock.instance.down", "{instance}", "1 while an instance is known to be down.")
	t.quarantined = now("redlock.instance.quarantined", "{instance}", "1 while an instance does not count after a restart.")
	t.cleanUp = now("redlock.instance.cleanup", "{owner}", "Owners on the clean-up list of an instance.")
	t.accepted = total("redlock.fence.accepted", "{write}", "Writes that passed a guard.")
	t.stale = total("redlock.fence.stale", "{write}", "Writes that a guard refused because a larger token had been seen.")
	t.duplicate = total("redlock.fence.duplicates", "{execution}", "Executions that the application found to be duplicates.")
	if err := errors.Join(errs...); err != nil {
		return err
	}

	t.registration, err = m.RegisterCallback(t.collect,
		t.held, t.overdue, t.waiting, t.down, t.quarantined, t.cleanUp, t.accepted, t.stale, t.duplicate)
	if err != nil {
		return err
	}
	t.dropped.Add(context.Background(), 0)
	return nil
}

// begin makes the counters of harm for a class that is seen for the first time. One that
// came with the first harm would hide it: an increase is the difference to a value before.
func (t *Telemetry) begin(class string) {
	if _, begun := t.classes.Load(class); begun {
		return
	}
	t.classes.Store(class, nil)
	ctx, with := context.Background(), t.with(attrKey{class: class}).add
	t.holdOutlived.Add(ctx, 0, with...)
	t.holdThin.Add(ctx, 0, with...)
	t.foreign.Add(ctx, 0, with...)
	for _, reason := range []redlock.LostReason{
		redlock.LostExpired, redlock.LostTakenOver, redlock.LostNoQuorum, redlock.LostMaxHold, redlock.LostClosed,
	} {
		t.leaseLost.Add(ctx, 0, t.with(attrKey{reason: reason, class: class}).add...)
	}
}

// beginInstance does the same for what may happen to an instance.
func (t *Telemetry) beginInstance(name string) {
	for _, change := range []redlock.InstanceChange{
		redlock.InstanceDown, redlock.InstanceUp, redlock.CleanUpOverflow, redlock.CleanUpLeft, redlock.InstanceDuplicate,
		redlock.InstanceQuarantined, redlock.QuarantineOver, redlock.QuarantineOff, redlock.ClockOff, redlock.ClockAstray, redlock.ClockUnknown,
	} {
		t.changes.Add(context.Background(), 0, t.with(attrKey{instance: name, change: change}).add...)
	}
}

// collect reports what there is now. An instance is told by its name: several Lockers
// may share it.
func (t *Telemetry) collect(_ context.Context, o metric.Observer) error {
	t.mu.Lock()
	defer t.mu.Unlock()
	var held, overdue, waiting int64
	type state struct{ down, quarantined, cleanUp int64 }
	instances := map[string]state{}
	for l := range t.lockers {
		s := l.Stats()
		held += int64(s.Held)
		overdue += int64(s.Overdue)
		waiting += int64(s.Waiting)
		for _, in := range s.Instances {
			sum := instances[in.Instance]
			sum.cleanUp += int64(in.CleanUp)
			if in.Down {
				sum.down = 1
			}
			if in.Quarantined > 0 {
				sum.quarantined = 1
			}
			instances[in.Instance] = sum
		}
	}
	o.ObserveInt64(t.held, held)
	o.ObserveInt64(t.overdue, overdue)
	o.ObserveInt64(t.waiting, waiting)
	for name, sum := range instances {
		at := metric.WithAttributes(instanceKey.String(name))
		o.ObserveInt64(t.down, sum.down, at)
		o.ObserveInt64(t.quarantined, sum.quarantined, at)
		o.ObserveInt64(t.cleanUp, sum.cleanUp, at)
	}
	for name, guards := range t.guards {
		var accepted, stale, duplicates uint64
		for _, g := range guards {
			c := g.Counts()
			accepted += c.Accepted
			stale += c.Stale
			duplicates += c.Duplicates
		}
		at := metric.WithAttributes(guardKey.String(name))
		o.ObserveInt64(t.accepted, int64(accepted), at)    //nolint:gosec // counted one by one
		o.ObserveInt64(t.stale, int64(stale), at)          //nolint:gosec // counted one by one
		o.ObserveInt64(t.duplicate, int64(duplicates), at) //nolint:gosec // counted one by one
	}
	return nil
}

// An attrKey is a combination of attributes; empty ones are not there.
type attrKey struct {
	outcome            redlock.Outcome
	reason             redlock.LostReason
	renewal            renewal
	instance, op, vote string
	change             redlock.InstanceChange
	class              string
}

type renewal uint8

const (
	notAnExtend renewal = iota
	byCaller
	byKeepAlive
)

func renewalOf(e redlock.ExtendEvent) renewal {
	if e.Renewal {
		return byKeepAlive
	}
	return byCaller
}

// attrs are the options of one attrKey. They are made once: making a set of
// attributes costs more than counting with it.
type attrs struct {
	add    []metric.AddOption
	record []metric.RecordOption
}

func (t *Telemetry) with(k attrKey) *attrs {
	if a, ok := t.attrs.Load(k); ok {
		return a.(*attrs) // nothing else is in it
	}
	var kvs []attribute.KeyValue
	for _, kv := range []attribute.KeyValue{
		outcomeKey.String(string(k.outcome)), reasonKey.String(string(k.reason)), instanceKey.String(k.instance), opKey.String(k.op),
		voteKey.String(k.vote), changeKey.String(string(k.change)), classKey.String(k.class),
	} {
		if kv.Value.AsString() != "" {
			kvs = append(kvs, kv)
		}
	}
	if k.renewal != notAnExtend {
		kvs = append(kvs, renewalKey.Bool(k.renewal == byKeepAlive))
	}
	o := metric.WithAttributeSet(attribute.NewSet(kvs...))
	a, _ := t.attrs.LoadOrStore(k, &attrs{add: []metric.AddOption{o}, record: []metric.RecordOption{o}})
	return a.(*attrs)
}

func (t *Telemetry) classOf(resource string) string {
	if t.class == nil {
		return ""
	}
	return t.class(resource)
}

func (t *Telemetry) acquire(e redlock.AcquireEvent) {
	t.countDropped(e.Context, e.Dropped)
	class := t.classOf(e.Resource)
	t.begin(class)
	with := t.with(attrKey{outcome: e.Outcome, class: class}).record
	t.acquireDuration.Record(e.Context, e.End.Sub(e.Start).Seconds(), with...)
	t.acquireRounds.Record(e.Context, int64(e.Rounds), with...)
	if e.Waited > 0 {
		t.waitDuration.Record(e.Context, e.Waited.Seconds(), with...)
	}
	if e.Outcome == redlock.OutcomeAcquired {
		t.acquireRemaining.Record(e.Context, e.Remaining.Seconds(), t.with(attrKey{class: class}).record...)
	}
	t.traceAcquire(e, class)
}

func (t *Telemetry) extend(e redlock.ExtendEvent) {
	t.countDropped(e.Context, e.Dropped)
	class := t.classOf(e.Resource)
	t.extendDuration.Record(e.Context, e.End.Sub(e.Start).Seconds(),
		t.with(attrKey{outcome: e.Outcome, renewal: renewalOf(e), class: class}).record...)
	t.extendRemaining.Record(e.Context, e.Left.Seconds(), t.with(attrKey{renewal: renewalOf(e), class: class}).record...)
}

func (t *Telemetry) lost(e redlock.LostEvent) {
	t.countDropped(e.Context, e.Dropped)
	t.leaseLost.Add(e.Context, 1, t.with(attrKey{reason: e.Reason, class: t.classOf(e.Resource)}).add...)
}

func (t *Telemetry) outlived(e redlock.OutlivedEvent) {
	t.countDropped(e.Context, e.Dropped)
	t.holdOutlived.Add(e.Context, 1, t.with(attrKey{class: t.classOf(e.Resource)}).add...)
}

func (t *Telemetry) release(e redlock.ReleaseEvent) {
	t.countDropped(e.Context, e.Dropped)
	class := t.classOf(e.Resource)
	with := t.with(attrKey{outcome: e.Outcome, class: class}).record
	if !e.Again {
		t.holdDuration.Record(e.Context, e.Start.Sub(e.Acquired).Seconds(), with...)
		t.leaseUsed.Record(e.Context, e.Used, t.with(attrKey{class: class}).record...)
	}
	if !e.Round.Start.IsZero() {
		t.releaseDuration.Record(e.Context, e.End.Sub(e.Start).Seconds(), with...)
	}
	t.traceRelease(e, class)
}

func (t *Telemetry) round(e redlock.RoundEvent) {
	t.countDropped(e.Context, e.Dropped)
	for _, v := range e.Votes {
		if v.Took > 0 { // it was asked, in this round
			t.voteDuration.Record(e.Context, v.Took.Seconds(), t.with(attrKey{instance: v.Instance, op: e.Op, vote: v.Vote}).record...)
		}
	}
	switch {
	case e.Foreign() > 0:
		t.foreign.Add(e.Context, 1, t.with(attrKey{class: t.classOf(e.Resource)}).add...)
	case e.Won && (e.Op == "acquire" || e.Op == "raise") && e.Thin() > 0:
		t.holdThin.Add(e.Context, 1, t.with(attrKey{class: t.classOf(e.Resource)}).add...)
	}
}

func (t *Telemetry) instance(e redlock.InstanceEvent) {
	t.countDropped(context.Background(), e.Dropped)
	t.changes.Add(context.Background(), 1, t.with(attrKey{instance: e.Instance, change: e.Change}).add...)
}

func (t *Telemetry) countDropped(ctx context.Context, n int) {
	if n > 0 {
		t.dropped.Add(ctx, int64(n))
	}
}
