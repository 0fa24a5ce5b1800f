package redlock

import (
	"container/list"
	"context"
	"errors"
	"maps"
	"math/bits"
	"strings"
	"sync"
	"sync/atomic"
	"time"
)

// Callers of one Locker that wait for the same resource stand on a list, first
// come first served, and only the first of them contends with other processes. A
// Release of this Locker hands the resource over to it: the release of the one and
// the acquire of the other go to each instance in one script, in one round trip.

// A Locker hands a resource over to itself so often, and for so long, before
// others get a chance: for yieldTime it does not ask.
const (
	maxRun     = 32
	maxRunTime = 50 * time.Millisecond
	yieldTime  = 3 * time.Millisecond

	// One that is told by too few asks after so long all the same: the others may not
	// be heard.
	doubtTime = 10 * time.Millisecond

	// So does the second in the queue, as the first one may not run. While it does, that
	// is in vain whenever the lock is held for longer: some seven times a second at most.
	hedgeTime = 150 * time.Millisecond

	// After so many lost rounds it is taken to be held by one, and not split.
	settledAfter = 3
)

// waitlists are those of a Locker. Where nobody waits they cost an atomic read.
type waitlists struct {
	locker  *Locker
	count   atomic.Int64 // of both maps
	mu      sync.Mutex
	of      map[string]*waitlist // by resource
	after   map[string]time.Time // by resource that others were waiting for at its last release: until when it is theirs
	missed  map[string]time.Time // by resource: when it was said to be free, and nobody was waiting here
	hears   uint64               // bit i: messages come from instance i
	heardAt time.Time            // when a majority did so first
}

// maxAfter is how many resources after and missed remember before they forget what is
// over.
const maxAfter = 128

// A waitlist lives as long as somebody waits in it, or has his turn.
type waitlist struct {
	waiters list.List   // of *waiter
	turn    *waiter     // who was handed the resource, and has not said what came of it; nil
	holder  *Lock       // the lock that the last one got; nil if it is not known to be held here
	run     int         // hand-overs in a row,
	since   time.Time   // and the first of them
	yield   time.Time   // others have their chance until then
	yields  bool        // because of a release that is out
	told    []string    // of each instance: the last release that it told of
	woken   bool        // ask at once,
	looks   bool        // but only look: somebody else was told to ask
	later   *time.Timer // to ask although none has; nil before the first time
	free    bool        // it was left here without a hand-over: ask at once, whatever messages say that are older
	settled bool        // a majority refused it for one grant of another's: its release will be told
	lost    int         // rounds since the last release, to one that holds it
	reason  error       // why the last one lost a round
}

// A waiter is a caller on a list.
type waiter struct {
	ctx    context.Context //nolint:containedctx // of the call
	q      *request
	list   *waitlist
	place  *list.Element // nil when it has its turn
	asking bool          // a round of its own is out,
	looks  bool          // which only looks
	poke   chan struct{} // of one place: something has changed
	turn   chan *round   // of one place: the round that a release sent for it
}

// join puts a caller at the end of the list for its resource. Where there is none,
// it begins one if it may, and otherwise returns nil. reason is why the caller has
// lost a round already. From here on, it may have its turn.
func (s *waitlists) join(ctx context.Context, q *request, begin bool, reason error) *waiter {
	if !begin && s.count.Load() == 0 {
		return nil
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	n := s.of[q.resource]
	yield, others := s.after[q.resource]
	if others {
		delete(s.after, q.resource)
		s.count.Add(-1)
		begin = begin || yield.After(q.start)
	}
	switch {
	case n == nil && !begin:
		return nil
	case n == nil:
		n = &waitlist{yield: yield, looks: others}
		// A release may have come between its refusal and now.
		if at, ok := s.missed[q.resource]; ok {
			delete(s.missed, q.resource)
			n.woken = !at.Before(q.start)
		}
		if s.heardAt.After(q.start) {
			n.woken = true
		}
		if s.of == nil {
			s.of = map[string]*waitlist{}
		}
		s.of[q.resource] = n
		s.count.Add(1)
	}
	w := &waiter{ctx: ctx, q: q, list: n, poke: make(chan struct{}, 1), turn: make(chan *round, 1)}
	w.place = n.waiters.PushBack(w)
	if reason != nil {
		n.countLocked(reason)
	}
	return w
}

// leave takes w off its list, and reports whether it was on it; otherwise it has its
// turn.
func (s *waitlists) leave(w *waiter) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if w.place == nil {
		return false
	}
	w.list.waiters.Remove(w.place)
	w.place = nil
	s.changedLocked(w)
	return true
}

