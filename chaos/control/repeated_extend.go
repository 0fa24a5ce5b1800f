package control

import (
	"bytes"
	"net"

	"github.com/quorumlock/redlock/internal/redistest"
)

// A holder extends to a short ttl and, when that is confirmed, to a long one. Then
// something between it and a server delivers the first of the two once more: the server
// can't tell the copy from a new wish, and lets the key expire soon.
//
// TCP repeats nothing, and the library knows of what it sends again itself, and of what a
// client with MaxRetries does: an instance that such a copy may still reach confirms no
// further extend. Something else in between would do it in silence.
var repeatedExtend = Scenario{
	Name:    "repeated-extend",
	Shows:   "an extend to a shorter ttl runs once more, after one to a longer",
	Source:  "https://github.com/redis/go-redis/issues/2985",
	Break:   repeatExtend,
	Protect: []Protection{Fencing},
}

func repeatExtend(x *Stage) {
	servers := x.Servers(3)
	a, b := servers[0], servers[1]
	way := redistest.NewProxy(x, a.Addr())
	short := make(chan []byte, 1)
	first := x.Hold(x.Locker([]string{way.Addr(), b.Addr(), x.Nowhere()}), lease)
	way.OnRequest(func(chunk []byte) {
		if bytes.Contains(chunk, []byte(resource)) {
			select {
			case short <- chunk:
			default:
			}
		}
	})
	x.must(first.lock.Extend(x.ctx, brief))
	request := <-short
	way.OnRequest(nil)
	x.must(first.lock.Extend(x.ctx, lease))
	x.Fault(func() {
		conn, err := net.Dial("tcp", a.Addr())
		x.must(err)
		defer conn.Close()
		_, err = conn.Write(request)
		x.must(err)
		x.Until("the key expires", func() bool { return gone(x, a) })
	})
	x.Second(servers, first)
}
