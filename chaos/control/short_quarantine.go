package control

import (
	"time"

	"github.com/quorumlock/redlock"
	"github.com/quorumlock/redlock/internal/redistest"
)

// A server restarts, and another client lets it count again before the lease that it
// has forgotten is over: its quarantine is shorter than the largest ttl in use.
//
// The control is the library with WithQuarantine(1 s) against a lease of 30 s. With
// the largest ttl and 2 s, the restarted server does not count.
var shortQuarantine = Scenario{
	Name:   "short-quarantine",
	Shows:  "a quarantine that is shorter than the ttls of other clients",
	Source: "https://redis.io/docs/latest/develop/use/patterns/distributed-locks/",
	Off:    "a quarantine of 1 s",
	Break:  func(x *Stage) { countSoon(x, time.Second) },
	Protect: []Protection{
		Fencing,
		Rule("a quarantine of the largest ttl and 2 s", redlock.ErrQuarantined, func(x *Stage) { countSoon(x, lease+2*time.Second) }),
	},
}

func countSoon(x *Stage, quarantine time.Duration) {
	servers := x.OldServers(3)
	first := x.BareMajority(servers)
	x.Fault(func() {
		x.must(servers[1].Restart())
		x.upFor(servers[1], 2*time.Second)
	})
	x.Collide(first, x.Hold(x.Locker(redistest.Addrs(servers), redlock.WithQuarantine(quarantine)), lease))
}
