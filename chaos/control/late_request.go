package control

import (
	"github.com/quorumlock/redlock/internal/redistest"
)

// A request for a short lease is held up, and given up: its release, on another
// connection, finds nothing. Then it runs, after its release, and before the same
// client asks again, for longer. It is told that the lock is its own: and so it is,
// for as long as the first request asked for.
//
// The control is a naive lock: it knows its own key by the name of its client. The
// library has an owner for each round, counts no lease of another round, and cleans up
// after requests that it gave up.
var lateRequest = Scenario{
	Name:   "late-request",
	Shows:  "a request that was given up runs after its release",
	Source: "https://github.com/redis/go-redis/issues/2985",
	Off:    "a naive lock, with one owner for all requests",
	Break:  func(x *Stage) { takeForOwn(x, "client-1") },
	Protect: []Protection{
		Fencing,
		Rule("an owner for each request", errRefused, func(x *Stage) { takeForOwn(x, "client-1-again") }),
	},
}

func takeForOwn(x *Stage, again string) {
	server := x.Servers(1)[0]
	way := redistest.NewProxy(x, server.Addr())
	slow, fast := x.Dial(way.Addr()), x.Dial(server.Addr())
	way.HoldRequests(true)
	early := &Holder{x: x, owner: "client-1"}
	x.Fault(func() { slow.Ask(early, brief) })
	fast.Do(release, early.owner)

	first := x.Asker(again)
	slow.Ask(first, lease)
	slow.Send("GET %s", resource)
	slow.Send("GET {%s}:fence", resource)
	way.HoldRequests(false)
	x.Fault(func() { slow.Granted(early, brief) })
	slow.Reply() // granted or not: whose is it?
	if slow.Reply() != first.owner {
		x.Refuse(errRefused)
	}
	first.granted(slow.Reply(), lease)
	x.Outlast(server)

	x.Collide(first, fast.Lock("second", lease))
}
