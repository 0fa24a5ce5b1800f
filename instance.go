package redlock

import (
	"context"
	"encoding"
	"errors"
	"fmt"
	"net"
	"runtime"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/redis/go-redis/v9"
)

// Limits of one instance.
const (
	maxBatch   = 500         // operations in one script: keeps the server's pause near 1 ms
	maxBytes   = 1 << 20     // in one script, about: of operations on long resources
	maxQueue   = 20_000      // operations waiting; one more is a failed vote at once
	sendLimit  = time.Second // a connection is given up so long after sending
	probeFirst = 10 * time.Millisecond
	probeMax   = 500 * time.Millisecond
)

// An instance is one Redis master with one first-in-first-out queue. Whatever
// has queued up while a batch was out leaves as the next batch, in one script.
//
// One queue, and one batch in flight, is what makes an owner's release arrive
// after its own acquire, however slow the connection: with a connection for
// each request, a release can overtake the acquire and leave an orphan key.
//
// This is the only file that knows an error of the client.
type instance struct {
	locker *Locker
	name   string
	index  int
	client redis.UniversalClient

	// A cluster or a ring sends a script where its first key lives, so that one
	// script must not get two resources; and it hashes that key itself, so that
	// the key must be a plain string.
	sharded atomic.Bool

	dials *dialCount // of the client; nil where it does not tell
	ear   ear

	mu        sync.Mutex
	queue     []*round
	spare     []*round  // the queue before the last, to be filled again
	sentAt    time.Time // when the batch in flight left; zero when there is none
	down      error     // why the instance is known to be down; nil when it is not
	finishing bool      // the worker is to end when nothing is left to do
	lastProbe bool      // it was probed once more while finishing
	closed    bool      // nothing is taken any more
	leftovers leftovers

	wake chan struct{} // of one place
	done chan struct{} // closed when the worker has ended

	// Of the worker alone.
	batch     []*round
	args      []any
	numKeys   int
	script    scriptArg
	proved    uint64    // the connections when the instance last proved itself
	provedAt  time.Time // when it was last asked to
	sendText  bool      // the next batch goes with the text of the script
	alone     int       // how many operations are to be sent each in a batch of its own
	cold      bool      // no answer yet on the connection
	mute      bool      // it lets nobody publish
	clockless bool      // it does not tell its time
	astray    bool      // its clock was out of what is possible when last compared
	lags      bool      // it had counted too little time when last compared
	unfit     error     // why its grants do not count; nil if they do
	memory    memory
	probeAt   time.Time     // when to try again, while down
	backoff   time.Duration // between probes
}

func newInstance(l *Locker, index int, name string, client redis.UniversalClient) *instance {
	in := &instance{
		locker: l, name: name, index: index,
		wake: make(chan struct{}, 1),
		done: make(chan struct{}),
		cold: true,
	}
	in.client = client
	in.ear = ear{in: in, wake: make(chan struct{}, 1)}
	c, plain := client.(*redis.Client)
	switch {
	case !plain:
		in.sharded.Store(true)
	case !l.owned:
		// Shares the pool of the client, and bounds what its owner may have left
		// unbounded: the call that is out comes back.
		in.client = c.WithTimeout(l.sendLimit())
		fallthrough
	default:
		in.dials = countDials(c)
	}
	return in
}

// enqueue queues r. It never blocks: a full queue, or an instance that is down
// or has been silent for too long, is an error at once.
func (in *instance) enqueue(r *round, now time.Time) error {
	in.mu.Lock()
	err := in.acceptsLocked(r, now)
	if err == nil {
		in.queue = append(in.queue, r)
	}
	in.mu.Unlock()
	if err == nil {
		in.signal()
	}
	return err
}

// enqueueBoth queues r and next, next to each other.
func (in *instance) enqueueBoth(r, next *round, now time.Time) (err, errNext error) {
	in.mu.Lock()
	if err = in.acceptsLocked(r, now); err == nil {
		in.queue = append(in.queue, r)
	}
	if errNext = in.acceptsLocked(next, now); errNext == nil {
		in.queue = append(in.queue, next)
	}
	in.mu.Unlock()
	if err == nil || errNext == nil {
		in.signal()
	}
	return err, errNext
}

var errQueueFull = fmt.Errorf("more than %d operations are waiting", maxQueue)

