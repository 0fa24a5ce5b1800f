package redlock

import (
	"context"
	"crypto/rand"
	"fmt"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/redis/go-redis/v9"
)

// A release wakes who waits in other processes, and of these only one, since each
// that is woken in vain costs the machines as much as one that gets the lock. Whoever
// is refused and waits queues up on the instance, and the script that deletes the lock
// key tells the Locker that is first in the queue, on a channel of its own. That one
// asks when a majority has told it: one message alone may be ahead of the release on
// the others. Messages get lost, so it goes on asking now and then; more often where
// too few instances let us listen.

const (
	minListenRetry = 200 * time.Millisecond // after an error
	maxListenRetry = 5 * time.Second
)

// An ear listens on one instance, from the first time on that somebody waits for
// another process: one of its goroutines subscribes, the other one reads. It goes on
// listening, as a channel on which nobody is told anything costs nothing.
type ear struct {
	in      *instance
	group   sync.WaitGroup
	pubsub  *redis.PubSub
	started bool        // under waitlists.mu
	hears   atomic.Bool // messages reach us: it is of use to queue up
}

// listenLocked wants messages.
func (e *ear) listenLocked() {
	if e.started || e.in.sharded.Load() {
		return
	}
	e.started = true
	e.pubsub = e.in.other.Subscribe(e.in.locker.ctx) // does not dial yet
	e.group.Go(e.subscribe)
	e.group.Go(e.read)
}

// subscribe subscribes to the channel of the Locker. If that fails, the next
// connection of the client does.
func (e *ear) subscribe() {
	l := e.in.locker
	_ = e.guard(func(ctx context.Context) error { return e.pubsub.Subscribe(ctx, l.channel()) })
	<-l.ctx.Done()
	_ = e.pubsub.Close() // ends the reader
}

// read takes the messages.
func (e *ear) read() {
	l := e.in.locker
	retry := minListenRetry
	for l.ctx.Err() == nil {
		var message any
		err := e.guard(func(context.Context) (err error) {
			message, err = e.pubsub.Receive(l.ctx)
			return err
		})
		if err != nil {
			if e.lost(err) {
				return
			}
			timer := time.NewTimer(retry)
			select {
			case <-timer.C:
			case <-l.ctx.Done():
			}
			timer.Stop()
			retry = min(2*retry, maxListenRetry)
			continue
		}
		retry = minListenRetry
		switch m := message.(type) {
		case *redis.Message:
			if l.waitlists.tell(m.Payload, e.in.index) {
				l.passOn(m.Payload, e.in)
			}
		case *redis.Subscription:
			if m.Kind == "subscribe" {
				e.hears.Store(true)
				l.waitlists.hear(e.in.index, true)
			}
		}
	}
}

// lost notes that no message comes on this connection any more, and reports
// whether that is for good.
func (e *ear) lost(err error) (deaf bool) {
	e.hears.Store(false)
	e.in.locker.waitlists.hear(e.in.index, false)
	return isReply(err) && strings.HasPrefix(err.Error(), "NOPERM")
}

// deafen waits a moment until nobody listens any more; the Locker's context has
// ended.
func (l *Locker) deafen() {
	ended := make(chan struct{})
	go func() {
		for _, in := range l.instances {
			in.ear.group.Wait()
		}
		close(ended)
	}()
	timer := time.NewTimer(closeGrace)
	defer timer.Stop()
	select {
	case <-ended:
	case <-timer.C: // in a client that the caller brought
	}
}

// guard runs one call of the client, with a time limit for those that take it. A
// client panics at some replies that no Redis sends.
func (e *ear) guard(call func(context.Context) error) (err error) {
	ctx, cancel := context.WithTimeout(e.in.locker.ctx, e.in.locker.sendLimit())
	defer cancel()
	defer func() {
		if p := recover(); p != nil {
			err = fmt.Errorf("the client panicked: %v", p)
		}
	}()
	return call(ctx)
}

// waitSuffix ends the keys of those that wait. After a lock key it is the queue for that
// one; after the prefix alone the mark that says, for 2 s after somebody has queued up,
// that there is a queue: without it a release looks for none, and costs no more.
const waitSuffix = "{}:waiting"

// channel is where a Locker is told that a lock is free.
func (l *Locker) channel() string { return l.mark + ":" + l.name }

// A message says what to do, and names the release and the lock key.
const (
	askNow   = "now"
	askLater = "later"
)

func readMessage(message string) (kind, release, key string) {
	kind, rest, _ := strings.Cut(message, " ")
	release, key, _ = strings.Cut(rest, " ")
	return kind, release, key
}

// passOn has an instance tell the next one in the queue, if the lock is still free:
// here nobody waits for it any more. It is the release of a lock that nobody has.
func (l *Locker) passOn(message string, in *instance) {
	_, _, key := readMessage(message)
	k := &Lock{locker: l, resource: strings.TrimPrefix(key, l.prefix), key: key, owner: rand.Text()}
	k.phase.Store(over)
	r := l.newRound(context.Background(), opRelease, k)
	r.start, r.tell, r.cleaning = l.now(), true, true
	r.refs.Add(1)
	r.sendTo(in, r.start)
	r.leave()
}

// othersWait reports whether somebody else was told of a release; true also if it is
// not known.
func (r *round) othersWait() bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	known := false
	for i, v := range r.votes {
		switch told := r.leases[i]; {
		case v != granted || told < 0:
		case told > 0:
			return true
		default:
			known = true
		}
	}
	return !known
}
