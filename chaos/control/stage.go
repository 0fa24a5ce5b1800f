package control

import (
	"context"
	"errors"
	"fmt"
	"os"
	"runtime"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/quorumlock/redlock"
	"github.com/quorumlock/redlock/fence"
	"github.com/quorumlock/redlock/internal/redistest"
)

const (
	resource = "r"
	lease    = 30 * time.Second       // nobody waits for its end
	brief    = 300 * time.Millisecond // waited for
	patience = 20 * time.Second       // for what must happen
)

// An Outcome is what came of one play.
type Outcome struct {
	Harm    string // what went wrong at the resource
	Refusal error  // what stopped the story
	Failure string // why the play says nothing
	Skipped string // why there was none
}

// A Stage is where a story is played once: servers, clients and a resource that end
// with it. It is a testing.TB of its own, so that servers of redistest serve a
// program as they serve a test. A story runs on a goroutine that a refusal ends.
type Stage struct {
	testing.TB // nil: its methods are those below, and no others
	ctx        context.Context
	how        how
	outcome    Outcome
	cleanups   []func()
	resource   register
	holders    int
}

// how a story is played.
type how struct {
	fault, fenced, quarantined bool
	finding                    string // of a Check at each Locker; none: there is no Check
}

// play plays a story once, and returns when nothing of it is left.
func play(ctx context.Context, h how, story func(*Stage)) Outcome {
	ctx, cancel := context.WithTimeout(ctx, 3*patience)
	defer cancel()
	x := &Stage{ctx: ctx, how: h}
	if h.fenced {
		x.resource.guard = &fence.HighWater{}
	}
	done := make(chan struct{})
	go func() {
		defer close(done)
		defer x.end()
		story(x)
	}()
	<-done
	return x.outcome
}

func (x *Stage) end() {
	for len(x.cleanups) > 0 {
		f := x.cleanups[len(x.cleanups)-1]
		x.cleanups = x.cleanups[:len(x.cleanups)-1]
		f()
	}
}

// The methods of testing.TB that redistest needs.

// Helper does nothing.
func (x *Stage) Helper() {}

// Context ends with the play.
func (x *Stage) Context() context.Context { return x.ctx }

// Cleanup calls f when the play is over, the last one first.
func (x *Stage) Cleanup(f func()) { x.cleanups = append(x.cleanups, f) }

// Errorf notes that the play says nothing.
func (x *Stage) Errorf(format string, args ...any) {
	if x.outcome.Failure == "" {
		x.outcome.Failure = fmt.Sprintf(format, args...)
	}
}

// Fatalf is Errorf, and ends the story.
func (x *Stage) Fatalf(format string, args ...any) {
	x.Errorf(format, args...)
	runtime.Goexit()
}

// Fatal is Fatalf.
func (x *Stage) Fatal(args ...any) { x.Fatalf("%s", fmt.Sprint(args...)) }

// Skipf ends the story, for want of something.
func (x *Stage) Skipf(format string, args ...any) {
	x.outcome.Skipped = fmt.Sprintf(format, args...)
	runtime.Goexit()
}

// TempDir returns a directory that ends with the play.
func (x *Stage) TempDir() string {
	dir, err := os.MkdirTemp("", "control-")
	x.must(err)
	x.Cleanup(func() { _ = os.RemoveAll(dir) })
	return dir
}

// What stories are made of.

// Fault does what goes wrong; unless the play is the one without it.
func (x *Stage) Fault(f func()) {
	if x.how.fault {
		f()
	}
}

// Refuse ends the story: err keeps it from doing harm.
func (x *Stage) Refuse(err error) {
	x.outcome.Refusal = err
	runtime.Goexit()
}

func (x *Stage) must(err error) {
	if err != nil {
		x.Fatal(err)
	}
}

// Until waits for a condition.
func (x *Stage) Until(what string, condition func() bool) {
	for end := time.Now().Add(patience); !condition(); time.Sleep(2 * time.Millisecond) {
		if x.ctx.Err() != nil || time.Now().After(end) {
			x.Fatalf("it does not happen that %s", what)
		}
	}
}

