package redlock

import (
	"fmt"
	"time"
)

// Pauses between probes of an instance that is down.
const (
	probeFirst = 10 * time.Millisecond
	probeMax   = 500 * time.Millisecond
)

// A turn says who runs an instance's batches. While the worker waits, whoever
// queues an operation sends it, if nothing is out: that saves waking the worker
// first, and its answer wakes the worker. While the worker is about it, others only
// queue: it looks before it waits, and what has queued up meanwhile is one batch.
type turn uint8

const (
	nobodys turn = iota // the worker waits
	workers             // it looks at the queue before it waits again
	callers             // a caller reads the answer to its own operation, and passes the turn on: see attend
)

// idleTime is how long the only instance of a Locker rests before the worker listens
// to the connection, so as to see that it ends.
const idleTime = 20 * time.Millisecond

// departLocked has r, which was just queued, leave: a caller sends it if nothing is
// out and that can't take time. It unlocks mu meanwhile.
func (in *instance) departLocked(r *round, now time.Time) {
	out := len(in.flights)
	switch {
	case in.turn != nobodys:
		return // who has it looks
	case in.wire == nil:
		in.signalLocked()
		return
	}
	real := time.Now()
	if out > 0 {
		// The answer wakes the worker. Far away, more may leave before it comes.
		if next := in.leftAt.Add(in.distance / flightGap); in.mayFollowLocked() && in.readUntil.After(next) {
			in.readUntilLocked(next)
		}
		return
	}
	alone := !in.listening && r.attended && in.queue[0] == r
	switch {
	case !in.sendableLocked(real), !in.listening && !alone,
		in.unfit != nil, // which the worker looks at first
		!in.wire.prompt, len(in.queue) > 2, in.queue[0].size()+r.size() > inlineBytes,
		!in.pen.TryLock():
		in.signalLocked()
		return
	}
	if alone {
		in.turn, r.inline = callers, true
	}
	in.flyLocked(now, real)
	in.pen.Unlock()
	if len(in.queue) > 0 && len(in.flights) == 0 { // the answer was there before this
		in.signalLocked()
	}
}

// inlineBytes bounds what a caller writes: a socket takes so much without waiting.
const inlineBytes = 4 << 10

// signal has the worker look.
func (in *instance) signal() {
	in.mu.Lock()
	in.signalLocked()
	in.mu.Unlock()
}

func (in *instance) signalLocked() {
	in.signalled = true
	switch {
	case in.turn != nobodys:
	case in.listening:
		in.readUntilLocked(longAgo)
	default:
		in.knock()
	}
}

// knock wakes the worker, if it does not listen.
func (in *instance) knock() {
	select {
	case in.wake <- struct{}{}:
	default:
	}
}

// longAgo is a deadline that ends a read at once.
var longAgo = time.Unix(1, 0)

// readUntilLocked sets until when a read of the wire waits.
func (in *instance) readUntilLocked(t time.Time) {
	in.readUntil = t
	_ = in.wire.conn.SetReadDeadline(t) // of a connection that has ended: a read says so
}

// run is the worker: at each turn at most one chore and one batch, so that
// neither waits for the other for long.
func (in *instance) run() {
	defer close(in.done)
	defer in.hangUp()
	timer := time.NewTimer(never)
	defer timer.Stop()
	for {
		// Callers that were just woken are about to queue their next operation:
		// letting them run first makes the batch several times larger. What they wake
		// may queue some more. A single caller of the only instance had better find the
		// worker at rest, and send and read for itself.
		if !in.single {
			in.locker.yield()
		}
		now := in.locker.now()
		busy := in.chore(now)
		switch busy = in.push(now) || busy; {
		case busy:
			continue
		case in.ended(now):
			return
		}
		in.rest(now, timer)
	}
}

// hangUp closes what the worker has opened.
func (in *instance) hangUp() {
	if in.remake != nil {
		in.tap.close()
		in.closeClient()
	}
}

func (in *instance) closeClient() { _ = in.client.Close() }

