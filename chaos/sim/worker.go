package sim

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"time"

	"github.com/quorumlock/redlock"
	"github.com/quorumlock/redlock/chaos/history"
)

// A worker does one thing after the other with locks. What it does depends on its seed
// and on what it is answered.
type worker struct {
	c    *client
	w    *world
	id   int
	rand *rand.Rand
	dice dice
	lane time.Duration
	ctx  context.Context // which tells its lane

	watches int // how many locks it has kept
}

func (k *worker) chance(p float64) bool { return k.rand.Float64() < p }

func (k *worker) name() string { return fmt.Sprintf("client %d worker %d", k.c.id, k.id) }

// span returns a random duration, in nanoseconds: two workers never act at one
// instant.
func (k *worker) span(least, most time.Duration) time.Duration { return span(k.rand, least, most) }

// pause lets d go by, and more while the client stands still.
func (k *worker) pause(d time.Duration) {
	time.Sleep(max(d, 0) + k.span(1, time.Microsecond))
	for i := 0; i < len(k.w.Faults); i++ {
		f := &k.w.Faults[i]
		if now := k.w.now(); f.stands() && f.hits(now, k.c.id, all) {
			k.w.touched(f.Kind)
			time.Sleep(f.To - now + k.span(1, 20*time.Microsecond))
			i = -1
		}
	}
	k.w.keep(k.lane)
}

// touched counts what a fault has touched.
func (w *world) touched(kind Kind) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.hits[kind]++
}

// do runs f under the lock of the world.
func (k *worker) do(f func()) {
	k.w.mu.Lock()
	defer k.w.mu.Unlock()
	f()
}

func (k *worker) violate(rule, format string, args ...any) {
	k.do(func() { k.w.violate(rule, k.name()+": "+format, args...) })
}

// run works under faults, and then makes sure that everybody can go on.
func (k *worker) run() {
	defer func() {
		if p := recover(); p != nil {
			k.violate("a panic", "%v", p)
		}
	}()
	for {
		k.pause(k.span(0, k.w.TTLs[0]/2))
		if k.w.now() >= k.w.Active {
			break
		}
		k.once()
	}
	k.recover()
}

// A request is an acquire that is out.
type request struct {
	resource int
	ttl      time.Duration
	pace     time.Duration // of what is done with it: the ttl, unless that is too long
	call     time.Duration
	name     string

	least, most time.Duration // its minimum of validity and its longest hold; 0: none
}

// options returns the options of a request that has some now and then.
func (k *worker) options(q *request) []redlock.AcquireOption {
	switch p := k.rand.Float64(); {
	case p < 0.15:
		q.least = q.ttl*98/100 - 3*time.Millisecond - k.span(0, q.ttl/20)
		return []redlock.AcquireOption{redlock.WithMinValidity(q.least)}
	case p < 0.3:
		q.most = k.span(q.pace/2, 3*q.pace)
		return []redlock.AcquireOption{redlock.WithMaxHold(q.most)}
	}
	return nil
}

// once acquires a lock, works under it and gives it up.
func (k *worker) once() {
	w := k.w
	q := request{resource: k.rand.IntN(w.Resources), ttl: pick(k.rand, w.TTLs...)}
	q.pace = q.ttl
	if w.Long && k.chance(0.3) {
		// One of its own, as nobody gets it soon. It is released while there are faults.
		q.resource, q.ttl, q.pace = w.Resources, longTTL, w.TTLs[0]
	}
	name := w.key(q.resource)
	ctx := k.ctx
	opts := k.options(&q)
	var lock *redlock.Lock
	var err error
	limit := voteLimit(q.ttl) + linger + slack
	q.call = w.now()
	switch p := k.rand.Float64(); {
	case p < 0.3:
		q.name = "try"
		lock, err = k.c.locker.TryAcquire(ctx, name, q.ttl, opts...)
	case p < 0.45:
		q.name = "wait"
		wait := k.span(0, 3*q.pace)
		wait = min(wait, 2*time.Second)
		limit += wait + linger
		lock, err = k.c.locker.Acquire(ctx, name, q.ttl, append(opts, redlock.WithMaxWait(wait))...)
	case p < 0.55 && q.ttl < longTTL:
		k.doUnder(q, opts)
		return
	default:
		q.name = "acquire"
		wait := min(k.span(time.Millisecond, 4*q.pace), 2*time.Second)
		if k.chance(0.2) {
			wait = k.span(1, 4*w.Delay) // while its requests are out
		}
		limit = wait + ctxSlack
		c, cancel := context.WithTimeout(ctx, wait)
		lock, err = k.c.locker.Acquire(c, name, q.ttl, opts...)
		cancel()
	}
	if took := w.now() - q.call; took > limit {
		k.violate("an acquire takes too long", "%s with a ttl of %v: %v, more than %v", q.name, q.ttl, took, limit)
	}
	if err != nil {
		k.refused(q, err)
		return
	}
	k.hold(q, lock)
}

