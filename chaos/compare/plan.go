package compare

import (
	"fmt"
	"math/rand/v2"
	"strings"
	"time"

	"github.com/quorumlock/redlock/chaos/compare/client"
)

// A variant is one way to lock with Redis.
type variant struct {
	name     string
	title    string
	n        int
	replica  bool     // of its one instance, with a monitor that promotes it
	peer     string   // the bench module's name of the library; empty for ours
	scripted []string // commands that it sends inside scripts only
}

var (
	redlockScripted = []string{"get", "set", "del", "pttl", "pexpire", "publish"}
	redsyncScripted = []string{"get", "del", "pexpire"}
)

func variants() []variant {
	const redsync = "redsync-tuned"
	return []variant{
		{name: "one", title: "One Redis", n: 1, scripted: redlockScripted},
		{name: "failover", title: "One Redis with failover", n: 1, replica: true, scripted: redlockScripted},
		{name: "three", title: "Quorum of three", n: 3, scripted: redlockScripted},
		{name: "five", title: "Quorum of five", n: 5, scripted: redlockScripted},
		{name: "redsync-failover", title: "redsync, one with failover", n: 1, replica: true, peer: redsync, scripted: redsyncScripted},
		{name: "redsync-three", title: "redsync, three", n: 3, peer: redsync, scripted: redsyncScripted},
	}
}

// A fault is something that happens to one instance, or to a client.
type fault struct {
	name  string
	title string
	about string

	length, pause           time.Duration // it lasts, and all is well after it
	quickLength, quickPause time.Duration // with -quick; 0: left out

	takesMaster bool // the monitor promotes the replica
	needsMaster bool // needs a replica: elsewhere there is nothing to fail over
	needsClock  bool
	needsServer bool // an embedded instance can't show it

	begin, end func(*arena, *instance) error
}

const ms = time.Millisecond

// faults are in the order in which they happen. A slow instance takes twice
// slowness longer; the replication link is cut for cutLink before the master dies.
func faults(slowness, cutLink time.Duration) []fault {
	return []fault{
		{
			name: "kill", title: "One is killed", about: "SIGKILL; it comes back, empty, when the fault ends",
			length: 3000 * ms, pause: 6 * time.Second, quickLength: 400 * ms, quickPause: 2800 * ms, takesMaster: true,
			begin: (*arena).kill, end: (*arena).comeBack,
		},
		{
			name: "hang", title: "One hangs", about: "SIGSTOP, then SIGCONT",
			length: 3000 * ms, pause: 4 * time.Second, takesMaster: true,
			begin: (*arena).hang, end: (*arena).goOn,
		},
		{
			name: "slow", title: "One is slow", about: fmt.Sprintf("each round trip takes %s longer", show(2*slowness)),
			length: 3000 * ms, pause: 2 * time.Second, quickLength: 300 * ms, quickPause: 200 * ms,
			begin: (*arena).slow, end: (*arena).fast,
		},
		{
			name: "cut", title: "The network to one is cut", about: "no byte in either direction, no connection is refused",
			length: 3000 * ms, pause: 4 * time.Second, takesMaster: true,
			begin: (*arena).cut, end: (*arena).reconnect,
		},
		{
			name: "restart", title: "One restarts empty", about: "killed and started again at once, faster than a monitor looks, without its data",
			length: 500 * ms, pause: 6500 * ms, needsServer: true,
			begin: (*arena).restart,
		},
		{
			name: "failover", title: "Failover loses the last writes", about: fmt.Sprintf("the replication link is cut for %s, then the master dies and the replica is promoted", show(cutLink)),
			length: 2500 * ms, pause: 6 * time.Second, quickLength: 600 * ms, quickPause: 2700 * ms, takesMaster: true, needsMaster: true, needsServer: true,
			begin: (*arena).loseWrites, end: (*arena).comeBack,
		},
		{
			name: "clock", title: "One server's clock jumps", about: "forward by two ttls, and back",
			length: 2000 * ms, pause: 3 * time.Second, needsClock: true, needsServer: true,
			begin: (*arena).clockForward, end: (*arena).clockBack,
		},
		{
			name: "pause", title: "A client pauses past its lease", about: "one of the two processes is stopped (SIGSTOP) for a ttl and a quarter",
			length: 2500 * ms, pause: 2 * time.Second, quickLength: 625 * ms, quickPause: 300 * ms,
			begin: (*arena).stopClient, end: (*arena).wakeClient,
		},
		{
			name: "flush", title: "FLUSHALL on one", about: "somebody's command, or an eviction of everything",
			length: 500 * ms, pause: 3 * time.Second, quickLength: 100 * ms, quickPause: 400 * ms,
			begin: (*arena).flush,
		},
	}
}