// push sends the next batch. It reports whether the worker has to go on: a batch that
// goes through the client is back already.
func (in *instance) push(now time.Time) bool {
	in.pen.Lock()
	defer in.pen.Unlock()
	in.mu.Lock()
	if in.wire != nil {
		if real := time.Now(); in.sendableLocked(real) {
			in.flyLocked(now, real)
		}
		in.mu.Unlock()
		return false
	}
	if in.cold && in.remake != nil && !in.closed || len(in.queue) == 0 {
		in.mu.Unlock()
		return false
	}
	batch, unwanted, text := in.takeLocked(now)
	in.mu.Unlock()
	in.disown(unwanted)
	if len(batch) > 0 {
		res := in.exchange(batch, text, now)
		in.land(batch, res)
		in.requeue()
	}
	return true
}

// rest waits until an answer comes, something is due, or the worker is wanted.
func (in *instance) rest(now time.Time, timer *time.Timer) {
	in.mu.Lock()
	real := time.Now()
	if in.signalled || in.broken != nil || in.sendableLocked(real) || in.wire == nil && len(in.queue) > 0 {
		in.signalled = false
		in.mu.Unlock()
		in.giveUpBroken()
		return
	}
	in.turn = nobodys
	due := in.dueLocked(now)
	w := in.wire
	if w == nil || len(in.flights) == 0 && in.readsInlineLocked(real) {
		in.mu.Unlock()
		if w != nil {
			due = min(due, idleTime)
		}
		timer.Reset(due)
		select {
		case <-in.wake:
		case <-timer.C:
		}
		in.locker.resume(in.index)
		for !in.takeTurn() { // a caller has it, and passes it on
			<-in.wake
			in.locker.resume(in.index)
		}
		return
	}
	in.listening = true
	if until := real.Add(min(due, in.patienceLocked(real), time.Hour)); in.readUntil.After(until) || !in.readUntil.After(real) {
		in.readUntilLocked(until)
	}
	in.mu.Unlock()
	err := w.fill()
	in.mu.Lock()
	in.listening, in.signalled, in.turn = false, false, workers
	in.mu.Unlock()
	// A caller may be about to write a batch: as long as it reads its rounds, they are not
	// to be taken back. From here on nobody else begins to write.
	in.pen.Lock()
	in.receive(w, err)
	in.pen.Unlock()
	in.giveUpBroken()
}

// takeTurn gives the worker the turn, unless a caller has it.
func (in *instance) takeTurn() bool {
	in.mu.Lock()
	defer in.mu.Unlock()
	if in.turn == callers {
		in.signalled = true
		return false
	}
	in.turn, in.signalled = workers, false
	return true
}

// readsInlineLocked reports whether the next caller is to read its own answer: where
// there is but one to wait for, no other goroutine need be woken.
func (in *instance) readsInlineLocked(real time.Time) bool {
	return len(in.locker.instances) == 1 && in.wire.prompt && in.distance < attention && real.Sub(in.leftAt) < idleTime
}

// mayFollowLocked reports whether one more flight may leave before the answer to the
// last one.
func (in *instance) mayFollowLocked() bool {
	n := len(in.flights)
	return in.wire.prompt && in.distance >= farAway && n < in.locker.flights && !in.hold && !in.blocked && len(in.redo) == 0 && !in.sendText && !in.flights[n-1].text
}

// patienceLocked returns how long the worker may listen for what is out: until the
// oldest flight has been out for too long, or the next one may leave.
func (in *instance) patienceLocked(real time.Time) time.Duration {
	if len(in.flights) == 0 {
		return never
	}
	d := in.flights[0].left.Add(in.locker.sendLimit()).Sub(real)
	if len(in.queue) > 0 && in.mayFollowLocked() {
		d = min(d, in.leftAt.Add(in.distance/flightGap).Sub(real))
	}
	return max(d, 0)
}

