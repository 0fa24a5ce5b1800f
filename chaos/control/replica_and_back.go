package control

import (
	"github.com/quorumlock/redlock/internal/redistest"
)

// A master is made a replica of the wrong server, which empties it, and a master again
// before anybody has noticed. The process is the same as before.
//
// Nothing is switched off: the quarantine is on, and sees a replica when it refuses a
// write. This one was not asked for any.
var replicaAndBack = Scenario{
	Name:        "replica-and-back",
	Shows:       "a master is made a replica, and a master again",
	Source:      "https://redis.io/docs/latest/commands/replicaof/",
	Break:       thereAndBack,
	Quarantined: true,
	Protect:     []Protection{Fencing},
}

func thereAndBack(x *Stage) {
	servers := x.Servers(3)
	empty := redistest.Start(x, "--repl-diskless-sync-delay", "0")
	first := x.BareMajority(servers)
	x.Fault(func() {
		x.follow(servers[1], empty.Addr())
		servers[1].MustDo(x, "REPLICAOF", "NO", "ONE")
	})
	x.Second(servers, first)
}
