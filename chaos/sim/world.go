package sim

import (
	"context"
	"fmt"
	"math/rand/v2"
	"sync"
	"time"

	"github.com/quorumlock/redlock/chaos/history"
)

// A world is a schedule while it runs.
type world struct {
	network
	clients []*client
	phase2  bool // guarded by mu

	// Guarded by mu.
	registers  []*register
	holds      []*hold
	ops        []history.Op
	counts     Counts
	violations []Violation
	log        *timeline // nil: nobody reads it
	seeds      map[string]string
	extended   map[string]map[int]bool // owner: instances that have confirmed an extend
	released   map[string]time.Duration
	answers    map[votes]time.Duration // the last ones
}

// A Violation is something that must not be.
type Violation struct {
	At   time.Duration
	Rule string
	Text string
}

func (v Violation) String() string { return fmt.Sprintf("%.6f ms: %s: %s", ms(v.At), v.Rule, v.Text) }

// Counts are what happened in a run.
type Counts struct {
	Schedules, Acquired, Lost, Extended, Released, Forgotten, Kept, Done int
	Writes, StaleUnfenced, StaleFenced                                   int
	Batches, Operations                                                  int
	Faults                                                               map[Kind]int  // that have touched something
	Recovery                                                             time.Duration // the longest, until somebody has a lock again
}

// Add adds o to c.
func (c *Counts) Add(o Counts) {
	c.Schedules += o.Schedules
	c.Acquired += o.Acquired
	c.Lost += o.Lost
	c.Extended += o.Extended
	c.Released += o.Released
	c.Forgotten += o.Forgotten
	c.Kept += o.Kept
	c.Done += o.Done
	c.Writes += o.Writes
	c.StaleUnfenced += o.StaleUnfenced
	c.StaleFenced += o.StaleFenced
	c.Batches += o.Batches
	c.Operations += o.Operations
	c.Recovery = max(c.Recovery, o.Recovery)
	if c.Faults == nil {
		c.Faults = map[Kind]int{}
	}
	for k, n := range o.Faults {
		c.Faults[k] += n
	}
}

func (c Counts) String() string {
	return fmt.Sprintf("%d acquired, %d extended, %d released, %d forgotten, %d kept alive, %d of them lost; %d done by Do; %d operations in %d batches; writes: %d, stale without a fence: %d, with: %d; after the healing the first lock came within %v; touched by faults: %v",
		c.Acquired, c.Extended, c.Released, c.Forgotten, c.Kept, c.Lost, c.Done, c.Operations, c.Batches, c.Writes, c.StaleUnfenced, c.StaleFenced, c.Recovery, c.Faults)
}

// A Result is what became of a schedule.
type Result struct {
	Violations []Violation
	Counts     Counts
	Timeline   []string // if it was asked for
}

// settleTime is for what is left to clean up when all has healed: a probe, and two
// releases a second apart.
const settleTime = 4 * time.Second

// Simulate runs a schedule, in a bubble of testing/synctest, on instances with engines
// that are made by newEngine.
func Simulate(s *Schedule, newEngine NewEngine, logged bool) Result {
	w := &world{
		network: network{Schedule: s, dice: dice(s.Seed), begin: time.Now(), hits: map[Kind]int{}},
		seeds:   map[string]string{}, extended: map[string]map[int]bool{}, released: map[string]time.Duration{}, answers: map[votes]time.Duration{},
	}
	if logged {
		w.log = &timeline{}
	}
	w.begins()
	defer w.ends()
	for i := range s.Instances {
		server := newServer(&w.network, i, nil)
		server.engine = newEngine(server.publish)
		server.watch = w.watch
		w.servers = append(w.servers, server)
	}
	for range w.resources() {
		w.registers = append(w.registers, &register{})
	}
	for c := range s.Workers {
		links := make([]*link, s.Instances)
		for i := range links {
			links[i] = &link{client: c, instance: i}
		}
		w.links = append(w.links, links)
	}
	for c := range s.Workers {
		w.clients = append(w.clients, w.newClient(c))
	}
	w.plan()

	var group sync.WaitGroup
	for _, c := range w.clients {
		for i := range s.Workers[c.id] {
			seed := w.dice.of(aboutWorker, uint64(c.id), uint64(i))
			k := &worker{c: c, w: w, id: i, rand: rand.New(rand.NewPCG(uint64(seed), 1)), dice: seed, lane: callerLanes + time.Duration(i)}
			k.ctx = context.WithValue(context.Background(), laneKey{}, k.lane)
			group.Go(k.run)
		}
	}
	group.Wait()
	w.finish()
	return Result{Violations: w.violations, Counts: w.counts, Timeline: w.log.lines()}
}

