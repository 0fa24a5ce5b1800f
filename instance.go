package redlock

import (
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	"github.com/redis/go-redis/v9"
)

// Limits of one instance.
const (
	maxBatch  = 500         // operations in one script: keeps the server's pause near 1 ms
	maxBytes  = 1 << 20     // in one script, about: of operations on long resources
	maxQueue  = 20_000      // operations waiting; one more is a failed vote at once
	sendLimit = time.Second // a connection is given up so long after sending
)

// An instance is one Redis master with one first-in-first-out queue. Whatever
// has queued up while a batch was out leaves as the next batch, in one script.
//
// One queue, and one connection for what leaves it, is what makes an owner's
// release arrive after its own acquire, however slow the connection: with a
// connection for each request, a release can overtake the acquire and leave an
// orphan key.
//
// Who may send is settled by the turn: see worker.go.
type instance struct {
	locker *Locker
	name   string
	index  int
	client redis.UniversalClient // of an instance that Open built: made again for each connection
	other  redis.UniversalClient // for what is not a batch

	// Of an instance that Open built.
	remake func(*tap) *redis.Client
	tap    *tap

	// A cluster or a ring sends a script where its first key lives, so that one
	// script must not get two resources; and it hashes that key itself, so that
	// the key must be a plain string.
	sharded atomic.Bool

	quarantinedUntil atomic.Int64 // since Locker.born, as last found

	dials *dialCount // of the client; nil where it does not tell
	ear   ear

	mu        sync.Mutex
	queue     []*round
	spare     []*round   // the queue before the last, to be filled again
	batches   [][]*round // those that have come back, to be filled again
	flights   []flight   // what is out on the wire, the oldest first
	sentAt    time.Time  // when the oldest batch that is out left; zero when there is none
	leftAt    time.Time  // when the youngest did
	down      error      // why the instance is known to be down; nil when it is not
	finishing bool       // the worker is to end when nothing is left to do
	lastProbe bool       // it was probed once more while finishing
	closed    bool       // nothing is taken any more
	leftovers leftovers

	turn      turn
	signalled bool          // the worker is to look, before it waits again
	listening bool          // the worker waits for the wire
	readUntil time.Time     // until when a read of the wire waits
	wire      *wire         // nil: batches go through the client, one at a time
	broken    error         // why the wire has to be given up
	hold      bool          // nothing leaves until all flights are back
	sent      uint64        // how many batches have left
	blocked   bool          // the head of the queue waits for a flight
	redo      []*round      // what came back unrun, to be sent again when all flights are back
	sendText  bool          // the next batch goes with the text of the script
	alone     int           // how many operations are to be sent each in a batch of its own
	mute      bool          // it lets nobody publish
	distance  time.Duration // the shortest way there and back on this wire

	wake chan struct{} // of one place
	done chan struct{} // closed when the worker has ended

	// Of who writes. It is taken before mu.
	pen     sync.Mutex
	args    []any
	numKeys int
	number  uint64
	script  scriptArg
	out     []byte

	// Of who has the turn.
	single    bool      // it is the only one, and the last answer was one operation's, with no other queued
	dull      int       // how many callers were not to look, after the last one that did
	blind     int       // how many still are not to
	proved    uint64    // the connections when the instance last proved itself
	provedAt  time.Time // when it was last asked to
	cold      bool      // no answer yet on the connection
	clockless bool      // it does not tell its time
	astray    bool      // its clock was out of what is possible when last compared
	lags      bool      // it had counted too little time when last compared
	unfit     error     // why its grants do not count; nil if they do
	memory    memory
	probeAt   time.Time     // when to try again, while down
	backoff   time.Duration // between probes
}

func newInstance(l *Locker, index int, name string) *instance {
	in := &instance{
		locker: l, name: name, index: index,
		turn: workers,
		wake: make(chan struct{}, 1),
		done: make(chan struct{}),
		cold: true,
	}
	in.ear.in = in
	return in
}

// build gives in the clients that Open built for it.
func (in *instance) build(remake func(*tap) *redis.Client, other *redis.Client) {
	in.remake, in.client, in.other = remake, other, other
	if remake == nil {
		in.dials = countDials(other)
		return
	}
	in.tap = &tap{}
	in.client = remake(in.tap)
	in.dials = &in.tap.dials
	in.dials.n.Store(1)
}

// bring gives in a client that the caller brought.
func (in *instance) bring(client redis.UniversalClient) {
	in.client = client
	if c, plain := client.(*redis.Client); plain {
		// Shares the pool of the client, and bounds what its owner may have left
		// unbounded: the call that is out comes back.
		in.client = c.WithTimeout(in.locker.sendLimit())
		in.dials = countDials(c)
	} else {
		in.sharded.Store(true)
	}
	in.other = in.client
}

