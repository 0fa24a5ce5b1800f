package control

import (
	"github.com/quorumlock/redlock"
	"github.com/quorumlock/redlock/internal/redistest"
)

// A release is held up on its way until the lease is over and somebody else has the
// lock; it deletes the key, and a third one gets in.
//
// The control is a naive lock that deletes whatever is there. The library's release
// deletes its own owner only.
var lateRelease = Scenario{
	Name:   "late-release",
	Shows:  "a release arrives late, and deletes the lock of the next holder",
	Source: "https://github.com/lukas-krecan/ShedLock/issues/2583",
	Off:    "a naive lock, whose release compares nothing",
	Break:  blindRelease,
	Protect: []Protection{
		Fencing,
		Rule("the release compares owners", redlock.ErrTaken, comparingRelease),
	},
}

func blindRelease(x *Stage) {
	server := x.Servers(1)[0]
	way := redistest.NewProxy(x, server.Addr())
	slow, fast := x.Dial(way.Addr()), x.Dial(server.Addr())
	slow.Lock("first", x.Brief())
	way.HoldRequests(true)
	slow.Send("DEL %s", resource)
	x.Outlast(server)

	second := fast.Lock("second", lease)
	way.HoldRequests(false)
	slow.Reply()
	third := fast.Lock("third", lease)
	x.Collide(second, third)
}

func comparingRelease(x *Stage) {
	server := x.Servers(1)[0]
	way := redistest.NewProxy(x, server.Addr())
	first := x.Hold(x.Locker([]string{way.Addr()}), brief)
	way.HoldRequests(true)
	released := x.Go(func() { first.lock.Release(x.ctx) })
	x.Outlast(server)

	others := x.Locker([]string{server.Addr()})
	second := x.MustHold(others, lease)
	way.HoldRequests(false)
	released()
	x.Collide(second, x.Hold(others, lease))
}
