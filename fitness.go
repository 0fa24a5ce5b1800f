package redlock

import (
	"context"
	"fmt"
	"net"
	"runtime"
	"sync"
	"sync/atomic"
	"time"
	"weak"

	"github.com/redis/go-redis/v9"
)

// What an instance has to prove on every new connection, before its votes count:
// that its clock and ours agree well enough for the fences it may have forgotten.
// The seeds of a client that is far ahead would push a resource's fence, and its
// guard, so far that clients with a right clock could not follow once the fence
// is forgotten.

const (
	proofInterval = time.Second // between two looks at an instance that failed
	proofAge      = time.Minute // and at one that did not: a connection can escape the count
)

// prove checks the instance if there is a new connection since the last time, or
// if it failed then. It costs a round trip for each connection and nothing for an
// operation.
func (in *instance) prove(now time.Time) {
	l := in.locker
	if in.dials == nil || !l.fenced() {
		return
	}
	dials := in.dials.n.Load()
	age := now.Sub(in.provedAt)
	switch {
	case in.unfit != nil && age < proofInterval:
		return
	case in.unfit == nil && in.proved == dials && age < proofAge:
		return
	}
	in.provedAt = now
	before := l.now()
	ctx, cancel := context.WithTimeout(l.ctx, l.sendLimit())
	defer cancel()
	server, err := in.client.Time(ctx).Result()
	after := l.now()
	switch {
	case isReply(err):
		// It may not tell, or does not know: nothing can be proved or disproved.
		if !in.clockless {
			l.observeInstance(in, ClockUnknown, err)
		}
		in.proved, in.unfit, in.clockless = dials, nil, true
	case err != nil:
		in.unfit = fmt.Errorf("its clock could not be asked: %w", in.explain(err))
	default:
		in.proved = dials
		offset := clockOffset(server, before, after)
		err := checkClock(offset, after.Sub(before), l.retention)
		if err != nil && in.unfit == nil {
			l.observeInstance(in, ClockOff, err)
		}
		in.unfit = err
	}
}

// A clockError is the failed vote of an instance whose clock is too far from
// ours.
type clockError struct{ offset, most time.Duration }

func (e *clockError) Error() string {
	return fmt.Sprintf("its clock is %v away from ours, more than %v, half of the fence retention", e.offset.Round(time.Millisecond), e.most)
}

// A dialCount counts the connections of one client. It is a hook, and hooks can't
// be taken off a client again: so there is one for a client, whatever the number
// of Lockers that use it.
type dialCount struct{ n atomic.Uint64 }

var _ redis.Hook = (*dialCount)(nil)

// DialHook counts.
func (d *dialCount) DialHook(next redis.DialHook) redis.DialHook {
	return func(ctx context.Context, network, addr string) (net.Conn, error) {
		d.n.Add(1)
		return next(ctx, network, addr)
	}
}

// ProcessHook does nothing.
func (d *dialCount) ProcessHook(next redis.ProcessHook) redis.ProcessHook { return next }

// ProcessPipelineHook does nothing.
func (d *dialCount) ProcessPipelineHook(next redis.ProcessPipelineHook) redis.ProcessPipelineHook {
	return next
}

// dialCounts finds the hook of a client. It does not keep the client alive.
var dialCounts = struct {
	sync.Mutex
	of map[weak.Pointer[redis.Client]]*dialCount
}{of: map[weak.Pointer[redis.Client]]*dialCount{}}

// countDials returns the counter of c's connections, and hooks it in if there is
// none.
func countDials(c *redis.Client) *dialCount {
	dialCounts.Lock()
	defer dialCounts.Unlock()
	key := weak.Make(c)
	d := dialCounts.of[key]
	if d == nil {
		d = &dialCount{}
		d.n.Store(1) // there may be connections already
		c.AddHook(d)
		dialCounts.of[key] = d
		runtime.AddCleanup(c, func(key weak.Pointer[redis.Client]) {
			dialCounts.Lock()
			defer dialCounts.Unlock()
			delete(dialCounts.of, key)
		}, key)
	}
	return d
}
