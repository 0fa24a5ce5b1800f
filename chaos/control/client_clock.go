package control

import (
	"time"

	"github.com/quorumlock/redlock/internal/redistest"
)

// The clock of a client is set back while it holds the lock, and it believes that its
// lease has still to end when it has long ended.
//
// The control compares with the wall clock, as many clients do. The library looks at
// the monotonic clock, too, and whichever ends the window first ends it.
var clientClock = Scenario{
	Name:   "client-clock",
	Shows:  "a holder's wall clock is set back, by which it judges its lease",
	Source: "http://antirez.com/news/101",
	Off:    "the monotonic clock",
	Break:  func(x *Stage) { setBack(x, false) },
	Protect: []Protection{
		Fencing,
		Rule("two clocks", errOver, func(x *Stage) { setBack(x, true) }),
	},
}

func setBack(x *Stage, monotonic bool) {
	servers := x.Servers(3)
	var step time.Duration
	wall := func() time.Time { return time.Now().Add(step).Round(0) }

	first := x.Hold(x.Locker(redistest.Addrs(servers)), x.Brief())
	until := wall().Add(x.Brief())
	x.Fault(func() { step = -time.Hour })
	x.Outlast(servers...)

	second := x.Hold(x.Locker(redistest.Addrs(servers)), lease)
	second.Write()
	if monotonic && first.lock.Remaining() <= 0 {
		x.Refuse(errOver)
	}
	if wall().Before(until) {
		first.Write()
	}
}
