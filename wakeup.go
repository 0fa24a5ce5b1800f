package redlock

import (
	"context"
	"crypto/rand"
	"fmt"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/redis/go-redis/v9"
)

// A release wakes who waits in other processes: the script that deletes the lock
// key publishes a message on the channel of the same name. A waiter listens on all
// instances, and asks when a majority has told it: one message alone may be ahead
// of the release on the others. Messages get lost, so it goes on asking now and
// then; more often where too few instances let us listen.

const (
	listenOn       = 5 * time.Second        // after the last waiter has gone: the next may come soon
	minListenRetry = 200 * time.Millisecond // after an error
	maxListenRetry = 5 * time.Second
)

// An ear listens on one instance, from the first time on that somebody waits for
// another process. One of its goroutines subscribes, the other one reads.
type ear struct {
	in     *instance
	group  sync.WaitGroup
	wake   chan struct{} // of one place
	pubsub *redis.PubSub

	mu       sync.Mutex
	started  bool
	deaf     bool              // the instance lets nobody listen
	channels map[string]*topic // a channel is the lock key
}

type topic struct {
	unwanted time.Time // since when nobody waits; zero while somebody does
	asked    bool      // to subscribe
	heard    bool      // that it is subscribed
}

// listen wants messages on a channel, and reports whether they come already.
func (e *ear) listen(channel string) bool {
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.deaf || e.in.sharded.Load() {
		return false
	}
	if !e.started {
		e.started = true
		e.channels = map[string]*topic{}
		e.pubsub = e.in.other.Subscribe(e.in.locker.ctx) // does not dial yet
		e.group.Go(e.subscribe)
		e.group.Go(e.read)
	}
	t := e.channels[channel]
	if t == nil {
		t = &topic{}
		e.channels[channel] = t
		e.signal()
	}
	t.unwanted = time.Time{}
	return t.heard
}

// unlisten says that nobody waits for messages on a channel any more.
func (e *ear) unlisten(channel string) {
	e.mu.Lock()
	defer e.mu.Unlock()
	if t := e.channels[channel]; t != nil {
		t.unwanted = e.in.locker.now()
	}
}

// listens reports whether messages on a channel reach us.
func (e *ear) listens(channel string) bool {
	e.mu.Lock()
	defer e.mu.Unlock()
	t := e.channels[channel]
	return t != nil && t.heard
}

func (e *ear) signal() {
	select {
	case e.wake <- struct{}{}:
	default:
	}
}

// subscribe brings the subscriptions to what is wanted.
func (e *ear) subscribe() {
	timer := time.NewTicker(listenOn)
	defer timer.Stop()
	done := e.in.locker.ctx.Done()
	for {
		add, drop := e.changes()
		err := e.guard(func(ctx context.Context) error {
			if len(add) > 0 {
				return e.pubsub.Subscribe(ctx, add...) // also of the next connection, if this one fails
			}
			return nil
		})
		if err == nil && len(drop) > 0 {
			_ = e.guard(func(ctx context.Context) error { return e.pubsub.Unsubscribe(ctx, drop...) })
		}
		select {
		case <-e.wake:
		case <-timer.C:
		case <-done:
			_ = e.pubsub.Close() // ends the reader
			return
		}
	}
}

// changes returns the channels to subscribe to, and those that nobody has wanted
// for long.
func (e *ear) changes() (add, drop []string) {
	e.mu.Lock()
	defer e.mu.Unlock()
	now := e.in.locker.now()
	for channel, t := range e.channels {
		switch {
		case !t.asked:
			t.asked = true
			add = append(add, channel)
		case !t.unwanted.IsZero() && now.Sub(t.unwanted) > listenOn:
			delete(e.channels, channel)
			drop = append(drop, channel)
		}
	}
	return add, drop
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
			l.waitlists.tell(m.Channel, m.Payload, e.in.index)
		case *redis.Subscription:
			if m.Kind == "subscribe" {
				e.subscribed(m.Channel)
			}
		}
	}
}

func (e *ear) subscribed(channel string) {
	e.mu.Lock()
	t := e.channels[channel]
	if t != nil {
		t.heard = true
	}
	e.mu.Unlock()
	if t != nil {
		e.in.locker.waitlists.hear(channel, e.in.index, true)
	}
}

// lost notes that no message comes on this connection any more, and reports
// whether that is for good.
func (e *ear) lost(err error) (deaf bool) {
	e.mu.Lock()
	e.deaf = isReply(err) && strings.HasPrefix(err.Error(), "NOPERM")
	deaf = e.deaf
	var channels []string
	for channel, t := range e.channels {
		t.heard = false
		channels = append(channels, channel)
	}
	e.mu.Unlock()
	for _, channel := range channels {
		e.in.locker.waitlists.hear(channel, e.in.index, false)
	}
	return deaf
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

// waitMark is the key that says, for 2 s after each question of one that waits,
// that somebody does: without it a release tells nobody, and costs no more.
func waitMark(prefix string) string { return prefix + "{}:waiting" }

// takenBy begins the message of an instance that granted the lock to one that was
// woken; the first letters of its owner follow.
const takenBy = "t "

// maxListeners is how many of those that are woken make a difference.
const maxListeners = 32

// wakeUps returns the messages of a Locker's releases, by how many they may wake:
// that number, and who says so.
func wakeUps() []string {
	who := rand.Text()
	texts := make([]string, maxListeners+1)
	for n := range texts {
		texts[n] = fmt.Sprintf("%d %s", max(n, 1), who)
	}
	return texts
}

func (l *Locker) wakeUp(listeners int64) *string {
	return &l.wakeUps[min(max(listeners, 0), maxListeners)]
}

// readWakeUp returns how many a message may wake; own reports whether it is this
// Locker's.
func (l *Locker) readWakeUp(message string) (listeners int, own bool) {
	number, rest, _ := strings.Cut(message, " ")
	who, _, _ := strings.Cut(rest, " ") // the owner follows
	listeners, _ = strconv.Atoi(number)
	_, self, _ := strings.Cut(l.wakeUps[0], " ")
	return min(max(listeners, 1), maxListeners), who == self
}

// othersListen reports whether somebody else was told of a release; true also if it
// is not known.
func (k *Lock) othersListen(r *round) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	known := false
	for i, in := range k.locker.instances {
		told := r.leases[i]
		if r.votes[i] != granted || told < 0 {
			continue
		}
		known = true
		if told > 1 || told == 1 && !in.ear.listens(k.key) {
			return true
		}
	}
	return !known
}
