package control

import (
	"github.com/quorumlock/redlock/internal/redistest"
)

// The clock of one server runs far too fast: a virtual machine that is starved and
// catches up, or a broken oscillator. The lock key expires there within the window,
// which leaves room for one percent.
//
// Nothing is switched off that would prevent it: a lock rests on clocks that run
// alike.
var fastClock = Scenario{
	Name:    "fast-clock",
	Shows:   "a server's clock runs at a hundred times the rate",
	Source:  "https://github.com/valkey-io/valkey/issues/2651",
	Break:   runFast,
	Protect: []Protection{Fencing, Check("clock")},
}

func runFast(x *Stage) {
	b := redistest.StartWithClock(x)
	servers := x.Servers(2)
	servers = []*redistest.Server{servers[0], b.Server, servers[1]}
	first := x.BareMajority(servers)
	x.Fault(func() {
		b.Rate(100)
		x.Until("the key expires", func() bool { return gone(x, b.Server) })
		b.Rate(1)
	})
	x.Second(servers, first)
}
