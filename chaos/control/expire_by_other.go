package control

// Another program sets expiries on keys that are not its own, a lock's among them: a
// job that tidies up what has no ttl, or one that is too long for its taste.
//
// Nothing is switched off that would see it: the holder learns of it with its next
// extend.
var expireByOther = Scenario{
	Name:    "expire-by-other",
	Shows:   "another program shortens the expiry of a lock's key",
	Source:  "https://redis.io/docs/latest/commands/expire/",
	Break:   shorten,
	Protect: []Protection{Fencing},
}

func shorten(x *Stage) {
	servers := x.Servers(3)
	first := x.BareMajority(servers)
	x.Fault(func() {
		servers[1].MustDo(x, "PEXPIRE", resource, "1")
		x.Until("the key expires", func() bool { return gone(x, servers[1]) })
	})
	x.Second(servers, first)
}