// resources returns how many there are, with that of the long locks.
func (w *world) resources() int {
	if w.Long {
		return w.Resources + 1
	}
	return w.Resources
}

// NewEngine makes the engine of an instance, which publishes with the function that it
// is given.
type NewEngine func(publish func(topic, message string) int) engine

// Core is the model of the script, WholeStack the script in miniredis.
var (
	Core       NewEngine = func(publish func(string, string) int) engine { return newModel(publish) }
	WholeStack NewEngine = func(publish func(string, string) int) engine { return newMini(publish) }
)

// plan has the faults happen that are more than a condition of the network, and the
// healing.
func (w *world) plan() {
	w.mu.Lock()
	defer w.mu.Unlock()
	for i := range w.Faults {
		f := &w.Faults[i]
		var begin, end func(s *server)
		switch f.Kind {
		case "":
			continue
		case Restart, Forget:
			begin = func(s *server) { s.crash(f.Kind == Restart) }
			end = (*server).start
		case Hang:
			begin = func(s *server) { s.stop(f.To) }
			end = (*server).goOn
		case Refuse:
			begin = func(s *server) { s.breakConns(f.Client) }
		case ServerJump:
			begin = func(s *server) { s.setClock(w.now(), f.Amount, s.rate) }
		case ServerFast:
			begin = func(s *server) { s.setClock(w.now(), 0, 2*s.rate) }
			end = func(s *server) { s.setClock(w.now(), 0, s.rate/2) }
		}
		on := w.servers
		if f.Instance != all {
			on = w.servers[f.Instance : f.Instance+1]
		}
		w.at(f.From, func() {
			w.note("fault", func() string { return fmt.Sprintf("fault%d: %v", i, f) })
			if begin == nil {
				return
			}
			if f.Kind != Hang {
				w.hits[f.Kind]++
			}
			for _, s := range on {
				begin(s)
			}
		})
		if f.Kind == ClientJump {
			w.hits[f.Kind]++
		}
		if end != nil {
			w.at(f.To, func() {
				for _, s := range on {
					end(s)
				}
			})
		}
	}
	w.at(w.Active, func() {
		w.quiet, w.phase2 = true, true
		w.note("fault", func() string { return "everything has healed" })
		for _, c := range w.conns {
			c.revive()
		}
	})
}

// note puts an event into the timeline, if anybody reads it.
func (w *world) note(lane string, text func() string) {
	if w.log != nil {
		w.log.add(w.now(), lane, text())
	}
}

// violate notes a violation; the lock is held.
func (w *world) violate(rule, format string, args ...any) {
	v := Violation{w.now(), rule, fmt.Sprintf(format, args...)}
	w.violations = append(w.violations, v)
	w.note("CHECK", func() string { return v.Rule + ": " + v.Text })
}

// watch sees every batch that an instance has run.
func (w *world) watch(x *session, sent time.Duration, copied bool, b *batch, reply string) {
	w.counts.Batches++
	w.counts.Operations += len(b.ops)
	if len(b.ops) == 0 {
		return
	}
	b.answered(reply)
	i, c := x.server.index, x.conn.link.client
	if w.log != nil {
		head := fmt.Sprintf("client %d", c)
		if copied {
			head += " (a copy)"
		}
		w.log.add(w.now(), fmt.Sprintf("instance %d", i), head, b.ops...)
	}
	for _, o := range b.ops {
		w.checkOperation(o, c, i, sent)
	}
}

// finish checks what is left when all workers have ended, and ends the world.
func (w *world) finish() {
	time.Sleep(settleTime)
	w.mu.Lock()
	w.checkLeftovers()
	w.mu.Unlock()
	for _, c := range w.clients {
		left := c.holdOne()
		begin := w.now()
		if err := c.locker.Close(); err != nil {
			w.mu.Lock()
			w.violate("a close without locks fails", "client %d: %v", c.id, err)
			w.mu.Unlock()
		}
		if took := w.now() - begin; took > closeLimit {
			w.mu.Lock()
			w.violate("a close takes too long", "client %d: %v", c.id, took)
			w.mu.Unlock()
		}
		w.mu.Lock()
		w.checkClosed(c, left)
		w.mu.Unlock()
	}
	w.mu.Lock()
	w.checkHistory()
	w.counts.Schedules = 1
	w.counts.Faults = w.hits
	w.mu.Unlock()
	time.Sleep(settleTime) // the last messages
	for _, s := range w.servers {
		s.engine.close()
	}
}
