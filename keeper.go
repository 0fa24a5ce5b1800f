package redlock

import (
	"container/heap"
	"context"
	"sync"
	"time"
)

// When a lock is renewed, and when its loss is signalled. The parts are of the ttl.
const (
	renewPart   = 3 // after this part, counted from the start of the window
	retryPart   = 20
	minRetry    = 5 * time.Millisecond
	maxRetry    = time.Second
	signalEarly = 5 * time.Millisecond // so much before the end of the window,
	earlyPart   = 10                   // and of a short one this part of it
	tickPart    = 20                   // between two looks at both clocks
	maxTick     = 100 * time.Millisecond
	probePart   = 40               // between two probes of an instance that is down
	clockGap    = time.Millisecond // a difference between the clocks that matters
	review      = 10 * time.Second // after so long it is found out which ttl is the shortest
	maxTurn     = 500              // renewals that are sent before the ends are looked at again
)

// A keeper renews all locks of a Locker that are kept alive, through the queues
// of the instances, and signals their loss: in one goroutine, which lives while
// there are any. So ten thousand locks are a few batches, and no more goroutines
// than one. It never waits for an instance.
type keeper struct {
	locker *Locker
	group  sync.WaitGroup

	mu      sync.Mutex
	running bool
	ends    schedule      // when the windows are over
	works   schedule      // when there is something to do before
	hurried []*keeping    // something has happened to them
	ttl     time.Duration // none that it keeps is shorter
	wake    chan struct{} // of one place
}

// A keeping is one lock that is kept alive.
type keeping struct {
	lock     *Lock
	watchers []*watcher // guarded by lock.mu

	// Of the keeper's goroutine alone.
	renewal extension // the one that is out; its round is nil when there is none
	giveUp  time.Time // when to give that up
	failure error     // of the last renewal; nil if it was confirmed
	retry   time.Time // after a failure

	// Guarded by keeper.mu.
	ttl       time.Duration
	end, work entry
	waits     bool // it is in hurried
}

func newKeeping(k *Lock) *keeping {
	g := &keeping{lock: k}
	g.end, g.work = entry{keeping: g, index: unscheduled}, entry{keeping: g, index: unscheduled}
	return g
}

// add begins to keep a lock of ttl alive, or goes on with another ttl. It has the lock
// looked at in one step: between two, the goroutine could find nothing to do, and end.
func (p *keeper) add(g *keeping, ttl time.Duration) {
	p.mu.Lock()
	defer p.mu.Unlock()
	g.ttl, p.ttl = ttl, min(p.ttl, ttl)
	p.hurryLocked(g)
	if !p.running {
		p.running, p.ttl = true, ttl
		p.group.Go(p.run)
	}
}

// hurry has g looked at: it was added or ended, its window has changed, or the vote
// on its renewal is decided.
func (p *keeper) hurry(g *keeping) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.hurryLocked(g)
}

func (p *keeper) hurryLocked(g *keeping) {
	if g.waits {
		return
	}
	g.waits = true
	p.hurried = append(p.hurried, g)
	select {
	case p.wake <- struct{}{}:
	default:
	}
}

func (p *keeper) run() {
	timer := time.NewTimer(never)
	defer timer.Stop()
	var turn []*keeping
	reviewed := p.locker.now()
	gap := p.locker.clockGap(reviewed)
	for {
		now := p.locker.now()
		if now.Sub(reviewed) >= review {
			reviewed = now
			p.review()
		}
		if g := p.locker.clockGap(now); (g - gap).Abs() > clockGap {
			gap = g
			p.recheck()
		}
		// What ends comes first, however much there is to renew.
		var soon time.Time
		turn, soon = p.due(turn[:0], now)
		for _, g := range turn {
			p.tend(g, soon)
		}
		clear(turn)
		p.mu.Lock()
		idle := p.idleLocked(p.locker.now())
		if len(p.ends) == 0 && len(p.hurried) == 0 {
			p.running = false
			p.mu.Unlock()
			return
		}
		p.mu.Unlock()
		if idle <= 0 {
			continue
		}
		timer.Reset(idle)
		select {
		case <-p.wake:
		case <-timer.C:
		}
		p.locker.resume(nil)
	}
}

