package control

import (
	"fmt"
)

// A server is a cache, too: it has a bound to its memory, and evicts keys when it is
// full. One of them is a lock that is held.
//
// Nothing is switched off that would see it: no server restarts. Check does.
var eviction = Scenario{
	Name:    "eviction",
	Shows:   "a server that is full evicts a lock",
	Source:  "https://redis.io/docs/latest/develop/reference/eviction/",
	Break:   evict,
	Protect: []Protection{Fencing, Check("eviction")},
}

func evict(x *Stage) {
	servers := x.Servers(3, "--maxmemory", "8mb", "--maxmemory-policy", "allkeys-random")
	first := x.BareMajority(servers)
	x.Fault(func() {
		n := 0
		x.Until("the lock is evicted", func() bool {
			n++
			servers[1].MustDo(x, "SETRANGE", fmt.Sprint("page-", n), "500000", "x")
			return gone(x, servers[1])
		})
	})
	x.Second(servers, first)
}
