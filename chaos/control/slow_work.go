package control

import (
	"time"

	"github.com/quorumlock/redlock"
	"github.com/quorumlock/redlock/internal/redistest"
)

// The work takes longer than the lease, and whoever does it never looks whether it
// still holds the lock. Nobody is paused, and no clock is wrong.
//
// The control uses the library, without its KeepAlive: which extends the lease in
// time, or ends the context of the work.
var slowWork = Scenario{
	Name:   "slow-work",
	Shows:  "the work takes longer than the lease, which nobody extends",
	Source: "https://redis.io/docs/latest/develop/use/patterns/distributed-locks/",
	Off:    "KeepAlive",
	Break:  outlive,
	Protect: []Protection{
		Fencing,
		Rule("KeepAlive", redlock.ErrTaken, keepAlive),
	},
}

func outlive(x *Stage) {
	servers := x.Servers(3)
	first := x.Hold(x.Locker(redistest.Addrs(servers)), x.Brief())
	x.Outlast(servers...)
	second := x.Hold(x.Locker(redistest.Addrs(servers)), lease)
	second.Write()
	first.Write()
}

func keepAlive(x *Stage) {
	servers := x.Servers(3)
	first := x.Hold(x.Locker(redistest.Addrs(servers)), 10*brief)
	until := first.lock.ValidUntil()
	ctx := first.lock.KeepAlive(x.ctx)
	x.Until("the first lease would have ended", func() bool { return time.Now().After(until) })
	if err := ctx.Err(); err != nil {
		x.Fatal(err)
	}
	x.Collide(first, x.Hold(x.Locker(redistest.Addrs(servers)), lease))
}
