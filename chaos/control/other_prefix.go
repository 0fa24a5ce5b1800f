package control

import (
	"github.com/quorumlock/redlock"
	"github.com/quorumlock/redlock/internal/redistest"
)

// Two clients name the same resource, and put different prefixes before it: they lock
// two keys.
//
// Nothing is switched off that would prevent it: no server knows that they mean the
// same.
var otherPrefix = Scenario{
	Name:    "other-prefix",
	Shows:   "two clients have different key prefixes",
	Source:  "https://redis.io/docs/latest/develop/use/patterns/distributed-locks/",
	Break:   prefixes,
	Protect: []Protection{Fencing},
}

func prefixes(x *Stage) {
	servers := redistest.Addrs(x.Servers(3))
	first := x.Hold(x.Locker(servers), lease)
	var opts []redlock.Option
	x.Fault(func() { opts = append(opts, redlock.WithKeyPrefix("lock:")) })
	x.Collide(first, x.Hold(x.Locker(servers, opts...), lease))
}
