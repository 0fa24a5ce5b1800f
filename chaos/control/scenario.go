package control

import (
	"errors"

	"github.com/quorumlock/redlock"
	"github.com/quorumlock/redlock/fence"
)

// A Scenario is one situation in which a lock is known to be unsafe.
type Scenario struct {
	Name   string // that of its file, too
	Shows  string // what happens, in a sentence
	Source string // who says so: a link
	Off    string // which rule of the library the control leaves out, besides fencing; none: no other

	// Break is the story. At its end the write of an older holder is accepted after
	// that of a newer one; unless the stage leaves its fault out.
	Break func(*Stage)
	// Fenced and Quarantined say that the story breaks although the resource checks
	// tokens, or restarted instances do not count.
	Fenced, Quarantined bool

	Protect []Protection
}

// A Protection is one way to keep the story of a scenario from doing harm.
type Protection struct {
	By   string
	Want error // what stops the story: that of the guard, of a Locker, or a finding

	fenced, quarantined bool
	finding             string
	story               func(*Stage) // nil: the one that breaks
}

var (
	// Fencing is a resource that checks tokens.
	Fencing = Protection{By: "fencing", Want: fence.ErrStale, fenced: true}
	// Quarantine is that of the library, on servers that have been up for an hour.
	Quarantine = Protection{By: "quarantine", Want: redlock.ErrQuarantined, quarantined: true}
)

// Check is a preflight that tells of the situation before anybody locks.
func Check(finding string) Protection {
	return Protection{By: "Check: " + finding, Want: errFound, finding: finding}
}

// Rule is another rule of the library, which story follows.
func Rule(by string, want error, story func(*Stage)) Protection {
	return Protection{By: by, Want: want, story: story}
}

// What stops a story, besides the errors of the library.
var (
	errFound   = errors.New("Check tells of it")
	errRefused = errors.New("refused: somebody else holds it")
	errOver    = errors.New("the holder knows that its window is over")
)

// Scenarios returns all of them.
func Scenarios() []Scenario {
	return []Scenario{
		// The holder is late.
		pausedProcess, slowWork, repliesInBuffer, writeInFlight, clientClock,
		// A server's clock.
		clockJump, fastClock,
		// A server that forgets, and is seen to have restarted.
		restart, tornAOF, fsyncOff, restoredBackup, failover, splitBrain, shortQuarantine,
		// A server that forgets, and nobody sees it.
		eviction, flushAll, keyDeleted, expireByOther, swapDB, debugReload, replicaAndBack, noInfo, unseenFailover, uptimeLies,
		// Servers that are not what they seem, or not the same for all.
		twoNames, replicaInList, otherList, otherN, otherPrefix, otherDB,
		// Locks as they are often written.
		lateRelease, lateRequest, clientRetry, ownerReused, extendRevives,
		// A message that comes twice.
		repeatedExtend,
		// Tokens that are none.
		maxIncr, fenceForgotten,
	}
}
