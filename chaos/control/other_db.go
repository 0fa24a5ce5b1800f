package control

// Two clients use different databases of the same servers: they lock two keys.
//
// Nothing is switched off that would prevent it: no server knows that they mean the
// same.
var otherDB = Scenario{
	Name:    "other-db",
	Shows:   "two clients use different databases",
	Source:  "https://redis.io/docs/latest/commands/select/",
	Break:   databases,
	Protect: []Protection{Fencing},
}

func databases(x *Stage) {
	var zero, one []string
	for _, s := range x.Servers(3) {
		zero = append(zero, "redis://"+s.Addr()+"/0")
		one = append(one, "redis://"+s.Addr()+"/1")
	}
	first := x.Hold(x.Locker(zero), lease)
	others := zero
	x.Fault(func() { others = one })
	x.Collide(first, x.Hold(x.Locker(others), lease))
}
