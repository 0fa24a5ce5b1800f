package redlockotel

import (
	"errors"
	"fmt"
	"sync"

	"go.opentelemetry.io/otel"
	"go.opentelemetry.io/otel/metric"
	"go.opentelemetry.io/otel/trace"

	"github.com/quorumlock/redlock"
	"github.com/quorumlock/redlock/fence"
)

// scope is the name of the instrumentation scope.
const scope = "github.com/quorumlock/redlock/redlockotel"

// Telemetry reports to OpenTelemetry. One serves any number of Lockers and guards, whose
// sums it reports.
type Telemetry struct {
	config
	tracer trace.Tracer
	instruments
	registration metric.Registration
	attrs        sync.Map // of *attrs by attrKey
	classes      sync.Map // that were seen

	mu      sync.Mutex
	lockers map[*redlock.Locker]struct{}
	guards  map[string][]fence.Counter
}

type config struct {
	tracers trace.TracerProvider
	meters  metric.MeterProvider
	class   func(string) string
}

// An Option configures [New].
type Option func(*config) error

// WithTracerProvider sets where spans go. The default is [otel.GetTracerProvider]; nil
// is refused.
func WithTracerProvider(p trace.TracerProvider) Option {
	return func(c *config) error {
		if p == nil {
			return errors.New("WithTracerProvider: the provider is nil")
		}
		c.tracers = p
		return nil
	}
}

// WithMeterProvider sets where metrics go. The default is [otel.GetMeterProvider]; nil
// is refused.
func WithMeterProvider(p metric.MeterProvider) Option {
	return func(c *config) error {
		if p == nil {
			return errors.New("WithMeterProvider: the provider is nil")
		}
		c.meters = p
		return nil
	}
}

// WithClass sets the function that maps a resource to its class, the attribute
// redlock.class of spans and metrics: "order" for "order:4711", say. There should be few:
// each is a time series of its own in every metric about resources. The empty class is
// no attribute. The default is no class at all; nil is refused.
func WithClass(class func(resource string) string) Option {
	return func(c *config) error {
		if class == nil {
			return errors.New("WithClass: the function is nil")
		}
		c.class = class
		return nil
	}
}

// New returns a Telemetry. It fails if an option is bad or the meter refuses an
// instrument.
func New(opts ...Option) (*Telemetry, error) {
	t := &Telemetry{
		config:  config{tracers: otel.GetTracerProvider(), meters: otel.GetMeterProvider()},
		lockers: map[*redlock.Locker]struct{}{},
		guards:  map[string][]fence.Counter{},
	}
	for i, o := range opts {
		if o == nil {
			return nil, fmt.Errorf("redlockotel: option %d is nil", i+1)
		}
		if err := o(&t.config); err != nil {
			return nil, fmt.Errorf("redlockotel: %w", err)
		}
	}
	t.tracer = t.tracers.Tracer(scope)
	if err := t.build(t.meters.Meter(scope)); err != nil {
		return nil, fmt.Errorf("redlockotel: %w", err)
	}
	return t, nil
}

// Observer returns what to give to [redlock.WithObserver], alone or in a
// [redlock.MultiObserver].
func (t *Telemetry) Observer() redlock.Observer {
	return redlock.Observer{
		Opened:   t.opened,
		Closed:   t.closed,
		Acquire:  t.acquire,
		Extend:   t.extend,
		Lost:     t.lost,
		Outlived: t.outlived,
		Release:  t.release,
		Round:    t.round,
		Instance: t.instance,
	}
}

// WatchGuard reports the counts of a guard of package fence under name, which has to be
// one of few, as each is a time series. Guards of one name are summed up.
func (t *Telemetry) WatchGuard(name string, guard fence.Counter) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.guards[name] = append(t.guards[name], guard)
}

// Close ends the report of what is asked at each collection: the locks held and waited
// for, the state of the instances, the guards. Events go on being reported.
func (t *Telemetry) Close() error { return t.registration.Unregister() }

func (t *Telemetry) opened(l *redlock.Locker) {
	for _, in := range l.Stats().Instances {
		t.beginInstance(in.Instance)
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	t.lockers[l] = struct{}{}
}

func (t *Telemetry) closed(l *redlock.Locker) {
	t.mu.Lock()
	defer t.mu.Unlock()
	delete(t.lockers, l)
}
