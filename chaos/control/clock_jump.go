package control

import (
	"github.com/quorumlock/redlock/internal/redistest"
)

// The clock of one server jumps forward, by NTP or by hand, and the lock key expires
// there: with the server that the first client could not reach, it makes a second
// majority.
//
// Nothing is switched off that would prevent it: a lock rests on clocks that do not
// jump.
var clockJump = Scenario{
	Name:    "clock-jump",
	Shows:   "a server's clock jumps forward past the lease",
	Source:  "https://martin.kleppmann.com/2016/02/08/how-to-do-distributed-locking.html",
	Break:   jump,
	Protect: []Protection{Fencing, Check("clock")},
}

func jump(x *Stage) {
	b := redistest.StartWithClock(x)
	servers := x.Servers(2)
	servers = []*redistest.Server{servers[0], b.Server, servers[1]}
	first := x.BareMajority(servers)
	x.Fault(func() { b.Jump(2 * lease) })
	x.Second(servers, first)
}