// concluded takes what came of w's turn, or of its own round: the lock, or nil.
// Without the lock, and with reason, w goes on waiting, at the head of the list.
func (s *waitlists) concluded(w *waiter, k *Lock, reason error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	n := w.list
	if n.turn == w {
		n.turn = nil
	}
	w.asking = false
	if k != nil {
		n.holder = k
	}
	if reason != nil {
		n.countLocked(reason)
		if votes, ok := errors.AsType[*QuorumError](reason); ok && votes.vacant {
			n.woken, n.looks, n.yield = true, false, s.locker.now().Add(s.locker.jitter(yieldTime)) // who was told is first
		}
	}
	switch {
	case reason != nil && w.place == nil:
		w.place = n.waiters.PushFront(w)
	case reason == nil && w.place != nil:
		n.waiters.Remove(w.place)
		w.place = nil
	}
	s.changedLocked(w)
}

// countLocked takes why a round was lost. Where the votes were split nobody may have
// the lock, and then nobody's release tells those that wait.
func (n *waitlist) countLocked(reason error) {
	n.reason = reason
	votes, ok := errors.AsType[*QuorumError](reason)
	if ok && votes.Granted == 0 && votes.Refused >= votes.Needed {
		n.lost++
		n.settled = n.settled || votes.held
	}
}

// forgetLocked forgets who was told to have the lock: it was released.
func (n *waitlist) forgetLocked() {
	n.settled, n.lost = false, 0
}

// changedLocked wakes who is first on w's list now, and removes the list if nobody is
// left.
func (s *waitlists) changedLocked(w *waiter) {
	n := w.list
	if first := n.first(); first != nil {
		first.wake()
	} else if n.turn == nil {
		delete(s.of, w.q.resource)
		s.count.Add(-1)
		if n.later != nil {
			n.later.Stop()
		}
	}
}

func (n *waitlist) first() *waiter {
	if e := n.waiters.Front(); e != nil {
		w, _ := e.Value.(*waiter)
		return w
	}
	return nil
}

// firstAlive returns the first whose context has not ended.
func (n *waitlist) firstAlive() *waiter {
	for e := n.waiters.Front(); e != nil; e = e.Next() {
		if w, _ := e.Value.(*waiter); w.ctx.Err() == nil {
			return w
		}
	}
	return nil
}

// wake makes a waiter look at how things stand.
func (w *waiter) wake() {
	select {
	case w.poke <- struct{}{}:
	default:
	}
}

// next returns the waiter to which the release of k hands over; it has its turn
// then. It is nil if nobody waits or can take it, or if others are to have their
// chance.
func (s *waitlists) next(k *Lock, now time.Time) *waiter {
	n := s.lockFreed(k)
	if n == nil {
		return nil
	}
	defer s.mu.Unlock()
	w := n.firstAlive()
	switch {
	case w == nil:
		return nil
	case w.asking || n.turn != nil || n.holder != nil:
		n.run = 0
		return nil
	case n.run == 0:
		n.since = now
	case n.run >= maxRun || now.Sub(n.since) >= maxRunTime:
		n.run, n.yields = 0, true
		n.yield = now.Add(yieldTime/2 + s.locker.jitter(yieldTime))
		return nil
	}
	n.run++
	n.waiters.Remove(w.place)
	w.place, n.turn = nil, w
	return w
}

// freed has the first one ask for what k has left without a hand-over. Its release
// is queued already: one that asks before it is refused once more, and then waits.
func (s *waitlists) freed(k *Lock) {
	n := s.lockFreed(k)
	if n == nil {
		return
	}
	defer s.mu.Unlock()
	n.free = true
	if w := n.first(); w != nil {
		w.wake()
	}
}

// lockFreed returns the list for k's resource, locked, without k as its holder; nil,
// and nothing is locked, if there is none.
func (s *waitlists) lockFreed(k *Lock) *waitlist {
	if s.count.Load() == 0 {
		return nil
	}
	s.mu.Lock()
	n := s.of[k.resource]
	if n == nil {
		s.mu.Unlock()
		return nil
	}
	if n.holder == k {
		n.holder = nil
	}
	n.forgetLocked()
	return n
}

// ask reports whether w is to ask for the resource now: not before others have had
// their chance, nor while a lock of this process is in the way. Otherwise wait is
// how long that takes; never if w is not the first. delay is how long it is to
// wait, and slow if it need not ask on its own, as it is told. If it may ask, it is
// taken to be asking. Unless the lock is free then, as far as is known, it only looks.
func (s *waitlists) ask(w *waiter, now time.Time, delay, slow time.Duration, free bool) (wait time.Duration) {
	s.mu.Lock()
	defer s.mu.Unlock()
	n := w.list
	if w.place == nil || n.first() != w || n.turn != nil {
		return never
	}
	looks := n.looks
	switch {
	case n.free:
		delay, looks = 0, false
	case n.woken:
		delay = 0
	case s.majority(s.hears) && (n.settled || n.lost >= settledAfter):
		delay, looks = slow, looks || !free
	}
	wait = max(delay, n.yield.Sub(now))
	if n.holder != nil {
		if left := n.holder.leaseLeft(now); left > 0 {
			wait = max(wait, left)
		} else {
			n.holder = nil // it forgot its lock: others may have it
		}
	}
	if wait <= 0 {
		w.asking, w.looks = true, looks
		n.free, n.woken, n.looks = false, false, false
		if n.later != nil {
			n.later.Stop()
		}
	} else if n.holder == nil {
		for _, in := range s.locker.instances {
			in.ear.listenLocked()
		}
	}
	return wait
}

