package main

import (
	"context"
	"fmt"
	"slices"
	"time"

	"github.com/quorumlock/redlock"
)

// patience bounds how long the demo waits for what must come.
const patience = 3 * time.Second

// A client is one user of the lock: a Locker, and what its observer was told.
type client struct {
	*redlock.Locker
	name   string
	rounds chan redlock.RoundEvent
	states chan redlock.InstanceEvent
	down   map[string]bool // instances that this Locker can't reach
}

func newClient(name string, endpoints []string, opts ...redlock.Option) (*client, error) {
	c := &client{
		name:   name,
		rounds: make(chan redlock.RoundEvent, 1000), // far more than there are
		states: make(chan redlock.InstanceEvent, 1000),
		down:   map[string]bool{},
	}
	var err error
	c.Locker, err = redlock.Open(endpoints, append(opts,
		// The resource is the demo's own: a server that has just started has forgotten
		// nothing of it.
		redlock.WithQuarantine(0),
		redlock.WithObserver(redlock.Observer{
			Round:    func(e redlock.RoundEvent) { offer(c.rounds, e) },
			Instance: func(e redlock.InstanceEvent) { offer(c.states, e) },
		}))...)
	return c, err
}

// offer puts e where there is room: an observer may not block.
func offer[E any](events chan<- E, e E) {
	select {
	case events <- e:
	default:
	}
}

type stepKey struct{}

// withStep marks the calls of a step, so that their rounds can be told from the
// clean-up of former ones.
func withStep(ctx context.Context, step int) context.Context {
	return context.WithValue(ctx, stepKey{}, step)
}

// round returns the votes on the call op of a step. A call returns as soon as it
// is decided; its votes are complete a moment later.
func (c *client) round(ctx context.Context, op string, won bool) (redlock.RoundEvent, error) {
	timer := time.NewTimer(patience)
	defer timer.Stop()
	for {
		select {
		case e := <-c.rounds:
			if e.Op == op && e.Won == won && e.Context.Value(stepKey{}) == ctx.Value(stepKey{}) {
				return e, nil
			}
		case <-timer.C:
			return redlock.RoundEvent{}, fmt.Errorf("the observer of %s was not told of the %s", c.name, op)
		case <-ctx.Done():
			return redlock.RoundEvent{}, ctx.Err()
		}
	}
}

// settle waits until the Locker knows of none of these instances that it is down,
// as long as its patience lasts.
func (c *client) settle(instances []string) {
	timer := time.NewTimer(patience)
	defer timer.Stop()
	for {
		for len(c.states) > 0 {
			c.note(<-c.states)
		}
		if !slices.ContainsFunc(instances, func(name string) bool { return c.down[name] }) {
			return
		}
		select {
		case e := <-c.states:
			c.note(e)
		case <-timer.C:
			return
		}
	}
}

func (c *client) note(e redlock.InstanceEvent) {
	switch e.Change {
	case redlock.InstanceDown:
		c.down[e.Instance] = true
	case redlock.InstanceUp:
		c.down[e.Instance] = false
	}
}