// refused takes the error of an acquire.
func (k *worker) refused(q request, err error) {
	k.do(func() {
		k.w.note(k.name(), func() string { return fmt.Sprintf("%s r%d for %v: %v", q.name, q.resource, q.ttl, err) })
	})
	if q.name == "try" && errors.Is(err, redlock.ErrTaken) {
		k.do(func() {
			if n := k.w.answersSince(k.c.id, k.w.key(q.resource), q.call); n < k.w.quorum() {
				k.w.violate("taken, without an answer of a quorum", "%s: %d answers: %v", k.name(), n, err)
			}
		})
	}
	for _, known := range []error{redlock.ErrTaken, redlock.ErrNoQuorum, redlock.ErrExpired, context.DeadlineExceeded} {
		if errors.Is(err, known) {
			return
		}
	}
	k.violate("an acquire fails for no known reason", "%s: %v", q.name, err)
}

// got notes an acquisition.
func (k *worker) got(q request, lock *redlock.Lock) *hold {
	w := k.w
	remaining := lock.Remaining()
	h := &hold{client: k.c.id, worker: k.id, resource: q.resource, owner: lock.Owner(), token: lock.FencingToken(), call: q.call, most: q.most}
	k.do(func() {
		now := w.now()
		h.from = now
		w.counts.Acquired++
		w.note(k.name(), func() string {
			return fmt.Sprintf("%s r%d for %v: %s token %d, %v remain", q.name, q.resource, q.ttl, h.owner, h.token, remaining)
		})
		w.holds = append(w.holds, h)
		w.ops = append(w.ops, history.Op{Client: k.c.id, Resource: w.key(q.resource), Kind: history.Acquire, Call: int64(q.call), Return: int64(now), Token: h.token})
		if remaining <= 0 {
			w.violate("a lock without validity", "%v", h)
		}
		if remaining < q.least {
			w.violate("a lock has less than the minimum", "%v remain, and not %v: %v", remaining, q.least, h)
		}
		if (h.token == 0) != w.Unfenced || h.token >= 1<<53 {
			w.violate("a token that is none", "%v", h)
		}
		w.see(h, now, remaining)
	})
	return h
}

// hold works under a lock, and gives it up.
func (k *worker) hold(q request, lock *redlock.Lock) {
	w := k.w
	h := k.got(q, lock)
	longest := q.ttl
	ctx, cancel := context.WithCancel(k.ctx)
	defer cancel()
	kept := context.Context(nil)
	k.commit(h, lock, 0)
	for range k.rand.IntN(4) {
		switch p := k.rand.Float64(); {
		case p < 0.3:
			k.pause(k.span(0, q.pace/4))
		case p < 0.55 && q.ttl < longTTL:
			// About the end of the window is where things happen.
			k.pause(lock.Remaining() + k.span(0, 6*time.Millisecond) - 4*time.Millisecond)
		case p < 0.8 && q.ttl < longTTL:
			ttl := pick(k.rand, q.ttl, q.ttl, q.ttl+k.span(0, q.ttl), max(q.ttl/2, 20*time.Millisecond))
			if !w.Unrepeated { // docs/safety-model.md: a copy of one that shortens is not told from a new one
				ttl = max(longest, min(longest+k.span(0, q.ttl/2), 2*q.ttl))
			}
			longest = max(longest, ttl)
			k.pause(k.span(0, q.ttl/8))
			k.extend(h, lock, ttl, longest)
		case p < 0.95 && kept == nil && q.ttl < longTTL:
			valid := lock.Remaining() > 0
			if kept = lock.KeepAlive(ctx); valid {
				k.watch(h, lock, ctx, kept)
			}
			k.pause(k.span(0, 2*q.ttl))
		default:
			k.pause(k.span(0, 1+q.pace/16))
		}
		k.look(h, lock)
		if k.chance(0.6) {
			k.commit(h, lock, k.span(0, 3*w.Delay)*time.Duration(k.rand.IntN(2)))
		}
	}
	if q.ttl < longTTL && k.chance(0.2) {
		// Its window ends by itself. If it is kept alive, that ends with ctx.
		k.do(func() {
			w.counts.Forgotten++
			w.note(k.name(), func() string { return "forgets " + h.owner })
		})
		return
	}
	k.pause(0)
	_ = k.release(h, lock, longest) // whatever became of it was checked
}

