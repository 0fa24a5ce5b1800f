package control

import (
	"github.com/quorumlock/redlock/internal/redistest"
)

// One Redis with a replica, which takes over when it fails. Replication is
// asynchronous: a lock that was granted just before has not reached the replica.
//
// The control is the library on one endpoint, a name that leads to the new master,
// without its quarantine.
var failover = Scenario{
	Name:    "failover",
	Shows:   "a replica takes over that has not got the last write",
	Source:  "https://redis.io/docs/latest/develop/use/patterns/distributed-locks/",
	Off:     "the quarantine",
	Break:   loseTheLastWrite,
	Protect: []Protection{Fencing, Quarantine, Check("replicas")},
}

func loseTheLastWrite(x *Stage) {
	servers := x.Servers(2, "--repl-diskless-sync-delay", "0")
	master, replica := servers[0], servers[1]
	link, name := redistest.NewProxy(x, master.Addr()), redistest.NewProxy(x, master.Addr())
	x.follow(replica, link.Addr())
	other := x.Locker([]string{name.Addr()})
	x.Meet(other)

	link.Refuse(true)
	link.Break()
	first := x.Hold(x.Locker([]string{master.Addr()}), lease)
	x.Fault(func() {
		x.must(master.Kill())
		replica.MustDo(x, "REPLICAOF", "NO", "ONE")
		name.Retarget(replica.Addr())
		name.Break()
	})
	x.Collide(first, x.Hold(other, lease))
}
