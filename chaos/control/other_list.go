package control

import (
	"github.com/quorumlock/redlock/internal/redistest"
)

// Two clients have different lists of as many endpoints, of which they share one: an
// old configuration somewhere. Their majorities need not meet.
//
// Nothing is switched off that would prevent it: no client knows the list of another
// one.
var otherList = Scenario{
	Name:    "other-list",
	Shows:   "two clients have different lists of endpoints",
	Source:  "https://redis.io/docs/latest/develop/use/patterns/distributed-locks/",
	Break:   lists,
	Protect: []Protection{Fencing},
}

func lists(x *Stage) {
	servers := redistest.Addrs(x.Servers(5))
	first := x.Hold(x.Locker([]string{servers[0], servers[1], x.Nowhere()}), lease)
	others := servers[:3]
	x.Fault(func() { others = servers[2:] })
	x.Collide(first, x.Hold(x.Locker(others), lease))
}
