package control

// Two instances are added to three, and one client is deployed with the new list while
// another one still has the old: two of three are a majority for that one, and the
// three others of five for this one.
//
// Nothing is switched off that would prevent it: no client knows the N of another
// one.
var otherN = Scenario{
	Name:    "other-n",
	Shows:   "one client counts three instances, another one five",
	Source:  "https://redis.io/docs/latest/develop/use/patterns/distributed-locks/",
	Break:   grow,
	Protect: []Protection{Fencing},
}

func grow(x *Stage) {
	servers := x.Servers(5)
	first := x.BareMajority(servers[:3])
	n := 3
	x.Fault(func() { n = 5 })
	x.Second(servers[:n], first)
}
