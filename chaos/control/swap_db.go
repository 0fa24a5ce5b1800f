package control

// Somebody exchanges two databases of a server, to put a new set of data in place at
// once: the locks are in the other one then.
//
// Nothing is switched off that would see it: no server restarts.
var swapDB = Scenario{
	Name:    "swap-db",
	Shows:   "SWAPDB takes the locks of a server out of sight",
	Source:  "https://redis.io/docs/latest/commands/swapdb/",
	Break:   swap,
	Protect: []Protection{Fencing},
}

func swap(x *Stage) {
	servers := x.Servers(3)
	first := x.BareMajority(servers)
	x.Fault(func() { servers[1].MustDo(x, "SWAPDB", "0", "1") })
	x.Second(servers, first)
}