// receive takes the answers that have been read, and err, why the last read ended.
func (in *instance) receive(w *wire, err error) {
	real := time.Now()
	for err == nil {
		var reply answerText
		if reply, err = w.next(); err != nil || !reply.whole {
			break
		}
		var f flight
		if f, err = in.answered(reply, real); err == nil && f.batch != nil {
			in.land(f.batch, in.judge(f.batch, f.sent, reply.lines, reply.refusal, 1))
		}
	}
	in.mu.Lock()
	defer in.mu.Unlock()
	switch {
	case err == nil, in.broken != nil:
	case isTimeout(err) && (len(in.flights) == 0 || real.Sub(in.flights[0].left) < in.locker.sendLimit()):
		// It was only to look.
	default:
		in.broken = err
	}
}

// answered returns the flight to which an answer belongs, and takes it in. There is
// none for one that comes a second time.
func (in *instance) answered(reply answerText, real time.Time) (f flight, err error) {
	in.mu.Lock()
	defer in.mu.Unlock()
	n := len(in.flights)
	switch {
	case n > 0 && (reply.refusal != nil || reply.number == in.flights[0].number):
	case reply.refusal == nil && reply.number <= in.sent-uint64(n): //nolint:gosec // at most maxFlights
		return flight{}, nil
	default:
		return flight{}, fmt.Errorf("%w: it belongs to nothing that is out", errNoReply)
	}
	f = in.flights[0]
	copy(in.flights, in.flights[1:])
	in.flights[n-1] = flight{}
	in.flights, in.sentAt = in.flights[:n-1], time.Time{}
	if n > 1 {
		in.sentAt = in.flights[0].sent
	}
	in.blocked = false
	in.single = len(f.batch) == 1 && len(in.queue) == 0 && len(in.locker.instances) == 1
	if n := len(f.batch); n <= smallBatch { // what a large one takes says little of the way
		in.distance = max(min(in.distance, real.Sub(f.left)-time.Duration(n)*operationTime), 0)
	}
	return f, nil
}

// giveUpBroken closes a wire that does not work any more. What was out on it may
// still be run.
func (in *instance) giveUpBroken() {
	in.mu.Lock()
	err, out := in.broken, len(in.flights)
	in.mu.Unlock()
	if err != nil {
		flights := in.dropWire()
		in.cold = in.cold || len(flights) == 0 // it ended while nothing was out: that says nothing of the instance
		var res result
		for i, f := range flights {
			if i == 0 {
				res = in.judge(f.batch, f.sent, "", err, 1)
			}
			res.sent = f.sent
			in.land(f.batch, res)
		}
	} else if out > 0 {
		return
	}
	in.requeue()
}

// dropWire closes the wire, and returns what was out on it.
func (in *instance) dropWire() []flight {
	in.mu.Lock()
	defer in.mu.Unlock()
	cut(in.wire.conn)
	flights := in.flights
	in.wire, in.broken, in.flights, in.sentAt, in.blocked = nil, nil, nil, time.Time{}, false
	return flights
}

// requeue puts what came back unrun to the head of the queue, once nothing is out
// any more: what its owners have given up since is not sent.
func (in *instance) requeue() {
	in.mu.Lock()
	redo := in.redo
	if len(redo) == 0 || len(in.flights) > 0 {
		in.mu.Unlock()
		return
	}
	for _, r := range redo {
		in.settle(r)
	}
	in.redo = nil
	err := in.down
	if in.closed {
		err = ErrClosed
	}
	if err == nil {
		in.queue = append(redo, in.queue...)
	}
	in.mu.Unlock()
	if err != nil {
		in.deliver(redo, result{err: err, notRun: true})
	}
}

// ended reports whether the worker has nothing left to do, and closes the queue
// then.
func (in *instance) ended(now time.Time) bool {
	in.mu.Lock()
	defer in.mu.Unlock()
	if len(in.flights) > 0 {
		return false
	}
	if in.finishing && len(in.queue) == 0 && (in.down != nil && in.lastProbe || !in.leftovers.work(now)) {
		in.closed = true
	}
	return in.closed
}

// finish tells the worker to end when nothing is left to do.
func (in *instance) finish() {
	in.mu.Lock()
	in.finishing = true
	in.mu.Unlock()
	in.signal()
}

// shut closes the queue: the worker ends as soon as its call comes back.
func (in *instance) shut() {
	in.mu.Lock()
	in.closed = true
	queue := in.queue
	in.queue = nil
	in.mu.Unlock()
	for _, r := range queue {
		r.answer(in, answer{vote: failed, err: ErrClosed})
		r.leave()
	}
	in.signal()
}

