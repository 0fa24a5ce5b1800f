package control

import "github.com/quorumlock/redlock/internal/redistest"

// A holder is stopped between its last look at the clock and its write, for longer
// than its lease: a garbage collection, a page fault, a virtual machine that is
// suspended or moved. The process is a real one, and is stopped by SIGSTOP.
//
// Nothing is switched off: no lock with a lease can prevent it. The control is a
// resource that does not look at tokens.
var pausedProcess = Scenario{
	Name:    "paused-process",
	Shows:   "a process is stopped past its lease, and writes when it runs again",
	Source:  "https://martin.kleppmann.com/2016/02/08/how-to-do-distributed-locking.html",
	Break:   pause,
	Protect: []Protection{Fencing},
}

func pause(x *Stage) {
	servers := x.Servers(3)
	first := x.Process(redistest.Addrs(servers), x.Brief())
	first.Stop()
	x.Outlast(servers...)

	second := x.Hold(x.Locker(redistest.Addrs(servers)), lease)
	second.Write()
	first.Ask()
	first.Resume()
	first.Write()
}
