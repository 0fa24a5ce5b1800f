package control

// A server restarts, and has nothing on disk: of the two that granted the lock one
// has forgotten it, and grants it again, with the third.
//
// The control is the library without its quarantine.
var restart = Scenario{
	Name:    "restart",
	Shows:   "a server without persistence restarts under a lock",
	Source:  "https://redis.io/docs/latest/develop/use/patterns/distributed-locks/",
	Off:     "the quarantine",
	Break:   restartEmpty,
	Protect: []Protection{Fencing, Quarantine, Check("persistence")},
}

func restartEmpty(x *Stage) {
	servers := x.Servers(3)
	first := x.BareMajority(servers)
	x.Fault(func() { x.must(servers[1].Restart()) })
	x.Second(servers, first)
}
