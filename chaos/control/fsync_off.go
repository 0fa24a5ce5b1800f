package control

import "os"

// A server leaves it to the system when its append-only file reaches the disk, and
// the power fails: what was written since is gone. (Killing a process loses nothing of
// it; so the file is cut to what had been there before the lock.)
//
// The control is the library without its quarantine.
var fsyncOff = Scenario{
	Name:    "fsync-off",
	Shows:   "the power fails before the system has written a lock to the disk",
	Source:  "https://redis.io/docs/latest/develop/use/patterns/distributed-locks/",
	Off:     "the quarantine",
	Break:   powerLoss,
	Protect: []Protection{Fencing, Quarantine, Check("persistence")},
}

func powerLoss(x *Stage) {
	servers := x.Servers(3, "--appendonly", "yes", "--appendfsync", "no")
	b := servers[1]
	synced := size(x, appendOnlyFile(x, b))
	first := x.BareMajority(servers)
	x.Fault(func() {
		x.must(b.Kill())
		x.must(os.Truncate(appendOnlyFile(x, b), synced))
		x.must(b.Restart())
	})
	x.Second(servers, first)
}
