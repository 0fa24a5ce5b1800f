package redlock

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"reflect"
	"slices"

	"github.com/redis/go-redis/v9"
)

// maxInstances bounds N: a lock keeps a bit for each.
const maxInstances = 64

// An Instance is one independent Redis master behind a client of the caller's.
type Instance struct {
	Name   string // in errors and events; by default the client's address
	Client redis.UniversalClient
}

// Open returns a Locker on the instances at endpoints, with clients of its own:
// redis://, rediss://, valkey://, valkeys:// and unix:// URLs, or host:port. One
// endpoint is single-instance mode, the same with a quorum of one.
//
// Open dials nothing: instances that are down are no error. No endpoint, a blank,
// malformed or duplicate one, and bad options are refused, all in one error, in
// which no password appears.
func Open(endpoints []string, opts ...Option) (*Locker, error) {
	l, errs := newLocker(opts)
	seen := map[string]int{}
	var parsed []*endpoint
	for i, text := range endpoints {
		e, err := parseEndpoint(text)
		switch {
		case err != nil:
			errs = append(errs, fmt.Errorf("endpoint %d %w", i+1, err))
		case seen[e.name] > 0:
			errs = append(errs, fmt.Errorf("endpoint %d (%s) is the same as endpoint %d", i+1, e.name, seen[e.name]))
		default:
			seen[e.name] = i + 1
			parsed = append(parsed, e)
		}
	}
	if l.tls != nil && !slices.ContainsFunc(parsed, func(e *endpoint) bool { return e.tls }) {
		errs = append(errs, errors.New("WithTLSConfig: no endpoint uses it"))
	}
	if len(errs) == 0 {
		errs = l.build(parsed)
	}
	if err := refuse(len(endpoints), "endpoint", errs); err != nil {
		return nil, err
	}
	return l.start(), nil
}

// build builds the clients of the endpoints; none if there is a fault.
func (l *Locker) build(endpoints []*endpoint) []error {
	l.owned = true
	var errs []error
	for i, e := range endpoints {
		locking, other, err := e.newClients(l.ctx, &l.config)
		if err != nil {
			errs = append(errs, fmt.Errorf("endpoint %d %w", i+1, err))
			continue
		}
		in := newInstance(l, i, e.name)
		in.build(locking, other)
		l.instances = append(l.instances, in)
	}
	if errs != nil {
		for _, in := range l.instances {
			in.hangUp()
			_ = in.other.Close()
		}
	}
	return errs
}

// New returns a Locker on instances whose clients the caller has built, with
// whatever settings; their time-outs and retries stretch no call of the Locker.
// It uses their connections with a time-out of its own ([redis.Client.WithTimeout]),
// for which process hooks of the client are not called; dial hooks are. Close leaves
// the clients open.
//
// No instance, a nil client, and a name or client that occurs twice are refused,
// as are bad options and those that are for Open only, all in one error.
func New(instances []Instance, opts ...Option) (*Locker, error) {
	l, errs := newLocker(opts)
	if l.tls != nil || l.clientOptions != nil {
		errs = append(errs, errors.New("WithTLSConfig and WithClientOptions are for clients that Open builds"))
	}
	names := map[string]int{}
	var named []Instance
	for i, in := range instances {
		if isNil(in.Client) {
			errs = append(errs, fmt.Errorf("instance %d has no client", i+1))
			continue
		}
		if in.Name == "" {
			in.Name = clientName(in.Client, i)
		}
		if first := names[in.Name]; first > 0 {
			errs = append(errs, fmt.Errorf("instance %d has the name of instance %d, %s", i+1, first, in.Name))
		}
		if first := slices.IndexFunc(instances[:i], func(o Instance) bool { return sameClient(o.Client, in.Client) }); first >= 0 {
			errs = append(errs, fmt.Errorf("instance %d has the client of instance %d", i+1, first+1))
		}
		names[in.Name] = i + 1
		named = append(named, in)
	}
	if err := refuse(len(instances), "instance", errs); err != nil {
		return nil, err
	}
	for i, in := range named {
		built := newInstance(l, i, in.Name)
		built.bring(in.Client)
		l.instances = append(l.instances, built)
	}
	return l.start(), nil
}

// newLocker applies the options, and returns the faults of all of them.
func newLocker(opts []Option) (*Locker, []error) {
	l := &Locker{
		config: defaults(),
		closed: make(chan struct{}),
		left:   make(chan struct{}),
	}
	l.waitlists.locker, l.name = l, rand.Text()[:8]
	l.keeper.locker, l.keeper.wake = l, make(chan struct{}, 1)
	l.locks.next, l.locks.prev, l.sweep = &l.locks, &l.locks, &l.locks
	l.closing, l.shut = context.WithCancelCause(context.Background())
	l.ctx, l.cancel = context.WithCancel(context.Background())
	var errs []error
	for i, o := range opts {
		if o == nil {
			errs = append(errs, fmt.Errorf("option %d is nil", i+1))
			continue
		}
		if err := o(&l.config); err != nil {
			errs = append(errs, err)
		}
	}
	l.born, l.mark = l.now(), l.prefix+waitSuffix
	return l, errs
}

// start starts what a Locker runs: a worker for each instance.
func (l *Locker) start() *Locker {
	if l.config.source != nil {
		l.tokens = newSourceGuard(l.source)
	}
	if !l.observer.silent() {
		l.dispatcher = newDispatcher(l.observer)
		l.observeOpened()
	}
	for _, in := range l.instances {
		go in.run()
	}
	return l
}

// refuse joins the faults of the arguments of Open and New into one error.
func refuse(n int, what string, errs []error) error {
	switch {
	case n == 0:
		errs = append(errs, fmt.Errorf("there is no %s", what))
	case n > maxInstances:
		errs = append(errs, fmt.Errorf("%d %ss are more than %d", n, what, maxInstances))
	}
	if err := joinFaults(errs); err != nil {
		return fmt.Errorf("redlock: %w", err)
	}
	return nil
}

// isNil reports whether c is nil or a nil pointer.
func isNil(c redis.UniversalClient) bool {
	if c == nil {
		return true
	}
	v := reflect.ValueOf(c)
	return v.Kind() == reflect.Pointer && v.IsNil()
}

func sameClient(a, b redis.UniversalClient) bool {
	return !isNil(a) && reflect.TypeOf(a).Comparable() && reflect.TypeOf(b).Comparable() && a == b
}

// clientName returns a name for the i-th client that has none: its address,
// where there is one.
func clientName(c redis.UniversalClient, i int) string {
	if c, ok := c.(*redis.Client); ok && c.Options().Addr != "" {
		return c.Options().Addr
	}
	return fmt.Sprintf("instance %d", i+1)
}

// sharded reports whether an instance is known to be a cluster or a ring.
func (l *Locker) sharded() bool {
	return slices.ContainsFunc(l.instances, func(in *instance) bool { return in.sharded.Load() })
}