// doUnder has the library do something under a lock.
func (k *worker) doUnder(q request, opts []redlock.AcquireOption) {
	w := k.w
	ctx, cancel := context.WithTimeout(k.ctx, min(k.span(time.Millisecond, 4*q.pace), 2*time.Second))
	defer cancel()
	q.name = "do"
	var h *hold
	left := time.Duration(0)
	err := k.c.locker.Do(ctx, w.key(q.resource), q.ttl, func(kept context.Context, lock *redlock.Lock) error {
		h = k.got(q, lock)
		k.watch(h, lock, ctx, kept)
		for range k.rand.IntN(3) {
			k.commit(h, lock, 0)
			k.pause(k.span(0, q.pace))
			k.look(h, lock)
		}
		left = lock.Remaining()
		k.do(func() {
			w.counts.Done++
			w.see(h, w.now(), left)
			h.until, h.over = min(h.until, w.now()), true
		})
		return nil
	}, opts...)
	switch {
	case h == nil && err == nil:
		k.violate("a do without a lock succeeds", "r%d", q.resource)
	case h == nil:
		k.refused(q, err)
	case left <= 0 && !errors.Is(err, redlock.ErrLost):
		k.violate("a do hides the loss of its lock", "%v: %v", err, h)
	}
}

// look asks the lock what remains.
func (k *worker) look(h *hold, lock *redlock.Lock) {
	remaining := lock.Remaining()
	k.do(func() { k.w.see(h, k.w.now(), remaining) })
}

// commit writes under the lock; the write is on its way for d.
func (k *worker) commit(h *hold, lock *redlock.Lock, d time.Duration) {
	if lock.Remaining() <= 0 && k.chance(0.7) {
		return // as it should; but it could have looked just before it stood still
	}
	if d > 0 {
		time.Sleep(d)
	}
	k.do(func() { k.w.write(h) })
}

// tick is how long a holder may go on after its wall clock was set.
const tick = 100 * time.Millisecond

// watch sees to it that the loss of a lock that is kept alive on ctx is signalled in
// time, and with its reason.
func (k *worker) watch(h *hold, lock *redlock.Lock, ctx, kept context.Context) {
	begin := k.w.now()
	k.do(func() { k.w.counts.Kept++ })
	lane := watchLanes + time.Duration(k.id*mostWatches+k.watches%mostWatches)
	k.watches++
	context.AfterFunc(kept, func() {
		at, now, end := k.w.now(), k.c.now(), lock.ValidUntil()
		k.w.keep(lane)
		k.do(func() {
			cause := context.Cause(kept)
			k.w.note(k.name(), func() string { return fmt.Sprintf("the end of %s is signalled: %v", h.owner, cause) })
			lost, ok := errors.AsType[*redlock.LostError](cause)
			switch {
			case !ok && ctx.Err() == nil:
				k.w.violate("a loss is signalled without its reason", "%v: %v", cause, h)
			case !ok || lost.Reason == redlock.LostReleased:
				return
			}
			k.w.counts.Lost++
			jumped := k.c.jumped(begin, at)
			early, late := h.until-at, now.Round(0).Sub(end)
			if jumped > begin {
				late = min(late, at-jumped-tick)
			}
			if early > signalEarly+slack && !h.over && k.c.setForward(h.seen) > at && k.w.unexplained(lost.Reason) {
				k.w.violate("a loss is signalled early", "by %v: %v: %v", early, cause, h)
			}
			if late > 0 {
				k.w.violate("a loss is signalled late", "by %v: %v", late, h)
			}
			h.until, h.over = min(h.until, at), true
		})
	})
}

func (k *worker) extend(h *hold, lock *redlock.Lock, ttl, longest time.Duration) bool {
	w := k.w
	call, before := w.now(), lock.Remaining()
	ctx, cancel := k.ctx, context.CancelFunc(func() {})
	limit := max(voteLimit(ttl), 0) + slack
	if k.chance(0.2) {
		wait := k.span(time.Microsecond, 2*w.Delay+ttl/8)
		ctx, cancel = context.WithTimeout(ctx, wait)
		limit = min(limit, wait+ctxSlack)
	}
	k.do(func() { h.until = min(h.until, call+ttl) }) // a shorter one counts at once
	err := lock.Extend(ctx, ttl)
	cancel()
	remaining := lock.Remaining()
	k.do(func() {
		now := w.now()
		w.note(k.name(), func() string { return fmt.Sprintf("extend %s to %v: %v, %v remain", h.owner, ttl, err, remaining) })
		if took := now - call; took > limit {
			w.violate("an extend takes too long", "to %v: %v, more than %v", ttl, took, limit)
		}
		switch {
		case err == nil:
			w.counts.Extended++
			if before <= 0 {
				w.violate("an extend revives a lock", "%v", h)
			}
			if w.Ordered && !w.Unfenced {
				w.ops = append(w.ops, history.Op{Client: h.client, Resource: w.key(h.resource), Kind: history.Extend, Call: int64(call), Return: int64(now), Token: h.token})
			}
		case !errors.Is(err, redlock.ErrLost) && !errors.Is(err, redlock.ErrNoQuorum) && !errors.Is(err, context.DeadlineExceeded):
			w.violate("an extend fails for no known reason", "%v", err)
		case before <= 0 && !errors.Is(err, redlock.ErrLost):
			w.violate("an extend after the end fails, and the lock is not lost", "%v: %v", h, err)
		case errors.Is(err, redlock.ErrLost) && remaining > 0:
			w.violate("a lost lock remains", "%v: %v", h, err)
		}
		w.see(h, now, remaining)
	})
	return err == nil
}

