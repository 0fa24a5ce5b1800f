package control

// The memory of a process is set back to what it was before the lock, and the
// process lives on: a virtual machine that goes back to a snapshot; here a server that
// loads an old file while it runs. It has the same run_id as before.
//
// Nothing is switched off: the quarantine is on, and does not see it, since no server
// restarts.
var debugReload = Scenario{
	Name:        "debug-reload",
	Shows:       "a server's memory is set back while it runs",
	Source:      "https://redis.io/docs/latest/commands/debug/",
	Break:       reload,
	Quarantined: true,
	Protect:     []Protection{Fencing},
}

func reload(x *Stage) {
	servers := x.Servers(3, "--enable-debug-command", "yes")
	b := servers[1]
	b.MustDo(x, "SAVE")
	first := x.BareMajority(servers)
	x.Fault(func() { b.MustDo(x, "DEBUG", "RELOAD", "NOSAVE") })
	x.Second(servers, first)
}