// remember notes that a resource was released to others.
func (s *waitlists) remember(resource string, until time.Time) {
	s.mu.Lock()
	defer s.mu.Unlock()
	before := len(s.after)
	s.noteLocked(&s.after, resource, until)
	s.count.Add(int64(len(s.after) - before))
}

// noteLocked notes a time in one of the maps that forget what is over.
func (s *waitlists) noteLocked(m *map[string]time.Time, resource string, at time.Time) {
	if *m == nil {
		*m = map[string]time.Time{}
	}
	if len(*m) >= maxAfter {
		now := s.locker.now()
		maps.DeleteFunc(*m, func(_ string, at time.Time) bool { return at.Before(now) })
	}
	(*m)[resource] = at
}

func (s *waitlists) majority(set uint64) bool {
	return bits.OnesCount64(set) >= quorumOf(len(s.locker.instances))
}

// hear notes whether messages come from instance i. When they come from a majority for
// the first time, those that wait are in no queue yet.
func (s *waitlists) hear(i int, on bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	was := s.majority(s.hears)
	if !on {
		s.hears &^= 1 << i
		return
	}
	s.hears |= 1 << i
	if !was && s.majority(s.hears) {
		s.heardAt = s.locker.now()
		for _, n := range s.of {
			n.wakeLocked(true)
		}
	}
}

// tell takes a message of instance i. It reports whether that is lost on us, as nobody
// waits here: the next in the queue is to be told.
func (s *waitlists) tell(message string, i int) (lost bool) {
	kind, release, key := readMessage(message)
	resource := strings.TrimPrefix(key, s.locker.prefix)
	s.mu.Lock()
	defer s.mu.Unlock()
	n := s.of[resource]
	switch {
	case n == nil && kind == askNow:
		s.noteLocked(&s.missed, resource, s.locker.now())
		return true
	case n == nil:
	case kind == askNow && s.majoritySaysLocked(&n.told, release, i):
		clear(n.told)
		n.forgetLocked()
		n.wakeLocked(false)
	case kind == askNow:
		s.wakeInLocked(n, doubtTime)
	case kind == askLater:
		s.wakeInLocked(n, hedgeTime)
	}
	return false
}

// majoritySaysLocked notes the message of instance i, and reports whether it is the
// last one of a majority.
func (s *waitlists) majoritySaysLocked(last *[]string, message string, i int) bool {
	if *last == nil {
		*last = make([]string, len(s.locker.instances))
	}
	(*last)[i] = message
	var same uint64
	for j, m := range *last {
		if m == message {
			same |= 1 << j
		}
	}
	return s.majority(same)
}

// wakeLocked has the first one ask, or look, at once.
func (n *waitlist) wakeLocked(look bool) {
	n.woken, n.looks, n.yield = true, look, time.Time{}
	if w := n.first(); w != nil {
		w.wake()
	}
}

// wakeInLocked has the first one look in d, unless it asks before.
func (s *waitlists) wakeInLocked(n *waitlist, d time.Duration) {
	if n.later != nil {
		n.later.Reset(d)
		return
	}
	n.later = time.AfterFunc(d, func() {
		s.mu.Lock()
		defer s.mu.Unlock()
		n.wakeLocked(true)
	})
}

// released takes what came of the release of k, which others were to be told of:
// if there are none, nobody needs to give way to them.
func (s *waitlists) released(k *Lock, others bool, took time.Duration) {
	yield := s.locker.now().Add(yieldTime/2 + s.locker.jitter(yieldTime) + took)
	n := s.lockFreed(k)
	if n == nil {
		if others {
			s.remember(k.resource, yield)
		}
		return
	}
	defer s.mu.Unlock()
	if !n.yields {
		return
	}
	n.yields, n.yield = false, time.Time{}
	if others {
		n.yield, n.free, n.woken, n.looks = yield, false, true, true
	}
	if w := n.first(); w != nil {
		w.wake()
	}
}

// lastReason returns why somebody of w's list last lost a round.
func (s *waitlists) lastReason(w *waiter) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	return w.list.reason
}
