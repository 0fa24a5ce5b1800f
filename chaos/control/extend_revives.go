package control

import (
	"time"

	"github.com/quorumlock/redlock"
)

// A lease ends, somebody else gets the lock, writes and releases it; then the first
// one extends its lock, and is told that it has it, as if it had never lost it.
//
// The control is a naive lock whose extend sets the key where it is absent (redsync
// with SetNXOnExtend does so, too). The library gives a key back only to a holder whom
// a majority has confirmed in the same round.
var extendRevives = Scenario{
	Name:   "extend-revives",
	Shows:  "an extend brings back a lease after somebody else had the lock",
	Source: "https://github.com/leandromoreira/redlock-rb/issues/36",
	Off:    "a naive lock, whose extend sets an absent key",
	Break:  revive,
	Protect: []Protection{
		Fencing,
		Rule("an extend revives nothing", redlock.ErrLost, extendLost),
	},
}

func revive(x *Stage) {
	server := x.Servers(1)[0]
	client := x.Dial(server.Addr())
	first := client.Lock("first", x.Brief())
	x.Outlast(server)
	second := client.Lock("second", lease)
	second.Write()
	client.Do(release, second.owner)

	if client.Do("SET %s %s PX %d NX", resource, first.owner, lease.Milliseconds()) == "OK" {
		first.until = time.Now().Add(lease)
		first.Write()
	}
}

func extendLost(x *Stage) {
	server := x.Servers(1)[0]
	l := x.Locker([]string{server.Addr()})
	first := x.Hold(l, brief)
	x.Outlast(server)
	second := x.MustHold(l, lease)
	second.Write()
	x.must(second.lock.Release(x.ctx))

	if err := first.lock.Extend(x.ctx, lease); err != nil {
		x.Refuse(err)
	}
	first.Write()
}
