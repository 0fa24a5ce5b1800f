package control

import (
	"bytes"
	"sync/atomic"

	"github.com/redis/go-redis/v9"

	"github.com/quorumlock/redlock"
	"github.com/quorumlock/redlock/internal/redistest"
)

// The reply to a release is lost, and the client of the Redis sends it again, as it
// does with every command unless it is told not to: when somebody else has the lock.
//
// The control is a naive lock that deletes whatever is there, with go-redis as it is.
// The library's release deletes its own owner only, however often it is sent.
var clientRetry = Scenario{
	Name:   "client-retry",
	Shows:  "a client sends a release again behind one's back",
	Source: "https://github.com/redis/go-redis/issues/2985",
	Off:    "a naive lock, whose release compares nothing",
	Break:  retryBlindly,
	Protect: []Protection{
		Fencing,
		Rule("the release compares owners", redlock.ErrTaken, retryComparing),
	},
}

func retryBlindly(x *Stage) {
	server := x.Servers(1)[0]
	way := redistest.NewProxy(x, server.Addr())
	client, others := x.retrying(way.Addr()), x.Dial(server.Addr())
	others.Lock("first", lease)
	again := x.loseReply(way, "del")
	released := x.Go(func() { client.Del(x.ctx, resource) })
	x.lost(way)

	x.Until("the release has run", func() bool { return gone(x, server) })
	second := others.Lock("second", lease)
	again()
	released()
	third := others.Lock("third", lease)
	x.Collide(second, third)
}

func retryComparing(x *Stage) {
	server := x.Servers(1)[0]
	way := redistest.NewProxy(x, server.Addr())
	ours := x.opened(redlock.New([]redlock.Instance{{Client: x.retrying(way.Addr())}}, x.options(nil)...))
	first := x.Hold(ours, lease)
	again := x.loseReply(way, "evalsha")
	released := x.Go(func() { first.lock.Release(x.ctx) })
	x.lost(way)

	others := x.Locker([]string{server.Addr()})
	second := x.MustHold(others, lease)
	again()
	released()
	x.Collide(second, x.Hold(others, lease))
}

// retrying returns a client that sends a command again, by its default; without the
// fault, one that does not.
func (x *Stage) retrying(addr string) *redis.Client {
	retries := -1
	x.Fault(func() { retries = 3 })
	c := redis.NewClient(&redis.Options{Addr: addr, MaxRetries: retries})
	x.Cleanup(func() { _ = c.Close() })
	return c
}

// lost waits until the reply is lost.
func (x *Stage) lost(way *redistest.Proxy) {
	select {
	case <-way.Cut():
	case <-x.ctx.Done():
		x.Fatal("the reply was not lost")
	}
}

// loseReply loses the reply to the next such command, and keeps its repeat back until
// what it returns is called.
func (x *Stage) loseReply(way *redistest.Proxy, command string) (again func()) {
	held := make(chan struct{})
	var sent atomic.Int32
	way.OnRequest(func(chunk []byte) {
		if bytes.Contains(chunk, []byte(command)) && sent.Add(1) > 1 {
			select {
			case <-held:
			case <-x.ctx.Done():
			}
		}
	})
	way.CutReplies(command)
	return func() { close(held) }
}
