package control

import (
	"github.com/quorumlock/redlock/internal/redistest"
)

// A try to lock gets no answer, and is given up and released; both are held up. The
// next try, on another connection, gets the lock. Then the release of the first one
// arrives.
//
// The control is a naive lock that compares owners when it releases, and has one owner
// for all its tries, as redsync has (v4.18.1). The library has one for each round
// (TestReleaseOfAFailedRoundCannotTouchTheNext).
var ownerReused = Scenario{
	Name:   "owner-reused",
	Shows:  "the release of a try that failed deletes the lock of the next try",
	Source: "https://redis.io/docs/latest/develop/use/patterns/distributed-locks/",
	Off:    "a naive lock, with one owner for all tries",
	Break:  func(x *Stage) { tryAgain(x, "first") },
	Protect: []Protection{
		Fencing,
		Rule("an owner for each try", errRefused, func(x *Stage) { tryAgain(x, "first-again") }),
	},
}

func tryAgain(x *Stage, again string) {
	server := x.Servers(1)[0]
	way := redistest.NewProxy(x, server.Addr())
	slow, fast := x.Dial(way.Addr()), x.Dial(server.Addr())
	way.HoldRequests(true)
	failed := &Holder{x: x, owner: "first"}
	slow.Ask(failed, lease)
	slow.Send(release, failed.owner)

	first := fast.Lock(again, lease)
	x.Fault(func() {
		way.HoldRequests(false)
		slow.Reply() // refused, by the next try
		slow.Reply()
	})
	x.Collide(first, fast.Lock("second", lease))
}
