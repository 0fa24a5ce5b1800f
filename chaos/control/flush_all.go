package control

// Somebody empties a server on which locks are kept, too.
//
// Nothing is switched off: the quarantine is on, and does not see it, since no server
// restarts.
var flushAll = Scenario{
	Name:        "flush-all",
	Shows:       "FLUSHALL on a server under a lock",
	Source:      "https://redis.io/docs/latest/commands/flushall/",
	Break:       flush,
	Quarantined: true,
	Protect:     []Protection{Fencing},
}

func flush(x *Stage) {
	servers := x.Servers(3)
	first := x.BareMajority(servers)
	x.Fault(func() { servers[1].MustDo(x, "FLUSHALL") })
	x.Second(servers, first)
}
