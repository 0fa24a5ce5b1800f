package control

import (
	"github.com/quorumlock/redlock/internal/redistest"
)

// One instance of three fails over to a replica that has missed the lock, and a client
// that has never met the old master comes in. The new one has been up for an hour:
// nothing tells that it took over a moment ago.
//
// Nothing is switched off: the quarantine is on. Whoever had met the old master would
// see another run_id, and wait. Check warns of replicas while the master is there.
var unseenFailover = Scenario{
	Name:        "unseen-failover",
	Shows:       "a client first meets a replica that has just taken over",
	Source:      "https://redis.io/docs/latest/develop/use/patterns/distributed-locks/",
	Break:       meetLate,
	Quarantined: true,
	Protect:     []Protection{Fencing, Check("replicas")},
}

func meetLate(x *Stage) {
	servers := x.Servers(4, "--repl-diskless-sync-delay", "0")
	b, replica := servers[1], servers[3]
	servers = servers[:3]
	link := redistest.NewProxy(x, b.Addr())
	x.follow(replica, link.Addr())
	x.Locker(redistest.Addrs(servers)) // Check looks at it when it is deployed
	link.Refuse(true)
	link.Break()
	first := x.BareMajority(servers)
	x.Fault(func() {
		replica.MustDo(x, "REPLICAOF", "NO", "ONE")
		servers = []*redistest.Server{servers[0], replica, servers[2]} // the name leads there now
	})
	x.Second(servers, first)
}