func (in *instance) acceptsLocked(r *round, now time.Time) error {
	switch {
	case in.closed:
		return ErrClosed
	case in.down != nil:
		return in.down
	case !in.sentAt.IsZero() && now.Sub(in.sentAt) > in.locker.sendLimit():
		// Only a client with time-outs of its own gets here: the call has not
		// come back, and the worker with it.
		return &timeoutError{in.locker.sendLimit()}
	case len(in.queue) >= maxQueue && r.op != opRelease: // there are no more of those than of grants
		return errQueueFull
	}
	return nil
}

func (in *instance) signal() {
	select {
	case in.wake <- struct{}{}:
	default:
	}
}

// run is the worker: at each turn at most one chore and one batch, so that
// neither waits for the other for long.
func (in *instance) run() {
	defer close(in.done)
	timer := time.NewTimer(never)
	defer timer.Stop()
	for {
		// Callers that were just woken are about to queue their next operation:
		// letting them run first makes the batch several times larger. What they wake
		// may queue some more: three turns gained about a tenth over one.
		for range 3 {
			runtime.Gosched()
		}
		now := in.locker.now()
		busy := in.chore(now)
		if in.take(now) {
			in.process(now)
			continue
		}
		switch {
		case busy:
			continue
		case in.ended(now):
			return
		}
		timer.Reset(in.idle(now))
		select {
		case <-in.wake:
		case <-timer.C:
		}
	}
}

// process sends in.batch and hands out the answers.
func (in *instance) process(now time.Time) {
	res := in.exchange(in.batch, now)
	if res.again {
		in.requeue(in.batch)
		return
	}
	in.deliver(in.batch, res)
}

// requeue puts a batch that was not run back to the head of the queue: what its
// owners have given up since is not sent.
func (in *instance) requeue(batch []*round) {
	for _, r := range batch {
		in.settle(r)
	}
	in.mu.Lock()
	closed := in.closed
	if !closed {
		in.queue = append(slices.Clone(batch), in.queue...)
	}
	in.mu.Unlock()
	if closed {
		in.deliver(batch, result{err: ErrClosed, notRun: true})
	}
}

