package control

// An operator takes a lock for stuck, and deletes its key, on one server of its bare
// majority.
//
// Nothing is switched off that would see it: a server can't tell that from a release.
var keyDeleted = Scenario{
	Name:    "key-deleted",
	Shows:   "an operator deletes the key of a lock that is held",
	Source:  "https://redis.io/docs/latest/commands/del/",
	Break:   deleteKey,
	Protect: []Protection{Fencing},
}

func deleteKey(x *Stage) {
	servers := x.Servers(3)
	first := x.BareMajority(servers)
	x.Fault(func() { servers[1].MustDo(x, "DEL", resource) })
	x.Second(servers, first)
}