// clockGap returns how far the wall clock has run ahead of the monotonic one since
// the Locker was made: on a machine that slept, or whose clock was set.
func (l *Locker) clockGap(now time.Time) time.Duration {
	return now.Round(0).Sub(l.born.Round(0)) - now.Sub(l.born)
}

// longestBackoff returns the longest pause, about, between two probes of an instance that
// is down: also a lock of a short ttl is to find out within its validity that a majority
// is back.
func (p *keeper) longestBackoff() time.Duration {
	p.mu.Lock()
	defer p.mu.Unlock()
	if !p.running {
		return probeMax
	}
	return min(max(p.ttl/probePart, probeFirst), probeMax)
}

// review finds the shortest ttl again: without it, one lock of 10 ms that was kept for a
// moment would have the clocks read 2,000 times a second for as long as others are kept.
func (p *keeper) review() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.ttl = never
	for _, e := range p.ends {
		p.ttl = min(p.ttl, e.keeping.ttl)
	}
	for _, g := range p.hurried {
		p.ttl = min(p.ttl, g.ttl)
	}
}

// recheck looks at all ends again: the clocks have parted, and timers follow one
// of them only.
func (p *keeper) recheck() {
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, e := range p.ends {
		e.at = time.Time{}
	}
}

// due returns what is to be looked at now. A renewal that is due takes those along
// that are so soon: they share a batch, and a wake-up.
func (p *keeper) due(turn []*keeping, now time.Time) (_ []*keeping, soon time.Time) {
	p.mu.Lock()
	defer p.mu.Unlock()
	for len(p.ends) > 0 && !p.ends[0].at.After(now) {
		turn = append(turn, p.ends[0].keeping)
		p.ends.remove(p.ends[0])
	}
	n := min(len(p.hurried), maxTurn)
	for _, g := range p.hurried[:n] {
		g.waits = false
	}
	turn = append(turn, p.hurried[:n]...)
	p.hurried = append(p.hurried[:0], p.hurried[n:]...)
	soon = now
	for len(p.works) > 0 && len(turn) < maxTurn && !p.works[0].at.After(soon) {
		soon = now.Add(min(maxTick, p.ttl/tickPart) / 2)
		turn = append(turn, p.works[0].keeping)
		p.works.remove(p.works[0])
	}
	return turn, soon
}

func (p *keeper) idleLocked(now time.Time) time.Duration {
	idle := min(maxTick, p.ttl/tickPart)
	switch {
	case len(p.hurried) > 0:
		return 0
	case len(p.works) > 0:
		idle = min(idle, p.works[0].at.Sub(now))
	}
	if len(p.ends) > 0 {
		idle = min(idle, p.ends[0].at.Sub(now))
	}
	return idle
}

// tend does what is to be done for g until soon, and schedules the next time.
func (p *keeper) tend(g *keeping, soon time.Time) {
	if r := g.renewal.round; r != nil && (r.reached() || !p.locker.now().Before(g.giveUp)) {
		g.conclude()
	}
	now := p.locker.now()
	end, renew, kept := g.lock.lookAhead(g, now)
	if !kept {
		g.drop()
		p.forget(g)
		return
	}
	work := renew
	if g.failure != nil {
		work = g.retry
	}
	if g.renewal.round == nil && !work.After(later(now, soon)) {
		g.renew(now)
	}
	if g.renewal.round != nil {
		work = g.giveUp
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	// One that has moved on is looked at again when its old end has come: that is once
	// in a ttl, and not twice at each renewal.
	if g.end.index == unscheduled || end.Before(g.end.at) {
		p.ends.set(&g.end, end)
	}
	p.works.set(&g.work, work)
}

func later(a, b time.Time) time.Time {
	if b.After(a) {
		return b
	}
	return a
}

func (p *keeper) forget(g *keeping) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.ends.remove(&g.end)
	p.works.remove(&g.work)
}

// wait returns when the goroutine has ended.
func (p *keeper) wait() { p.group.Wait() }