// enqueue queues r. It never blocks: a full queue, or an instance that is down
// or has been silent for too long, is an error at once.
func (in *instance) enqueue(r *round, now time.Time) error {
	in.mu.Lock()
	err := in.acceptsLocked(r, now)
	if err == nil {
		in.queue = append(in.queue, r)
		in.departLocked(r, now)
	}
	in.mu.Unlock()
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
	if err == nil || errNext == nil {
		in.departLocked(r, now)
	}
	in.mu.Unlock()
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
		// A client with time-outs of its own has not come back from its call, or the worker
		// not from writing.
		return &timeoutError{in.locker.sendLimit()}
	case len(in.queue) >= maxQueue && r.op != opRelease: // there are no more of those than of grants
		return errQueueFull
	}
	return nil
}

// A flight is a batch that is out on the wire.
type flight struct {
	number uint64 // which batch of the instance it is
	batch  []*round
	sent   time.Time // not after it left, on the Locker's clock
	left   time.Time // on the one that deadlines are for
	text   bool      // with the text of the script
}

// Limits of what is out at the same time.
const (
	maxFlights = 4 // more would shorten the wait of those that queue by less than a quarter of the distance
	// Below this distance one flight at a time is best: what queues up meanwhile leaves
	// as one batch, which costs the instance less than several, and waits for little.
	farAway = 500 * time.Microsecond
	// A part of the distance that a flight has to have been out before the next one leaves.
	flightGap = 4
	// What an instance takes for an operation, about: it is no distance.
	operationTime = 10 * time.Microsecond
	smallBatch    = 20
)

// sendableLocked reports whether a batch may leave on the wire.
func (in *instance) sendableLocked(real time.Time) bool {
	switch {
	case len(in.queue) == 0, in.wire == nil, in.broken != nil, in.hold, in.blocked, len(in.redo) > 0:
		return false
	case len(in.flights) == 0:
		return true
	}
	return in.mayFollowLocked() && real.Sub(in.leftAt) >= in.distance/flightGap
}

// takeLocked moves the next batch from the queue to the wire, if there is one. An
// operation that nobody wants any more, of an owner that gave the lock up or let it
// expire, stays here: it is not sent after that owner's Release returned, and a
// forgotten lock is not granted after its end.
func (in *instance) takeLocked(now time.Time) (batch, unwanted []*round, text bool) {
	if n := len(in.batches); n > 0 {
		batch, in.batches = in.batches[n-1], in.batches[:n-1]
	}
	most := maxBatch
	if in.alone > 0 {
		in.alone--
		most = 1
	}
	n, size, sharded := 0, 0, in.sharded.Load()
	for _, r := range in.queue {
		size += r.size()
		if len(batch) > 0 &&
			(len(batch) == most || size > maxBytes || sharded && r.lock.key != batch[0].lock.key) {
			break
		}
		if r.op.prolongs() && len(in.flights) > 0 && r.lock.isOnWay(in.index) {
			// Of one lock, no extend leaves before the answer to the last: that one may have to be
			// sent again, and bring the expiry nearer after this one was confirmed.
			in.blocked = true
			break
		}
		n++
		// Before the look at wanted: a Release that misses this one is not missed by that.
		first := r.op.prolongs() && r.lock.leaves(in.index)
		switch {
		case r.op != opRelease && !r.lock.wanted(now):
			if first { // else the one before it is in this batch, and on its way
				r.lock.arrives(in.index)
			}
			unwanted = append(unwanted, r)
			continue
		case r.op.grants():
			r.lock.touched(in.index)
		}
		batch = append(batch, r)
	}
	if n == len(in.queue) {
		clear(in.queue)
		in.queue, in.spare = in.spare[:0], in.queue[:0]
	} else {
		rest := copy(in.queue, in.queue[n:])
		clear(in.queue[rest:])
		in.queue = in.queue[:rest]
	}
	if len(batch) > 0 {
		text, in.sendText = in.sendText, false
	} else if batch != nil {
		in.batches = append(in.batches, batch)
	}
	return batch, unwanted, text
}

// disown answers what was not sent because nobody wants it.
func (in *instance) disown(unwanted []*round) {
	for _, r := range unwanted {
		r.skip(in)
		r.leave()
	}
}

// flyLocked sends the next batch on the wire, unless nobody wants what was queued.
// It is called with the pen, and unlocks mu meanwhile.
func (in *instance) flyLocked(now, real time.Time) {
	w := in.wire
	batch, unwanted, text := in.takeLocked(now)
	if len(batch) > 0 {
		in.sent++
		in.flights = append(in.flights, flight{in.sent, batch, now, real, text})
		in.leftAt = real
		if len(in.flights) == 1 {
			in.sentAt = now
		}
		if limit := real.Add(in.locker.sendLimit()); in.readUntil.After(limit) {
			in.readUntilLocked(limit)
		}
	}
	mute, number := in.mute, in.sent
	in.mu.Unlock()
	in.disown(unwanted)
	var err error
	if len(batch) > 0 {
		in.out = appendCommand(in.out[:0], in.command(batch, number, text, mute))
		clear(in.args)
		err = w.write(in.out, real, in.locker.sendLimit())
		if cap(in.out) > maxBytes {
			in.out = nil
		}
	}
	in.mu.Lock()
	if err != nil && in.broken == nil && in.wire == w {
		in.broken = err
		in.signalLocked()
	}
}
