package control

import (
	"time"

	"github.com/quorumlock/redlock/internal/redistest"
)

// A server restarts with a clock that is behind, and is set right before anybody has
// looked: it says that it has been up for longer than it has, by what its clock was
// set forward.
//
// Nothing is switched off: the quarantine is on, and goes by the uptime, which is the
// difference of two readings of that clock.
var uptimeLies = Scenario{
	Name:        "uptime-lies",
	Shows:       "a server restarts, and its clock is set forward: its uptime is too long",
	Source:      "https://redis.io/docs/latest/commands/info/",
	Break:       lie,
	Quarantined: true,
	Protect:     []Protection{Fencing},
}

func lie(x *Stage) {
	clocks := x.Old(3)
	b := clocks[1]
	servers := []*redistest.Server{clocks[0].Server, b.Server, clocks[2].Server}
	first := x.BareMajority(servers)
	x.Fault(func() {
		b.Jump(-2 * lease)
		x.must(b.Restart())
		b.Jump(2 * lease)
		x.upFor(b.Server, lease+3*time.Second)
	})
	x.Second(servers, first)
}
