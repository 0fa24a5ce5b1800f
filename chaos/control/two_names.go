package control

import (
	"sync"

	"github.com/quorumlock/redlock"
	"github.com/quorumlock/redlock/internal/redistest"
)

// Three endpoints are two servers: one has two names. All three grant the lock. Then
// one server restarts empty, the loss that three are there to survive; and two of
// three endpoints are free.
//
// The control has servers without INFO, so that the library can't see whom it asks;
// and no quarantine. Where it sees it, the second name does not count.
var twoNames = Scenario{
	Name:   "two-names",
	Shows:  "one server is listed under two names, and restarts",
	Source: "https://redis.io/docs/latest/develop/use/patterns/distributed-locks/",
	Off:    "the quarantine; INFO, which tells who is who",
	Break:  func(x *Stage) { listTwice(x, "--rename-command", "INFO", "") },
	Protect: []Protection{
		Fencing,
		Rule("one vote for a run_id", redlock.ErrTaken, func(x *Stage) { listTwice(x) }),
		{By: "Check: duplicate", Want: errFound, finding: "duplicate", story: func(x *Stage) { listTwice(x) }},
	},
}

func listTwice(x *Stage, args ...string) {
	servers := redistest.StartN(x, 3, args...)
	a, b, c := servers[0], servers[1], servers[2]
	endpoints := redistest.Addrs(servers)
	x.Fault(func() {
		endpoints[1] = redistest.NewProxy(x, a.Addr()).Addr()
		b = a
	})
	var answered sync.Map
	seen := redlock.WithObserver(redlock.Observer{Round: func(e redlock.RoundEvent) { answered.Store(e.Op+e.Owner, true) }})
	first := x.Hold(x.Locker(endpoints, seen), lease)
	x.Until("all have granted it, and by each name", func() bool {
		_, each := answered.Load("acquire" + redlock.OwnerDigest(first.lock.Owner()))
		return each && !gone(x, a) && !gone(x, b) && !gone(x, c)
	})
	x.must(a.Restart())
	x.Collide(first, x.Hold(x.Locker(endpoints), lease))
}
