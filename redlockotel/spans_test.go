package redlockotel_test

import (
	"context"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/codes"
	"go.opentelemetry.io/otel/sdk/trace"
	"go.opentelemetry.io/otel/sdk/trace/tracetest"

	"github.com/quorumlock/redlock"
	"github.com/quorumlock/redlock/internal/redistest"
	"github.com/quorumlock/redlock/redlockotel"
)

func newSpans() (redlockotel.Option, *tracetest.SpanRecorder) {
	r := tracetest.NewSpanRecorder()
	return redlockotel.WithTracerProvider(trace.NewTracerProvider(trace.WithSpanProcessor(r))), r
}

func value(s trace.ReadOnlySpan, key string) attribute.Value {
	for _, kv := range s.Attributes() {
		if string(kv.Key) == key {
			return kv.Value
		}
	}
	return attribute.Value{}
}

func TestSpansTellTheLifeOfALock(t *testing.T) {
	servers := redistest.StartN(t, 3)
	provider, recorder := newSpans()
	tel, _ := newTelemetry(t, provider)
	l, err := redlock.Open(redistest.Addrs(servers), redlock.WithObserver(tel.Observer()), redlock.WithQuarantine(0),
		redlock.WithInstanceTimeout(5*time.Second))
	require.NoError(t, err)
	callers := tracetest.NewSpanRecorder()
	ctx, caller := trace.NewTracerProvider(trace.WithSpanProcessor(callers)).Tracer("t").Start(t.Context(), "caller")

	k, err := l.Acquire(ctx, "r", long)
	require.NoError(t, err)
	require.NoError(t, k.Extend(ctx, long))
	require.NoError(t, k.Extend(ctx, long))
	require.NoError(t, k.Release(ctx))
	_, err = l.TryAcquire(ctx, "r", time.Second, redlock.WithMinValidity(988*time.Millisecond-1))
	require.ErrorIs(t, err, redlock.ErrExpired)
	caller.End()
	require.NoError(t, l.Close())

	spans := recorder.Ended()
	require.Len(t, spans, 4)
	acquire, hold, release, late := spans[0], spans[1], spans[2], spans[3]
	for s, want := range map[trace.ReadOnlySpan]string{acquire: "redlock.acquire", hold: "redlock.hold", release: "redlock.release", late: "redlock.acquire"} {
		require.Equal(t, want, s.Name())
		require.Equal(t, caller.SpanContext().SpanID(), s.Parent().SpanID())
		require.Equal(t, caller.SpanContext().TraceID(), s.SpanContext().TraceID())
		for _, e := range s.Events() {
			require.Equal(t, "redlock.round", e.Name)
			require.False(t, e.Time.Before(s.StartTime()))
			require.False(t, e.Time.After(s.EndTime()))
		}
	}
	require.False(t, hold.StartTime().Before(acquire.StartTime()))
	require.True(t, hold.EndTime().After(acquire.EndTime()))
	require.Equal(t, hold.EndTime().UnixNano(), release.StartTime().UnixNano())
	require.GreaterOrEqual(t, len(acquire.Events()), 1)
	require.Len(t, hold.Events(), 2, "one for each extend")
	require.Len(t, release.Events(), 1)
	for _, s := range spans[:3] {
		require.Equal(t, redlock.OwnerDigest(k.Owner()), value(s, "redlock.owner").AsString())
		require.EqualValues(t, k.FencingToken(), value(s, "redlock.token").AsInt64())
		require.Equal(t, codes.Unset, s.Status().Code)
	}
	require.Equal(t, "expired", value(late, "redlock.outcome").AsString())
	require.Equal(t, codes.Error, late.Status().Code)
}

func TestContentionIsNoErrorOfASpan(t *testing.T) {
	servers := redistest.StartN(t, 3)
	provider, recorder := newSpans()
	tel, _ := newTelemetry(t, provider)
	l, err := redlock.Open(redistest.Addrs(servers), redlock.WithObserver(tel.Observer()), redlock.WithQuarantine(0))
	require.NoError(t, err)
	for _, s := range servers {
		s.MustDo(t, "SET", "r", "other")
	}
	_, err = l.TryAcquire(t.Context(), "r", long)
	require.ErrorIs(t, err, redlock.ErrTaken)
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Millisecond)
	defer cancel()
	_, err = l.Acquire(ctx, "r", long)
	require.ErrorIs(t, err, context.DeadlineExceeded)
	require.NoError(t, l.Close())
	for i, want := range []string{"taken", "cancelled"} {
		s := recorder.Ended()[i]
		require.Equal(t, want, value(s, "redlock.outcome").AsString())
		require.Equal(t, codes.Unset, s.Status().Code)
	}
}

// A processor is called when a span ends: an exporter that hangs hangs there.
type processor struct{ onEnd func() }

func (p processor) OnStart(context.Context, trace.ReadWriteSpan) {}
func (p processor) OnEnd(trace.ReadOnlySpan)                     { p.onEnd() }
func (p processor) Shutdown(context.Context) error               { return nil }
func (p processor) ForceFlush(context.Context) error             { return nil }

func TestTelemetryThatBlocksOrPanicsTouchesNoLock(t *testing.T) {
	servers := redistest.StartN(t, 3)
	for name, c := range map[string]struct {
		onEnd func(end <-chan struct{})
		works bool
	}{
		"blocks": {func(end <-chan struct{}) { <-end }, false},
		"panics": {func(<-chan struct{}) { panic("exporter") }, true},
	} {
		t.Run(name, func(t *testing.T) {
			end, done := make(chan struct{}), make(chan struct{})
			tel, page := newTelemetry(t, redlockotel.WithTracerProvider(trace.NewTracerProvider(
				trace.WithSpanProcessor(processor{func() { c.onEnd(end) }}))))
			last := redlock.Observer{Closed: func(*redlock.Locker) { close(done) }}
			l, err := redlock.Open(redistest.Addrs(servers), redlock.WithObserver(redlock.MultiObserver(tel.Observer(), last)),
				redlock.WithQuarantine(0), redlock.WithInstanceTimeout(5*time.Second))
			require.NoError(t, err)
			const n = 50
			for range n {
				k, err := l.Acquire(t.Context(), "r", long)
				require.NoError(t, err)
				require.NoError(t, k.Extend(t.Context(), long))
				require.NoError(t, k.Release(t.Context()))
			}
			kept, err := l.Acquire(t.Context(), "kept", 3*time.Second)
			require.NoError(t, err)
			ctx := kept.KeepAlive(t.Context())
			acquired := kept.ValidUntil()
			becomes(t, func() bool { return kept.ValidUntil().After(acquired) }, "it is renewed")
			require.NoError(t, ctx.Err())
			require.NoError(t, kept.Release(t.Context()))
			start := time.Now()
			require.NoError(t, l.Close())
			require.Less(t, time.Since(start), soon)
			if c.works {
				<-done
				require.EqualValues(t, n+1, page.scrape().value("redlock_hold_duration_seconds", nil), "metrics come all the same")
			}
			close(end)
			<-done
		})
	}
}

func TestBadOptionsAreRefused(t *testing.T) {
	for name, o := range map[string]redlockotel.Option{
		"nil": nil, "tracers": redlockotel.WithTracerProvider(nil), "meters": redlockotel.WithMeterProvider(nil), "class": redlockotel.WithClass(nil),
	} {
		tel, err := redlockotel.New(o)
		require.Nil(t, tel, name)
		require.ErrorContains(t, err, "redlockotel: ", name)
		require.ErrorContains(t, err, "nil", name)
	}
}