// A slot is a fault's time and its victim, the same for each variant.
type slot struct {
	*fault
	from, heal, until time.Duration // since the start
	who               float64       // the victim's index, of n instances, is that part of n
}

// A plan is what is done to each variant.
type plan struct {
	seed     uint64
	quick    bool
	embedded bool
	job      client.Job // less what differs between clients
	clients  int
	healthy  time.Duration // before the first fault
	slots    []slot
	total    time.Duration
	slowness time.Duration // of a slow instance, each way
	cutLink  time.Duration // for how long the replication link is cut before the master dies
	detect   time.Duration // until the monitor promotes the replica
	leftOut  []string      // why a fault or a variant is not there
}

func newPlan(seed uint64, quick, embedded, clock bool) *plan {
	p := &plan{
		seed: seed, quick: quick, embedded: embedded, clients: 2,
		healthy: 6 * time.Second, slowness: 30 * ms, cutLink: time.Second,
		job: client.Job{
			TTL: 2 * time.Second, Private: 500, Every: 10 * ms, Budget: 500 * ms,
			Waiters: 2, Work: 40 * ms, Writes: []int{5, 15, 30, 60}, Seed: seed,
		},
	}
	if quick {
		p.healthy, p.slowness, p.cutLink = 600*ms, 15*ms, 300*ms
		p.job.TTL, p.job.Every, p.job.Budget = 500*ms, 25*ms, 300*ms
		p.job.Waiters, p.job.Work, p.job.Writes = 1, 15*ms, []int{4, 10, 40}
	}
	if embedded {
		// With each command an embedded instance looks at every key whether it has
		// expired: few keys, then, and little work.
		p.job.Every, p.job.Private = 80*ms, 30
	}
	p.detect = p.job.TTL / 4
	random := rand.New(rand.NewPCG(seed, 0)) //nolint:gosec // a schedule
	at := p.healthy
	var quickly []string
	for _, f := range faults(p.slowness, p.cutLink) {
		// Drawn for each fault, taken or not: a seed means the same victims
		// everywhere.
		who, late := random.Float64(), random.Float64()
		if quick {
			f.length, f.pause = f.quickLength, f.quickPause
		}
		switch {
		case f.length == 0:
			quickly = append(quickly, lower(f.title))
			continue
		case embedded && f.needsServer:
			p.leftOut = append(p.leftOut, f.title+": an embedded instance can't show it.")
			continue
		case f.needsClock && !clock:
			p.leftOut = append(p.leftOut, f.title+": that needs Linux and gcc.")
			continue
		}
		from := at + time.Duration(late*float64(f.pause)/20)
		at += f.length + f.pause
		p.slots = append(p.slots, slot{fault: &f, from: from, heal: from + f.length, until: at, who: who})
	}
	if len(quickly) > 0 {
		p.leftOut = append(p.leftOut, "With -quick there are also no: "+strings.Join(quickly, "; ")+".")
	}
	for i := range p.slots[:len(p.slots)-1] {
		p.slots[i].until = p.slots[i+1].from
	}
	p.total = at
	return p
}

// lower makes the first letter of a title small, if it begins no abbreviation.
func lower(s string) string {
	if first := strings.Fields(s)[0]; len(first) > 1 && strings.ToUpper(first) == first {
		return s
	}
	return strings.ToLower(s[:1]) + s[1:]
}

// victim returns the index of the instance of n that the slot's fault hits.
func (s slot) victim(n int) int { return int(s.who * float64(n)) }

// hits reports whether the fault can happen to v.
func (s slot) hits(v variant) bool { return v.replica || !s.needsMaster }
