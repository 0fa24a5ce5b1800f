package control

import (
	"time"

	"github.com/quorumlock/redlock"
	"github.com/quorumlock/redlock/internal/redistest"
)

// A client asks for the lock, and is paused while the replies arrive. They wait in
// the buffers of its sockets; the leases end, somebody else gets the lock; then it
// reads that it was granted.
//
// The control is a naive lock that counts its validity from the replies. The library
// counts it from before the first byte was sent, and calls such a lock expired.
var repliesInBuffer = Scenario{
	Name:   "replies-in-buffer",
	Shows:  "a client is paused while it is granted the lock, and reads so after the lease",
	Source: "https://martin.kleppmann.com/2016/02/08/how-to-do-distributed-locking.html",
	Off:    "a naive lock, which trusts late replies",
	Break:  readLate,
	Protect: []Protection{
		Fencing,
		Rule("validity counts from the request", redlock.ErrExpired, grantedLate),
	},
}

func readLate(x *Stage) {
	servers := x.Servers(3)
	first := x.Asker("first")
	var clients []*Client
	for _, s := range servers {
		c := x.Dial(s.Addr())
		c.Ask(first, x.Brief())
		c.Await()
		clients = append(clients, c)
	}
	x.Outlast(servers...)

	second := x.Hold(x.Locker(redistest.Addrs(servers)), lease)
	second.Write()
	for _, c := range clients {
		c.Granted(first, lease)
	}
	first.Write()
}

func grantedLate(x *Stage) {
	proxies := x.Proxies(x.Servers(3))
	l := x.Locker(addrs(proxies))
	x.Meet(l)
	for _, p := range proxies {
		p.HoldReplies(true)
	}
	begin := time.Now()
	var err error
	wait := x.Go(func() { _, err = l.TryAcquire(x.ctx, resource, brief) })
	x.Until("the lease is over", func() bool { return time.Since(begin) > brief })
	for _, p := range proxies {
		p.HoldReplies(false)
	}
	wait()
	x.Refuse(err)
}
