package redlocktest

import (
	"context"
	"fmt"
	"net"
	"sync"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/quorumlock/redlock"
)

// A Cluster is N independent instances in memory. Its methods are safe for
// concurrent use.
//
// Instances are counted from 0. A method that is given another number, or a
// resource that no instance holds, fails the test at once: a fault that hits
// nothing would let a test pass that tests nothing. So they are to be called from
// the test's own goroutine.
type Cluster struct {
	tb        testing.TB
	instances []*instance

	mu      sync.Mutex
	lockers []*redlock.Locker
	closed  bool
}

// New starts n instances, which have been up for a year: none is in quarantine.
// They end with the test. In a bubble of testing/synctest, New is to be called
// inside it, with the bubble's t.
func New(tb testing.TB, n int) *Cluster {
	tb.Helper()
	if n < 1 {
		tb.Fatalf("redlocktest: a cluster of %d instances", n)
	}
	c := &Cluster{tb: tb}
	for i := range n {
		c.instances = append(c.instances, newInstance(i))
	}
	tb.Cleanup(c.Close)
	return c
}

// Close closes the Lockers that [Cluster.Locker] opened, and ends the instances.
// Tests need not call it: it is called when they end.
func (c *Cluster) Close() {
	c.mu.Lock()
	lockers := c.lockers
	c.lockers, c.closed = nil, true
	c.mu.Unlock()
	for _, l := range lockers {
		_ = l.Close() // the faults that the test has left on are in its way
	}
	for _, in := range c.instances {
		in.close()
	}
}

// Endpoints returns the endpoints of the instances, for [redlock.Open]. Nobody
// listens there: they are reached with [Cluster.Option] only.
func (c *Cluster) Endpoints() []string {
	endpoints := make([]string, len(c.instances))
	for i, in := range c.instances {
		endpoints[i] = in.addr
	}
	return endpoints
}

// Option makes a Locker that is opened on [Cluster.Endpoints] reach the instances.
func (c *Cluster) Option() redlock.Option {
	return redlock.WithClientOptions(func(o *redis.Options) {
		o.Dialer = func(_ context.Context, network, addr string) (net.Conn, error) {
			for _, in := range c.instances {
				if in.addr == addr {
					return in.dial()
				}
			}
			return nil, &net.OpError{Op: "dial", Net: network, Err: fmt.Errorf("%s is no instance of this cluster", addr)}
		}
	})
}

// Locker opens a Locker on the instances; it is closed with the test. Two Lockers
// are to each other as two processes are.
func (c *Cluster) Locker(opts ...redlock.Option) *redlock.Locker {
	c.tb.Helper()
	all := append([]redlock.Option{c.Option()}, opts...)
	l, err := redlock.Open(c.Endpoints(), all...)
	if err != nil {
		c.tb.Fatalf("redlocktest: %v", err)
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.closed {
		_ = l.Close()
		c.tb.Fatalf("redlocktest: the cluster is closed")
	}
	c.lockers = append(c.lockers, l)
	return l
}

// Down takes instance i off the network: connections to it break, and new ones are
// refused. It keeps what it knows.
func (c *Cluster) Down(i int) {
	c.tb.Helper()
	c.instance(i).set(true, 0)
}

// Up ends what [Cluster.Down] and [Cluster.Slow] did to instance i. What it was sent
// while it was slow, it gets at once.
func (c *Cluster) Up(i int) {
	c.tb.Helper()
	c.instance(i).set(false, 0)
}

// Slow delays all that instance i is sent by d. With an hour it hangs: it takes
// connections and requests, and does not answer. What it was sent it will do, in
// the end, as a server does that was stopped: also what its client has long given
// up. d counts from when something was sent, also for what is on its way.
func (c *Cluster) Slow(i int, d time.Duration) {
	c.tb.Helper()
	if d < 0 {
		c.tb.Fatalf("redlocktest: a delay of %v", d)
	}
	c.instance(i).set(false, d)
}

// Forget restarts instance i, which has persisted nothing: it forgets all locks and
// fencing tokens, and its connections break. As after a real restart it
// does not count until its quarantine is over ([redlock.WithQuarantine]). It stays
// down or slow if it was.
func (c *Cluster) Forget(i int) {
	c.tb.Helper()
	c.instance(i).restart()
}

// Lose takes the lock of resource off all instances, as if the leases had expired
// there: the holder finds out at its next renewal, and until then believes in it, while
// anybody else can have it. resource is the lock key: with the prefix of
// [redlock.WithKeyPrefix], if there is one.
func (c *Cluster) Lose(resource string) {
	c.tb.Helper()
	found := false
	for _, in := range c.instances {
		found = in.remove(resource) || found
	}
	if !found {
		c.tb.Fatalf("redlocktest: nobody holds %q (the key prefix belongs to it)", resource)
	}
}

// Held reports whether a majority of the instances hold a lock of resource for one
// owner; those that are down or slow, too. resource is as for [Cluster.Lose].
func (c *Cluster) Held(resource string) bool { return c.Owner(resource) != "" }

// Owner returns for whom a majority of the instances hold resource, as
// [redlock.Lock.Owner] says it; empty if there is nobody. resource is as for
// [Cluster.Lose].
func (c *Cluster) Owner(resource string) string {
	votes := map[string]int{}
	for _, in := range c.instances {
		if owner := in.owner(resource); owner != "" {
			votes[owner]++
			if votes[owner] > len(c.instances)/2 {
				return owner
			}
		}
	}
	return ""
}

func (c *Cluster) instance(i int) *instance {
	c.tb.Helper()
	if i < 0 || i >= len(c.instances) {
		c.tb.Fatalf("redlocktest: there is no instance %d, only 0 to %d", i, len(c.instances)-1)
	}
	return c.instances[i]
}