// Go calls f besides the story; what it returns waits for its end.
func (x *Stage) Go(f func()) (wait func()) {
	done := make(chan struct{})
	go func() {
		defer close(done)
		f()
	}()
	wait = func() { <-done }
	x.Cleanup(wait)
	return wait
}

// Brief is a lease that the story outlasts. Without the fault it is as long as any.
func (x *Stage) Brief() time.Duration {
	if x.how.fault {
		return brief
	}
	return lease
}

// Outlast is the fault that what happens takes longer than the lease of a lock on
// these servers.
func (x *Stage) Outlast(servers ...*redistest.Server) {
	x.Fault(func() {
		for _, s := range servers {
			x.Until("the lease ends", func() bool { return gone(x, s) })
		}
	})
}

// gone reports whether a server has no lock. Unlike GET, it does not touch the key,
// which would keep it from being evicted.
func gone(x *Stage, s *redistest.Server) bool {
	return s.MustDo(x, "PTTL", resource) == int64(-2)
}

// Servers starts n servers. Where the quarantine is on they have been up for an
// hour, so that it is about what happens and not about their start.
func (x *Stage) Servers(n int, args ...string) []*redistest.Server {
	if x.how.quarantined {
		return x.OldServers(n, args...)
	}
	return redistest.StartN(x, n, args...)
}

// OldServers starts n servers that have been up for an hour.
func (x *Stage) OldServers(n int, args ...string) []*redistest.Server {
	servers := make([]*redistest.Server, n)
	for i, c := range x.Old(n, args...) {
		servers[i] = c.Server
	}
	return servers
}

// Old starts n servers with clocks of their own, that have been up for an hour and
// are right.
func (x *Stage) Old(n int, args ...string) []*redistest.Clock {
	clocks := make([]*redistest.Clock, n)
	for i := range clocks {
		c := redistest.StartWithClock(x, args...)
		c.Jump(-time.Hour)
		x.must(c.Restart())
		c.Jump(time.Hour)
		clocks[i] = c
	}
	for _, c := range clocks {
		x.upFor(c.Server, time.Hour)
	}
	return clocks
}

// upFor waits until s says that it has been up for d.
func (x *Stage) upFor(s *redistest.Server, d time.Duration) {
	x.Until(fmt.Sprintf("it has been up for %v", d), func() bool {
		seconds, err := strconv.Atoi(info(x, s, "uptime_in_seconds"))
		return err == nil && time.Duration(seconds)*time.Second >= d
	})
}

// info returns a field of a server's INFO.
func info(x *Stage, s *redistest.Server, field string) string {
	text, _ := s.MustDo(x, "INFO").(string)
	_, rest, _ := strings.Cut(text, "\r\n"+field+":")
	value, _, _ := strings.Cut(rest, "\r\n")
	return value
}

// follow makes s a replica of the server at addr, and waits until it has all.
func (x *Stage) follow(s *redistest.Server, addr string) {
	host, port, _ := strings.Cut(addr, ":")
	s.MustDo(x, "REPLICAOF", host, port)
	x.Until("the replica follows", func() bool { return info(x, s, "master_link_status") == "up" })
}

// Proxies returns a proxy for each server.
func (x *Stage) Proxies(servers []*redistest.Server) []*redistest.Proxy {
	proxies := make([]*redistest.Proxy, len(servers))
	for i, s := range servers {
		proxies[i] = redistest.NewProxy(x, s.Addr())
	}
	return proxies
}

func addrs(proxies []*redistest.Proxy) []string {
	all := make([]string, len(proxies))
	for i, p := range proxies {
		all[i] = p.Addr()
	}
	return all
}

// Nowhere returns an address at which nothing listens: what a client that can't
// reach a server sees of it.
func (x *Stage) Nowhere() string {
	addr, err := redistest.FreeAddr()
	x.must(err)
	return addr
}