// release gives a lock up, and makes sure that it stays so.
func (k *worker) release(h *hold, lock *redlock.Lock, longest time.Duration) error {
	w := k.w
	var err error
	healed := false
	for range 3 {
		call := w.now()
		remaining := lock.Remaining()
		k.do(func() {
			w.see(h, call, remaining)
			h.until, h.over = min(h.until, call), true
			healed = w.phase2
			w.note(k.name(), func() string { return "releases " + h.owner })
		})
		ctx, cancel := context.WithCancel(k.ctx)
		if k.chance(0.2) {
			cancel()
		}
		err = lock.Release(ctx)
		cancel()
		k.do(func() {
			now := w.now()
			w.note(k.name(), func() string { return fmt.Sprintf("has released %s: %v", h.owner, err) })
			if took := now - call; took > voteLimit(longest)+linger+slack {
				w.violate("a release takes too long", "%v: %v", took, h)
			}
			if err == nil {
				w.counts.Released++
				w.released[h.owner] = now
			}
		})
		if err == nil || errors.Is(err, redlock.ErrLost) {
			break
		}
		if !errors.Is(err, redlock.ErrNoQuorum) {
			k.violate("a release fails for no known reason", "%v", err)
		}
		if healed {
			break
		}
		k.pause(k.span(0, 50*time.Millisecond))
	}
	if lock.Remaining() > 0 {
		k.violate("a released lock remains", "%v", h)
	}
	if again := lock.Extend(k.ctx, longest); !errors.Is(again, redlock.ErrLost) {
		k.violate("a released lock can be extended", "%v: %v", h, again)
	}
	if again := lock.Release(k.ctx); err == nil && again != nil {
		k.violate("a second release fails", "%v: %v", h, again)
	}
	return err
}

// recover makes sure that, when everything has healed, every worker gets a lock or two,
// can keep and extend it, and is rid of it.
func (k *worker) recover() {
	w := k.w
	k.pause(w.Active - w.now() + k.span(0, 20*time.Millisecond))
	quarantine := w.Quarantine
	if quarantine == 0 {
		quarantine = time.Second + 2*time.Second
	}
	if k.dice.chance(0.8) && (w.has(Restart) || w.has(Forget)) {
		k.pause(quarantine) // they would ask all the time
	}
	workers := 0
	for _, n := range w.Workers {
		workers += n
	}
	for i := range pick(k.rand, 1, 1, 2) {
		resource := (k.c.id + k.id + i) % w.resources()
		q := request{resource: resource, ttl: w.TTLs[0], pace: w.TTLs[0], name: "recover", call: w.now()}
		bound := w.Active + quarantine - q.call + time.Duration(workers)*4*q.ttl + 8*time.Second
		ctx, cancel := context.WithTimeout(k.ctx, bound)
		lock, err := k.c.locker.Acquire(ctx, w.key(resource), q.ttl)
		cancel()
		if err != nil {
			k.violate("no progress after everything has healed", "r%d within %v: %v", resource, bound, err)
			return
		}
		h := k.got(q, lock)
		k.do(func() {
			if w.counts.Recovery == 0 {
				w.counts.Recovery = h.from - w.Active
			}
			w.write(h)
		})
		ctx, cancel = context.WithCancel(k.ctx)
		kept := lock.KeepAlive(ctx)
		k.watch(h, lock, ctx, kept)
		k.pause(k.span(0, q.ttl*3/2))
		k.look(h, lock)
		if kept.Err() != nil {
			k.violate("a lock is lost after everything has healed", "%v: %v", h, context.Cause(kept))
		}
		cancel()
		k.pause(0)
		if !k.extend(h, lock, q.ttl, q.ttl) && lock.Remaining() <= 0 {
			k.violate("a lock can't be extended after everything has healed", "%v", h)
		}
		k.pause(k.span(0, q.ttl/8))
		k.do(func() { w.write(h) })
		if err := k.release(h, lock, q.ttl); err != nil {
			k.violate("a lock can't be released after everything has healed", "%v: %v", h, err)
		}
		k.pause(k.span(0, q.ttl/4))
	}
}
