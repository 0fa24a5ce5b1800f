package control

import (
	"github.com/quorumlock/redlock/internal/redistest"
)

// A network falls into two. On one side the master goes on; on the other its replica,
// which has missed nothing, is made a master. Each grants the lock to who reaches it.
//
// The control is the library on one endpoint, without its quarantine: which keeps the
// other side waiting for as long as a lease, and so is no protection from a master
// that goes on granting and extending.
var splitBrain = Scenario{
	Name:    "split-brain",
	Shows:   "the network parts, and there are two masters at one time",
	Source:  "https://aphyr.com/posts/283-jepsen-redis",
	Off:     "the quarantine",
	Break:   part,
	Protect: []Protection{Fencing, Check("replicas")},
}

func part(x *Stage) {
	servers := x.Servers(2, "--repl-diskless-sync-delay", "0")
	master, replica := servers[0], servers[1]
	link, name := redistest.NewProxy(x, master.Addr()), redistest.NewProxy(x, master.Addr())
	x.follow(replica, link.Addr())
	here, there := x.Locker([]string{master.Addr()}), x.Locker([]string{name.Addr()})
	x.Meet(here)
	x.Meet(there)

	x.Fault(func() {
		link.Refuse(true)
		link.Break()
		replica.MustDo(x, "REPLICAOF", "NO", "ONE")
		name.Retarget(replica.Addr())
		name.Break()
	})
	first := x.Hold(here, lease)
	x.Collide(first, x.Hold(there, lease))
}