// chore does one thing that is due besides the queue, and reports whether there
// was one: a probe while the instance is down, or before the first batch on a new
// connection; a proof of who it is; or a batch of the clean-up list. Nothing is out
// meanwhile.
func (in *instance) chore(now time.Time) bool {
	in.mu.Lock()
	down, queued, due := in.down != nil, len(in.queue) > 0, in.leftovers.due(now) == 0
	if in.finishing && down && !in.lastProbe {
		in.lastProbe = true // it may have come back: what it has is cleaned up then
		in.probeAt = now
	}
	out := len(in.flights) > 0
	var do func(time.Time)
	switch {
	case down && now.Before(in.probeAt):
	case down, in.cold && (queued || due):
		do = in.probe
	case in.wire != nil && in.proofIsDue(now):
		do = in.proveAgain
	case due:
		do = in.cleanUp
	}
	in.hold = do != nil && out
	in.mu.Unlock()
	if do == nil || out {
		return false
	}
	in.pen.Lock()
	defer in.pen.Unlock()
	do(now)
	return true
}

// dueLocked returns how long there is nothing to do but for the queue and for what is
// out.
func (in *instance) dueLocked(now time.Time) time.Duration {
	switch {
	case in.hold:
		return never // it is due when all flights are back
	case in.down != nil:
		return max(in.probeAt.Sub(now), 0)
	}
	return in.leftovers.due(now)
}

// setDown fails what is queued and everything that will be, until a probe
// succeeds.
func (in *instance) setDown(cause error, now time.Time) {
	in.backoff = min(max(2*in.backoff, probeFirst), in.locker.keeper.longestBackoff())
	in.probeAt = now.Add(in.backoff/2 + in.locker.jitter(in.backoff))
	in.mu.Lock()
	first := in.down == nil
	in.down = cause
	queue := in.queue
	in.queue = nil
	in.mu.Unlock()
	for _, r := range queue {
		in.undelivered(r, now)
		r.answer(in, answer{vote: failed, err: cause})
		r.leave()
	}
	if first {
		in.locker.observeInstance(in, InstanceDown, cause)
	}
}

func (in *instance) setUp() {
	in.backoff = 0
	in.mu.Lock()
	was := in.down
	in.down = nil
	if was != nil {
		in.leftovers.next = time.Time{} // they have waited for this
	}
	in.mu.Unlock()
	if was != nil {
		in.locker.observeInstance(in, InstanceUp, nil)
	}
}

// probe tries an instance that is down, or a new connection, with a batch of
// nothing: the rights that it takes are those that locking takes.
func (in *instance) probe(now time.Time) {
	if in.remake != nil && in.tap.dialed() {
		in.closeClient()
		in.client = in.remake(in.tap)
	}
	res := in.exchange(nil, in.takeText(), now)
	if res.again {
		res = in.exchange(nil, in.takeText(), now)
	}
	if res.notRun && isReply(res.err) {
		in.setUp() // it answers; what it refuses, it will say for each operation
	}
	if in.remake != nil && !in.cold {
		in.prove(now) // what was refused, because the instance still loads, say, has proved nothing
		in.takeOver()
	}
}

// takeOver makes the client's connection the wire. If the client has closed it, as a
// proof was not answered, the next one begins with a probe.
func (in *instance) takeOver() {
	var w *wire
	if conn := in.tap.last(); conn != nil {
		w = newWire(conn)
	}
	if w == nil {
		in.cold = true
		return
	}
	w.prompt = w.prompt || in.locker.config.prompt
	in.mu.Lock()
	defer in.mu.Unlock()
	in.wire, in.readUntil, in.distance = w, time.Now().Add(never), never
}

// proveAgain has the client ask who the instance is, on the wire.
func (in *instance) proveAgain(now time.Time) {
	in.mu.Lock()
	in.wire = nil // the client has it meanwhile
	in.mu.Unlock()
	in.prove(now)
	in.takeOver()
}