// lookAhead returns when the loss of the lock is to be signalled, and when it is
// to be renewed; kept is false if it is not kept alive any more. A lock whose end
// has come is lost with this.
func (k *Lock) lookAhead(g *keeping, now time.Time) (end, renew time.Time, kept bool) {
	k.mu.Lock()
	defer k.mu.Unlock()
	if k.keeping != g {
		return end, renew, false
	}
	left := k.window.remaining(now)
	early := min(signalEarly, k.window.length/earlyPart)
	last := k.maxHold > 0 && k.maxHold-elapsed(k.asked, now) <= left+tick // nothing to gain
	if left <= early {
		switch {
		case last:
			_ = k.loseLocked(LostMaxHold, nil, now)
		case now.Sub(k.window.start) < k.window.length-early-clockGap:
			_ = k.loseLocked(LostExpired, errStepped, now)
		case g.failure != nil: // it knows more than a renewal that is out
			_ = k.loseLocked(LostNoQuorum, g.failure, now)
		case g.renewal.round != nil:
			_ = k.loseLocked(LostNoQuorum, g.renewal.round.quorumError(ErrNoQuorum), now)
		default:
			_ = k.loseLocked(LostExpired, nil, now)
		}
		return end, renew, false
	}
	end = now.Add(left - early)
	if last {
		return end, end, true
	}
	part := k.ttl / renewPart
	if 2*part > k.window.length {
		// After an extend to a longer ttl that came to nothing, or where the drift takes
		// much of it.
		part = k.window.length / renewPart
	}
	return end, k.window.start.Add(part), true
}

// renew sends a renewal.
func (g *keeping) renew(now time.Time) {
	k := g.lock
	k.mu.Lock()
	var ctx context.Context
	if k.keeping == g {
		ctx = g.watchers[0].ctx
	}
	ttl := k.ttl
	k.mu.Unlock()
	if ctx == nil {
		return
	}
	x, err := k.startExtend(ctx, ttl)
	if err != nil {
		return // it has ended meanwhile
	}
	g.renewal, g.giveUp = x, now.Add(k.locker.voteLimit(ttl))
	x.round.notify(settled, g)
}

// conclude takes the votes on a renewal.
func (g *keeping) conclude() {
	k := g.lock
	r := g.renewal.round
	ttl := milliseconds(r.ttl)
	if !r.reached() {
		r.giveUp(&timeoutError{k.locker.voteLimit(ttl)})
	}
	g.failure = k.concludeExtend(context.Background(), g.renewal)
	k.observeExtend(g.renewal, true, g.failure)
	g.drop()
	if g.failure != nil {
		delay := min(max(ttl/retryPart, minRetry), maxRetry)
		g.retry = k.locker.now().Add(delay/2 + k.locker.jitter(delay))
	}
}

// drop lets go of the renewal that is out.
func (g *keeping) drop() {
	if r := g.renewal.round; r != nil {
		r.notify(nil, nil)
		r.leave()
		g.renewal = extension{}
	}
}

// A schedule is a heap of keepings, by the time at which something is to be done.
type schedule []*entry

type entry struct {
	at      time.Time
	index   int
	keeping *keeping
}

const unscheduled = -1

func (s schedule) Len() int           { return len(s) }
func (s schedule) Less(i, j int) bool { return s[i].at.Before(s[j].at) }
func (s schedule) Swap(i, j int) {
	s[i], s[j] = s[j], s[i]
	s[i].index, s[j].index = i, j
}

// Push is for the heap.
func (s *schedule) Push(x any) {
	e, _ := x.(*entry)
	e.index = len(*s)
	*s = append(*s, e)
}

// Pop is for the heap.
func (s *schedule) Pop() any {
	last := len(*s) - 1
	e := (*s)[last]
	(*s)[last] = nil
	*s = (*s)[:last]
	e.index = unscheduled
	return e
}

func (s *schedule) set(e *entry, at time.Time) {
	e.at = at
	if e.index == unscheduled {
		heap.Push(s, e)
		return
	}
	heap.Fix(s, e.index)
}

func (s *schedule) remove(e *entry) {
	if e.index != unscheduled {
		heap.Remove(s, e.index)
	}
}
