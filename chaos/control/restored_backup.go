package control

// A server comes back from a backup, a snapshot that is older than the lock: it
// remembers what was then, older tokens too, and not what it has granted since.
//
// The control is the library without its quarantine.
var restoredBackup = Scenario{
	Name:    "restored-backup",
	Shows:   "a server comes back from a snapshot that is older than the lock",
	Source:  "https://redis.io/docs/latest/operate/oss_and_stack/management/persistence/",
	Off:     "the quarantine",
	Break:   restore,
	Protect: []Protection{Fencing, Quarantine, Check("persistence")},
}

func restore(x *Stage) {
	servers := x.Servers(3)
	b := servers[1]
	before := x.BareMajority(servers)
	x.must(before.lock.Release(x.ctx))
	b.MustDo(x, "SAVE")
	first := x.BareMajority(servers)
	x.Fault(func() { x.must(b.Restart()) }) // from the snapshot
	x.Second(servers, first)
}
