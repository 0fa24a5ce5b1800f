package control

import (
	"strconv"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/quorumlock/redlock"
	"github.com/quorumlock/redlock/fence"
	"github.com/quorumlock/redlock/fence/source"
	"github.com/quorumlock/redlock/internal/redistest"
)

// The instances forget their tokens, and nobody sees it. Then the order of tokens rests
// on the clocks of the clients; and one whose clock was a minute ahead has left larger
// ones than those that come now. This is the limit of fencing by the quorum: the
// resource checks tokens, and accepts the stale write.
//
// Nothing is switched off that would see it: no server restarts. (The tokens of that
// client are set by hand.) An external source, which forgets nothing, knows no such
// limit.
var fenceForgotten = Scenario{
	Name:   "fence-forgotten",
	Shows:  "tokens are forgotten, and a client's clock was ahead",
	Source: "https://martin.kleppmann.com/2016/02/08/how-to-do-distributed-locking.html",
	Break:  func(x *Stage) { forget(x) },
	Fenced: true,
	Protect: []Protection{
		{By: "an external source of tokens", Want: fence.ErrStale, fenced: true, story: func(x *Stage) {
			client := redis.NewClient(&redis.Options{Addr: redistest.Start(x).Addr()})
			x.Cleanup(func() { _ = client.Close() })
			counter, err := source.NewCounter(client, "tokens:")
			x.must(err)
			forget(x, redlock.WithFencing(counter))
		}},
	},
}

func forget(x *Stage, opts ...redlock.Option) {
	servers := x.Servers(3)
	ahead := strconv.FormatInt(time.Now().Add(time.Minute).UnixMicro(), 10)
	for _, s := range servers {
		s.MustDo(x, "SET", "{"+resource+"}:fence", ahead)
	}
	first := x.Hold(x.Locker(redistest.Addrs(servers), opts...), lease)
	x.Fault(func() {
		for _, s := range servers {
			s.MustDo(x, "FLUSHALL")
		}
	})
	x.Collide(first, x.Hold(x.Locker(redistest.Addrs(servers), opts...), lease))
}
