package control

import (
	"github.com/quorumlock/redlock/internal/redistest"
)

// A server restarts, and does not say so: its INFO is renamed, or not allowed to the
// user of the locks. The quarantine is on, and has nothing to go by.
//
// Nothing is switched off. Check calls it unsafe.
var noInfo = Scenario{
	Name:        "no-info",
	Shows:       "a server without INFO restarts under a lock",
	Source:      "https://redis.io/docs/latest/operate/oss_and_stack/management/security/",
	Off:         "INFO",
	Break:       restartUnseen,
	Quarantined: true,
	Protect:     []Protection{Fencing, Check("restart")},
}

func restartUnseen(x *Stage) {
	servers := redistest.StartN(x, 3, "--rename-command", "INFO", "")
	first := x.BareMajority(servers)
	x.Fault(func() { x.must(servers[1].Restart()) })
	x.Second(servers, first)
}