// ended reports whether the worker has nothing left to do, and closes the queue
// then.
func (in *instance) ended(now time.Time) bool {
	in.mu.Lock()
	defer in.mu.Unlock()
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
// connection; or a batch of the clean-up list.
func (in *instance) chore(now time.Time) bool {
	in.mu.Lock()
	down, queued, due := in.down != nil, len(in.queue) > 0, in.leftovers.due(now) == 0
	if in.finishing && down && !in.lastProbe {
		in.lastProbe = true // it may have come back: what it has is cleaned up then
		in.probeAt = now
	}
	in.mu.Unlock()
	switch {
	case down && now.Before(in.probeAt):
		return false
	case down, in.cold && (queued || due):
		in.probe(now)
	case due:
		in.cleanUp(now)
	default:
		return false
	}
	return true
}

// idle returns how long there is nothing to do but for the queue.
func (in *instance) idle(now time.Time) time.Duration {
	in.mu.Lock()
	defer in.mu.Unlock()
	if in.down != nil {
		return in.probeAt.Sub(now)
	}
	return in.leftovers.due(now)
}

// take moves the next batch from the queue to in.batch and reports whether
// there is one. An operation that nobody wants any more, of an owner that gave
// the lock up or let it expire, stays here: it is not sent after that owner's
// Release returned, and a forgotten lock is not granted after its end.
func (in *instance) take(now time.Time) bool {
	in.mu.Lock()
	in.batch = in.batch[:0]
	var unwanted []*round
	most := maxBatch
	if in.alone > 0 {
		in.alone--
		most = 1
	}
	n, size, sharded := 0, 0, in.sharded.Load()
	for _, r := range in.queue {
		size += r.size()
		if len(in.batch) > 0 &&
			(len(in.batch) == most || size > maxBytes || sharded && r.lock.key != in.batch[0].lock.key) {
			break
		}
		n++
		if r.op.prolongs() {
			r.lock.leaves(in.index) // before the look at wanted: a Release that misses this one is not missed by that
		}
		switch {
		case r.op != opRelease && !r.lock.wanted(now):
			unwanted = append(unwanted, r)
			continue
		case r.op.grants():
			r.lock.touched(in.index)
		}
		in.batch = append(in.batch, r)
	}
	if n == len(in.queue) {
		clear(in.queue)
		in.queue, in.spare = in.spare[:0], in.queue[:0]
	} else {
		rest := copy(in.queue, in.queue[n:])
		clear(in.queue[rest:])
		in.queue = in.queue[:rest]
	}
	in.mu.Unlock()
	for _, r := range unwanted {
		in.settle(r)
		r.skip(in)
		r.leave()
	}
	return len(in.batch) > 0
}

// A result is what became of a batch.
type result struct {
	sent      time.Time // not after it was sent
	lines     string    // the script's answer
	err       error     // why there is none
	again     bool      // it was not run, and is to be sent once more
	notRun    bool      // it was not run, and will not be
	ambiguous bool      // the server may still run it, or run it again
}

// exchange sends one batch and waits for its answer, about sendLimit at most.
func (in *instance) exchange(batch []*round, now time.Time) result {
	in.setSentAt(now)
	defer in.setSentAt(time.Time{})

	reply, err := in.call(batch)
	written := in.script.written
	if isReply(err) && (written == 1 || len(batch) == 0) && in.canRepeat(err, batch) {
		return result{sent: now, again: true}
	}
	// Written more than once: the client tried again behind our back, and an
	// earlier copy may still be under way.
	res := result{sent: now, lines: reply, err: in.explain(err), ambiguous: written > 1}
	switch {
	case err == nil:
		in.cold = false
		in.setUp()
		in.prove(now)
	case isReply(err) && written > 0:
		// The instance is there, and refuses. If it is for want of the script, a probe
		// brings it.
		in.cold = strings.HasPrefix(err.Error(), "NOSCRIPT")
		res.notRun = written == 1
	default:
		res.ambiguous, res.notRun = written > 0, written == 0
		// A connection that broke says little of the instance: the next one is
		// tried with a probe. No new connection, or silence, says that it is down.
		if written == 0 || isTimeout(err) || in.cold {
			in.setDown(res.err, now)
		}
		in.cold = true
		in.mu.Lock()
		in.leftovers.broken()
		in.mu.Unlock()
	}
	return res
}

// canRepeat reports whether err says that nothing was run and the batch is to be
// sent in another way.
func (in *instance) canRepeat(err error, batch []*round) bool {
	switch text := err.Error(); {
	case strings.HasPrefix(text, "NOSCRIPT"): // restarted, or its scripts were flushed
		in.sendText = true
		return true
	case strings.HasPrefix(text, "NOPERM"): // perhaps for the keys of one operation
		if len(batch) > 1 {
			in.alone = len(batch)
		}
		return len(batch) > 1
	case strings.HasPrefix(text, "CROSSSLOT"): // a node of a cluster, behind a plain client
		return len(batch) > 1 && !in.sharded.Swap(true)
	}
	return false
}

// The commands that run the script, boxed once for all.
var evalsha, eval any = "evalsha", "eval"

// call runs the batch script for batch.
func (in *instance) call(batch []*round) (string, error) {
	command := evalsha
	in.script = scriptArg{text: batchSHA}
	if in.sendText {
		command = eval
		in.script.text = batchText
		in.sendText = false
	}
	args := append(in.args[:0], command, &in.script, nil)
	for _, r := range batch {
		args = r.appendKeys(args)
	}
	in.numKeys = len(args) - 3
	args[2] = &in.numKeys
	if in.sharded.Load() && in.numKeys > 0 {
		args[2], args[3] = in.numKeys, batch[0].lock.key
	}
	args = append(args, flag(in.locker.fenced()))
	mute := in.mute || in.sharded.Load()
	if mute {
		args = append(args, &blank)
	} else {
		args = append(args, &in.locker.mark)
	}
	for _, r := range batch {
		args = r.appendArgs(args, mute)
	}
	in.args = args

	ctx := in.locker.ctx
	if !in.locker.owned {
		// The client may dial for long. Those that Open built have their limits.
		c, cancel := context.WithTimeout(ctx, in.locker.sendLimit())
		defer cancel()
		ctx = c
	}
	cmd := redis.NewStringCmd(ctx, args...)
	sent := in.perform(ctx, cmd)
	reply, err := cmd.Result()
	clear(in.args)
	if err == nil {
		err = sent // of a client that does not set it on the command
	}
	return reply, err
}

// perform runs one command. A client panics at some replies that no Redis sends:
// that is an error of this instance, like every other one.
func (in *instance) perform(ctx context.Context, cmd redis.Cmder) (err error) {
	defer func() {
		if p := recover(); p != nil {
			err = fmt.Errorf("the client panicked: %v", p)
			cmd.SetErr(err)
		}
	}()
	return in.client.Process(ctx, cmd)
}

// A scriptArg is the script or its hash in a command, and counts how often the
// client writes that command: not at all if it found no connection, more than
// once if it tried again.
type scriptArg struct {
	text    []byte
	written int
}

var _ encoding.BinaryMarshaler = (*scriptArg)(nil)

// MarshalBinary is called for each time that the command is written.
func (s *scriptArg) MarshalBinary() ([]byte, error) {
	s.written++
	return s.text, nil
}

// deliver hands out the answers of a batch.
func (in *instance) deliver(batch []*round, res result) {
	now := in.locker.now()
	if res.err == nil {
		in.memory.answered = now
	}
	lines := res.lines
	if res.err == nil && len(batch) > 0 && strings.Count(lines, "\n") != len(batch)-1 {
		res.err = fmt.Errorf("unexpected answer %.40q", lines)
		res.ambiguous = true
	}
	for i, r := range batch {
		var line string
		line, lines, _ = strings.Cut(lines, "\n")
		a := answer{vote: failed, err: res.err}
		if res.err == nil {
			a = parseAnswer(line)
		}
		in.settle(r)
		if r.op == opRelease && a.vote == granted {
			a = in.told(r, a)
		}
		if r.op == opAcquire && a.vote == granted && a.lease < 0 {
			in.mute = true
		}
		if r.op.prolongs() {
			a = in.compareClocks(r, a, res, now)
		}
		a = in.weigh(r, a, now)
		if res.ambiguous && r.op.grants() {
			in.remember(r.lock, now)
		}
		if res.ambiguous && r.op == opExtend && r.shorter {
			r.lock.doubt(in.index)
		}
		if r.op == opRelease && errors.Is(a.err, errAbsent) && (res.ambiguous || r.lock.listed(in.index)) {
			// An earlier copy or the clean-up may have deleted it: no sign of a loss.
			a = answer{vote: granted}
		}
		if r.op == opAcquire && res.notRun {
			r.lock.untouched(in.index)
		}
		if a.vote == failed {
			in.undelivered(r, now)
		}
		r.answer(in, a)
		r.leave()
		batch[i] = nil
	}
}

// told takes what a release says of those that it woke.
func (in *instance) told(r *round, a answer) answer {
	in.mute = in.mute || errors.Is(a.err, errMute)
	told := int64(a.fence)
	if r.tell == nil || in.mute || in.sharded.Load() {
		told = -1
	}
	return answer{vote: granted, lease: told}
}

// settle notes that r's operation is not on its way any more.
func (in *instance) settle(r *round) {
	if r.op.prolongs() {
		r.lock.arrives(in.index)
	}
}

// undelivered notes a release that this instance did not confirm.
func (in *instance) undelivered(r *round, now time.Time) {
	if r.op == opRelease && !r.cleaning && r.lock.mayBeOn(in.index) {
		in.remember(r.lock, now)
	}
}

func (in *instance) setSentAt(t time.Time) {
	in.mu.Lock()
	in.sentAt = t
	in.mu.Unlock()
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
	res := in.exchange(nil, now)
	if res.again {
		res = in.exchange(nil, now)
	}
	if res.notRun && isReply(res.err) {
		in.setUp() // it answers; what it refuses, it will say for each operation
	}
}

// isReply reports whether err is an answer of the server.
func isReply(err error) bool {
	if err == nil {
		return false // without a place for what there is not
	}
	var reply redis.Error
	return errors.As(err, &reply)
}

// isTimeout reports whether err is a time-out, of the socket or of a context.
func isTimeout(err error) bool {
	var t net.Error
	return errors.As(err, &t) && t.Timeout() || errors.Is(err, context.DeadlineExceeded)
}

const argsFollow = ", with args beginning with"

// explain turns an error of the client into the cause that a caller reads.
func (in *instance) explain(err error) error {
	switch {
	case err == nil:
		return nil
	case isReply(err) && strings.Contains(err.Error(), "unauthenticated multibulk length"):
		// How a server that wants a password answers a request of more than ten
		// arguments.
		return serverError("NOAUTH Authentication required. (" + err.Error() + ")")
	case isReply(err) && strings.Contains(err.Error(), argsFollow):
		// A server that does not know AUTH or HELLO repeats the password.
		text, _, _ := strings.Cut(err.Error(), argsFollow)
		return serverError(text)
	case errors.Is(err, context.DeadlineExceeded), errors.Is(err, context.Canceled):
		// Of our own context: it must not look like the caller's.
		return &timeoutError{in.locker.sendLimit()}
	}
	return err
}
