package control

import (
	"fmt"
	"strconv"
	"time"

	"github.com/quorumlock/redlock/fence"
	"github.com/quorumlock/redlock/internal/redistest"
)

// Tokens are the largest INCR of a majority, and are not written back. The counters
// have diverged, as one server was new: a holder gets 101 of A and B, and the next one
// 2 of B and C. The resource checks tokens, and accepts the stale write.
//
// The control is a naive lock that issues such tokens. The library raises the others to
// the largest before it calls a lock granted.
var maxIncr = Scenario{
	Name:   "max-incr",
	Shows:  "tokens that are the largest INCR of a majority",
	Source: "https://martin.kleppmann.com/2016/02/08/how-to-do-distributed-locking.html",
	Off:    "a naive lock, whose tokens are not written back",
	Break:  countApart,
	Fenced: true,
	Protect: []Protection{
		{By: "tokens of the quorum", Want: fence.ErrStale, fenced: true, story: raiseTokens},
	},
}

func countApart(x *Stage) {
	servers := x.Servers(3)
	x.Fault(func() { servers[0].MustDo(x, "SET", "tokens", "100") })
	first := x.count(servers[:2], "first")
	x.Until("the lease ends", func() bool { return gone(x, servers[0]) && gone(x, servers[1]) })
	second := x.count(servers[1:], "second")
	second.Write()
	first.Write()
}

// count locks for a moment, with such a token.
func (x *Stage) count(servers []*redistest.Server, owner string) *Holder {
	h := x.Asker(owner)
	for _, s := range servers {
		if s.MustDo(x, "SET", resource, owner, "PX", fmt.Sprint(brief.Milliseconds()), "NX") == nil {
			x.Refuse(errRefused)
		}
		n, _ := s.MustDo(x, "INCR", "tokens").(int64)
		h.token = max(h.token, uint64(n)) //nolint:gosec // counted up from 0
	}
	return h
}

func raiseTokens(x *Stage) {
	servers := x.Servers(3)
	ahead := strconv.FormatInt(time.Now().Add(time.Second).UnixMicro(), 10)
	servers[0].MustDo(x, "SET", "{"+resource+"}:fence", ahead)
	first := x.Hold(x.Locker([]string{servers[0].Addr(), servers[1].Addr(), x.Nowhere()}), brief)
	x.Outlast(servers[:2]...)
	second := x.Hold(x.Locker([]string{x.Nowhere(), servers[1].Addr(), servers[2].Addr()}), lease)
	second.Write()
	first.Write()
}
