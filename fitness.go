package redlock

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net"
	"runtime"
	"strings"
	"sync"
	"sync/atomic"
	"time"
	"weak"

	"github.com/redis/go-redis/v9"
)

// What an instance has to prove on every new connection, before its votes count:
// that it is not one of the others under another name, that it has been up for the
// quarantine, and that its clock and ours agree well enough for the fences it may
// have forgotten. (The seeds of a client that is far ahead would push a resource's
// fence, and its guard, so far that clients with a right clock could not follow once
// the fence is forgotten.)

const (
	proofInterval = time.Second // between two looks at an instance that failed
	proofAge      = time.Minute // and at one that did not: a connection can escape the count
)

// prove checks the instance if there is a new connection since the last time, or
// if it failed then. It costs two round trips for each connection and nothing for
// an operation.
func (in *instance) prove(now time.Time) {
	if in.dials == nil {
		in.tellQuarantineOff(errNoDials)
		return
	}
	dials := in.dials.n.Load()
	if !in.proofIsDue(now) {
		return
	}
	in.provedAt = now
	ctx, cancel := context.WithTimeout(in.locker.ctx, in.locker.sendLimit())
	defer cancel()
	err := func() (err error) {
		defer func() {
			if p := recover(); p != nil { // see perform
				err = fmt.Errorf("the client panicked: %v", p)
			}
		}()
		if err := in.proveIdentity(ctx); err != nil {
			return err
		}
		return in.proveClock(ctx)
	}()
	in.unfit = err
	if err == nil {
		in.proved = dials
	}
}

// proofIsDue reports whether there is a new connection since the last proof, or that
// failed, or is old.
func (in *instance) proofIsDue(now time.Time) bool {
	age := now.Sub(in.provedAt)
	if in.unfit != nil {
		return age >= proofInterval
	}
	return in.proved != in.dials.n.Load() || age >= proofAge
}

// proveIdentity fails if another instance of the list is the same server. It
// learns how long the server has been up.
func (in *instance) proveIdentity(ctx context.Context) error {
	l := in.locker
	if len(l.instances) == 1 && l.quarantine() == 0 {
		return nil
	}
	info, err := in.client.Info(ctx, "server").Result()
	now := l.now()
	if err != nil && (!isReply(err) || strings.HasPrefix(err.Error(), "BUSY")) {
		// A script that has run for seconds is no server that does not tell.
		return fmt.Errorf("it could not be asked who it is: %w", in.explain(err))
	}
	server := newServerInfo(parseInfo(info), now)
	in.memory.meet(server, now)
	if !server.tells {
		in.tellQuarantineOff(err)
	}
	if other := l.identify(in.index, server.runID); other != nil {
		err := fmt.Errorf("it is the same server as %s", other.name)
		if in.unfit == nil {
			l.observeInstance(in, InstanceDuplicate, err)
		}
		return err
	}
	return nil
}

// tellQuarantineOff tells the observer, once, that there is no quarantine.
func (in *instance) tellQuarantineOff(why error) {
	if in.memory.blind || in.locker.quarantine() == 0 {
		return
	}
	in.memory.blind = true
	in.locker.observeInstance(in, QuarantineOff, cmp.Or(why, errNoUptime))
}

var (
	errNoUptime = errors.New("INFO server has no uptime_in_seconds")
	errNoDials  = errors.New("the client does not tell of new connections")
)

// identify notes that instance index is the server with a run id, and returns the
// instance that is the same one already; nil if there is none. A server that is
// listed twice votes once, under the name that was asked first.
func (l *Locker) identify(index int, id string) *instance {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.runIDs == nil {
		l.runIDs = make([]string, len(l.instances))
	}
	for i, other := range l.runIDs {
		if i != index && other == id && id != "" {
			l.runIDs[index] = ""
			return l.instances[i]
		}
	}
	l.runIDs[index] = id
	return nil
}

// proveClock fails if the instance's clock is too far from ours.
func (in *instance) proveClock(ctx context.Context) error {
	l := in.locker
	if !l.fenced() {
		return nil
	}
	before := l.now()
	server, err := in.client.Time(ctx).Result()
	after := l.now()
	switch {
	case isReply(err):
		// It may not tell, or does not know: nothing can be proved or disproved.
		if !in.clockless {
			in.clockless = true
			l.observeInstance(in, ClockUnknown, err)
		}
		return nil
	case err != nil:
		return fmt.Errorf("its clock could not be asked: %w", in.explain(err))
	}
	err = checkClock(clockOffset(server, before, after), after.Sub(before), l.retention)
	if err != nil && in.unfit == nil {
		l.observeInstance(in, ClockOff, err)
	}
	return err
}

// paceGrace is how much more time than it can have an instance may give a key before
// it is told of: a copy of an extend that came a little late explains so much.
const paceGrace = 50 * time.Millisecond

// compareClocks compares what an extend tells of the time that the instance's
// clock has counted with what ours have, and tells the observer where they differ.
// An instance that still gives the key more time than it was ever given does not
// count; nor does one that gives it more than it can have left for the second time in
// a row: the first time, a copy of an extend that came late may explain it.
func (in *instance) compareClocks(r *round, a answer, res result, now time.Time) answer {
	s := &r.lock.sightings[in.index]
	before := *s
	*s = sighting{doubt: before.doubt || res.ambiguous}
	if a.vote != granted || s.doubt {
		return a
	}
	s.from, s.width, s.ttl = res.sent, elapsed(res.sent, now), milliseconds(r.ttl)
	if r.op == opHeal || a.lease < 0 {
		return a
	}
	left := milliseconds(a.lease)
	if !r.shorter {
		s.ttl = max(s.ttl, left)
	}
	l := in.locker
	most := r.lock.longest() + l.driftBase + 2*tick
	var missed time.Duration
	switch {
	case before.ttl == 0:
		missed = min(most-left, 0)
	case !copied(left, milliseconds(r.ttl), elapsed(res.sent, now)):
		missed = before.missed(left, res.sent, now, l.driftFactor, l.driftBase)
	}
	again := in.lags
	in.lags = missed < -paceGrace
	if missed <= 0 && !in.lags {
		in.astray = false
		return a
	}
	err := &paceError{missed}
	if !in.astray {
		in.astray = true
		l.observeInstance(in, ClockAstray, err)
	}
	if in.lags && (again || left > most) {
		return answer{vote: failed, fence: a.fence, err: err}
	}
	return a
}

// copied reports whether a copy of an extend to ttl, which ran before it while it
// was out, explains that left was left of the key. That is no longer than ttl: a
// clock that was set back gives more.
func copied(left, ttl, out time.Duration) bool {
	return left <= ttl && left >= ttl-out-tick
}

// A paceError tells that an instance's clock has counted more time than has gone
// by; or less, if missed is negative.
type paceError struct{ missed time.Duration }

func (e *paceError) Error() string {
	how := "more"
	if e.missed < 0 {
		how = "less"
	}
	return fmt.Sprintf("its clock has counted at least %v %s than ours: it was set, or runs at another rate", e.missed.Abs().Round(time.Millisecond), how)
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

// DialHook counts a connection when it is there: a dial may take long, and who
// was asked meanwhile is not who answers on it.
func (d *dialCount) DialHook(next redis.DialHook) redis.DialHook {
	return func(ctx context.Context, network, addr string) (net.Conn, error) {
		defer d.n.Add(1)
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
