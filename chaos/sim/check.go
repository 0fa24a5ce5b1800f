package sim

import (
	"cmp"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/quorumlock/redlock"
	"github.com/quorumlock/redlock/chaos/history"
)

// Limits of the contract, and what the measurement adds.
const (
	linger      = 10 * time.Millisecond // for the answers that tell why
	slack       = 2 * time.Millisecond
	ctxSlack    = 5 * time.Millisecond
	signalEarly = 5 * time.Millisecond
	closeLimit  = time.Second + 500*time.Millisecond
)

// voteLimit is how long an instance may take for its vote by default.
func voteLimit(ttl time.Duration) time.Duration {
	return min(max(ttl/10, 20*time.Millisecond), time.Second)
}

// A hold is a lock as its holder believes in it.
type hold struct {
	client, worker int
	resource       int
	owner          string
	token          uint64
	call, from     time.Duration // its acquire
	until          time.Duration // as the holder saw it last,
	seen           time.Duration // which was then
	most           time.Duration // its longest hold; 0: none
	over           bool
}

func (h *hold) String() string {
	return fmt.Sprintf("client %d worker %d: %s token %d, %.6f to %.6f ms", h.client, h.worker, h.owner, h.token, ms(h.from), ms(h.until))
}

// see takes what the holder is told to remain at now. Under the lock.
func (w *world) see(h *hold, now, remaining time.Duration) {
	if h.over {
		return
	}
	if remaining <= 0 {
		h.over = true
		h.until = min(h.until, now+remaining)
		return
	}
	h.until, h.seen = now+remaining, now
	if h.most > 0 && h.until > h.from+h.most+slack {
		w.violate("a lock is held for longer than it may be", "%v after %v: %v", h.until-h.from, h.most, h)
	}
	if !w.Covered {
		return
	}
	// The window is never longer than the keys live on a majority.
	keys := 0
	for _, s := range w.servers {
		owner, expiry := s.engine.holder(w.key(h.resource), s.clock(now))
		if owner == h.owner && s.left(now, expiry) >= remaining {
			keys++
		}
	}
	if keys < w.quorum() {
		w.violate("the window is longer than a majority of the keys lives", "%v remain, on %d of %d instances: %v", remaining, keys, w.Instances, h)
	}
}

func (w *world) key(resource int) string { return fmt.Sprintf("r%d", resource) }

// A register is what the lock of a resource guards: once with a fence, which compares
// tokens, and once without.
type register struct {
	highest          uint64
	fenced, unfenced time.Duration // when the acquire of its latest writer began
}

// write is a write of a holder that arrives now, under the lock.
func (w *world) write(h *hold) {
	r := w.registers[h.resource]
	w.counts.Writes++
	// Stale is what comes after a write of somebody who began to acquire when this
	// holder already had the lock.
	if h.from < r.unfenced {
		w.counts.StaleUnfenced++
	}
	r.unfenced = max(r.unfenced, h.call)
	if w.Unfenced || h.token < r.highest {
		return
	}
	r.highest = h.token
	if h.from < r.fenced {
		w.counts.StaleFenced++
		w.violate("a stale write with a fence", "%v", h)
	}
	r.fenced = max(r.fenced, h.call)
}

// checkOperation checks what an instance was asked. Under the lock.
func (w *world) checkOperation(o operation, client, instance int, sent time.Duration) {
	switch o.letter {
	case 'a', 'w':
		seed := o.token + "/" + o.ttl
		if first, ok := w.seeds[o.owner]; ok && first != seed {
			w.violate("an owner is used for two rounds", "%s: %s and %s", o.owner, first, seed)
		}
		w.seeds[o.owner] = seed
		w.answers[votes{client, o.lock, instance}] = w.now()
	case 'e':
		if o.answerKind == 'e' {
			if w.extended[o.owner] == nil {
				w.extended[o.owner] = map[int]bool{}
			}
			w.extended[o.owner][instance] = true
		}
	case 'h':
		if len(w.extended[o.owner]) < w.quorum() {
			w.violate("a heal before a majority has confirmed an extend", "%v", o)
		}
	}
	if o.letter == 'e' || o.letter == 'h' {
		if at, ok := w.released[o.owner]; ok && sent > at {
			w.violate("an extend or a heal is sent after Release returned", "%v, sent at %.6f ms, released at %.6f ms", o, ms(sent), ms(at))
		}
	}
}

// votes names those of an instance on what a client asks of a resource.
type votes struct {
	client   int
	lock     string
	instance int
}

// answersSince returns how many instances have answered acquires of a client since then.
// Under the lock.
func (w *world) answersSince(client int, lock string, since time.Duration) int {
	n := 0
	for i := range w.Instances {
		if at, ok := w.answers[votes{client, lock, i}]; ok && at >= since {
			n++
		}
	}
	return n
}

// unexplained reports whether a loss for that reason may not come before the end of the
// window: it is nobody else's, and no key can be gone.
func (w *world) unexplained(reason redlock.LostReason) bool {
	return reason == redlock.LostNoQuorum || reason == redlock.LostExpired && w.Covered
}

func (w *world) quorum() int { return w.Instances/2 + 1 }

// checkLeftovers checks that no lock key is left. Under the lock.
func (w *world) checkLeftovers() {
	for _, s := range w.servers {
		clock := s.clock(w.now())
		for _, key := range s.engine.keys(clock) {
			if strings.Contains(key, "{") {
				continue // a fence, or the mark of those that wait
			}
			owner, expiry := s.engine.holder(key, clock)
			w.violate("a key is left over", "%s of %s on instance %d, for %v more", key, owner, s.index, s.left(w.now(), expiry))
		}
	}
}

// checkClosed checks that a client that has closed has given up the lock that it held.
// Under the lock.
func (w *world) checkClosed(c *client, lock *redlock.Lock) {
	if lock == nil {
		w.violate("no progress after everything has healed", "client %d, before it closes", c.id)
		return
	}
	if lock.Remaining() > 0 {
		w.violate("a lock remains after a close", "client %d: %s", c.id, lock.Owner())
	}
	for _, s := range w.servers {
		if owner, _ := s.engine.holder(lock.Resource(), s.clock(w.now())); owner == lock.Owner() {
			w.violate("a key is left over", "%s on instance %d, by a close of client %d", owner, s.index, c.id)
		}
	}
}

// checkHistory checks all acquisitions together. Under the lock.
func (w *world) checkHistory() {
	if !w.Unfenced {
		for _, v := range history.Check(w.ops) {
			w.violate("tokens out of order", "%v", v)
		}
	}
	owners := map[string]bool{}
	for _, h := range w.holds {
		if owners[h.owner] {
			w.violate("an owner is used for two locks", "%v", h)
		}
		owners[h.owner] = true
	}
	if !w.Exclusive {
		return
	}
	for _, h := range w.holds {
		// A holder that looks again, as it has to, sees that its clock was set forward.
		if at := w.clients[h.client].setForward(h.seen); at < h.until {
			h.until = at
		}
	}
	slices.SortFunc(w.holds, func(a, b *hold) int { return cmp.Compare(a.from, b.from) })
	last := make([]*hold, len(w.registers))
	for _, h := range w.holds {
		if l := last[h.resource]; l != nil && h.from < l.until {
			w.violate("two holders at a time", "%v; %v", l, h)
		}
		if l := last[h.resource]; l == nil || h.until > l.until {
			last[h.resource] = h
		}
	}
}
