package control

import (
	"github.com/quorumlock/redlock/internal/redistest"
)

// One of three instances is a replica of another, and takes writes. All three grant
// the lock. Then its master restarts empty, the loss that three are there to survive;
// and the replica follows it.
//
// The control is the library without its quarantine. Check calls a replica unsafe. (One
// that takes no writes refuses every vote.)
var replicaInList = Scenario{
	Name:    "replica-in-list",
	Shows:   "a writable replica is listed, and forgets with its master",
	Source:  "https://redis.io/docs/latest/develop/use/patterns/distributed-locks/",
	Off:     "the quarantine",
	Break:   listReplica,
	Protect: []Protection{Fencing, Check("replica")},
}

func listReplica(x *Stage) {
	servers := x.Servers(3, "--replica-read-only", "no", "--repl-diskless-sync-delay", "0")
	a, replica, c := servers[0], servers[1], servers[2]
	x.Fault(func() { x.follow(replica, a.Addr()) })
	first := x.Hold(x.Locker(redistest.Addrs(servers)), lease)
	x.Until("all have granted it", func() bool { return !gone(x, a) && !gone(x, replica) && !gone(x, c) })
	x.must(a.Restart())
	x.Fault(func() { x.Until("the replica follows", func() bool { return gone(x, replica) }) })
	x.Second(servers, first)
}
