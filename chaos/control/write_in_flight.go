package control

import (
	"github.com/redis/go-redis/v9"

	"github.com/quorumlock/redlock/fence/redisfence"
	"github.com/quorumlock/redlock/internal/redistest"
)

// A holder writes in time, and the request is held up on its way to the resource
// until its lease is over and the next holder has written: no look at a clock, however
// late, can prevent that.
//
// Nothing is switched off. The resource is a key in a Redis, without and with
// package redisfence.
var writeInFlight = Scenario{
	Name:    "write-in-flight",
	Shows:   "a write that was sent in time arrives after the lease",
	Source:  "https://martin.kleppmann.com/2016/02/08/how-to-do-distributed-locking.html",
	Break:   heldUp,
	Protect: []Protection{Fencing},
}

func heldUp(x *Stage) {
	servers := x.Servers(3)
	store := redistest.Start(x)
	way := redistest.NewProxy(x, store.Addr())
	slow, fast := x.store(way.Addr()), x.store(store.Addr())
	x.must(slow.Ping(x.ctx).Err()) // it is connected

	first := x.Hold(x.Locker(redistest.Addrs(servers)), x.Brief())
	x.Fault(func() { way.HoldRequests(true) })
	var err error
	wait := x.Go(func() { err = x.put(slow, first, "first") })
	x.Outlast(servers...)

	second := x.Hold(x.Locker(redistest.Addrs(servers)), lease)
	x.must(x.put(fast, second, "second"))
	way.HoldRequests(false)
	wait()
	if err != nil {
		x.Refuse(err)
	}
	if store.MustDo(x, "GET", "value") == "first" {
		x.Harm(false)
	}
}

// store returns a client of the store that does not repeat what it sends.
func (x *Stage) store(addr string) *redis.Client {
	c := redis.NewClient(&redis.Options{Addr: addr, MaxRetries: -1, ReadTimeout: patience})
	x.Cleanup(func() { _ = c.Close() })
	return c
}

// put writes to the store: behind its guard, if the resource is to check tokens.
func (x *Stage) put(c *redis.Client, h *Holder, value string) error {
	if !x.how.fenced {
		return c.Set(x.ctx, "value", value, 0).Err()
	}
	guard, err := redisfence.New(c)
	if err != nil {
		return err
	}
	return guard.Set(x.ctx, resource, h.token, "value", value, 0)
}