// Locker opens a Locker: without fencing, unless the resource checks tokens, and
// without the quarantine, unless that is on: it would keep new servers waiting.
func (x *Stage) Locker(endpoints []string, opts ...redlock.Option) *redlock.Locker {
	l, err := redlock.Open(endpoints, x.options(opts)...)
	return x.opened(l, err)
}

func (x *Stage) options(opts []redlock.Option) []redlock.Option {
	all := []redlock.Option{redlock.WithInstanceTimeout(patience / 4)} // a busy machine is no fault
	if !x.how.fenced {
		all = append(all, redlock.WithoutFencing())
	}
	if !x.how.quarantined {
		all = append(all, redlock.WithQuarantine(0))
	}
	return append(all, opts...)
}

func (x *Stage) opened(l *redlock.Locker, err error) *redlock.Locker {
	x.must(err)
	x.Cleanup(func() { _ = l.Close() })
	if x.how.finding != "" {
		x.check(l)
	}
	return l
}

// check ends the story if Check warns of what it is asked for.
func (x *Stage) check(l *redlock.Locker) {
	report, err := l.Check(x.ctx)
	if report == nil {
		x.Fatal(err)
	}
	found := report.Findings
	for _, in := range report.Instances {
		found = append(found, in.Findings...)
	}
	for _, f := range found {
		if f.Check == x.how.finding && f.Severity >= redlock.Warning {
			x.Refuse(fmt.Errorf("%w: %s: %s: %s", errFound, f.Severity, f.Check, f.Text))
		}
	}
}

// Meet lets a Locker meet its instances.
func (x *Stage) Meet(l *redlock.Locker) {
	x.Until("it meets its instances", func() bool {
		k, err := l.TryAcquire(x.ctx, "meeting", lease)
		return err == nil && k.Release(x.ctx) == nil
	})
}

// Hold locks the resource. The story ends where that is refused: the lock is taken,
// or an instance in quarantine. It says nothing where the first one is refused it.
func (x *Stage) Hold(l *redlock.Locker, ttl time.Duration) *Holder {
	first := x.holders == 0
	h, err := x.acquire(l, ttl)
	if err != nil && !first {
		x.Refuse(err)
	}
	x.must(err)
	return h
}

// MustHold is Hold for one that has to get the lock.
func (x *Stage) MustHold(l *redlock.Locker, ttl time.Duration) *Holder {
	h, err := x.acquire(l, ttl)
	x.must(err)
	return h
}

func (x *Stage) acquire(l *redlock.Locker, ttl time.Duration) (h *Holder, err error) {
	x.Until("it is granted or refused", func() bool {
		var lock *redlock.Lock
		if lock, err = l.TryAcquire(x.ctx, resource, ttl); err != nil {
			return errors.Is(err, redlock.ErrTaken) || errors.Is(err, redlock.ErrQuarantined)
		}
		h = x.holder(lock.FencingToken())
		h.lock = lock
		return true
	})
	return h, err
}

// BareMajority is what most stories begin with: three servers, and a holder whose
// lock is on two of them, as it could not reach the third. So one that forgets is
// enough for a second majority.
func (x *Stage) BareMajority(servers []*redistest.Server) (first *Holder) {
	a, b := servers[0], servers[1]
	return x.Hold(x.Locker([]string{a.Addr(), b.Addr(), x.Nowhere()}), lease)
}

// Second is how most stories end: another one, who reaches all servers, holds the
// lock, too, and both write.
func (x *Stage) Second(servers []*redistest.Server, first *Holder) {
	x.Collide(first, x.Hold(x.Locker(redistest.Addrs(servers)), lease))
}

// Collide lets two write that both believe to be the holder: the newer one, then the
// older one.
func (x *Stage) Collide(older, newer *Holder) {
	if !older.Believes() || !newer.Believes() {
		x.Fatalf("the play took longer than a lease of %v", lease)
	}
	newer.Write()
	older.Write()
}
