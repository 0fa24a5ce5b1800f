package compare

import (
	"context"
	"errors"
	"fmt"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/quorumlock/redlock/chaos/compare/client"
	"github.com/quorumlock/redlock/internal/redistest"
)

// An instance is what an endpoint of a client leads to: a server behind a proxy,
// and where there is a replica, whichever of the two is the master.
type instance struct {
	proxy   *redistest.Proxy
	master  node
	replica node             // nil without
	link    *redistest.Proxy // between replica and master
}

// A span is what an instance went through.
type span struct {
	instance int
	state    string
	from, to time.Duration // since the start; equal for an event
}

// An arena is one variant at work.
type arena struct {
	*plan
	variant   variant
	binary    []string // of a client process: its path and arguments
	instances []*instance
	registers *client.Registers
	clients   []*process
	start     time.Time
	spans     []span
	open      map[int]int // the span of an instance that has not ended
	slots     []slot      // with the times at which things really happened
}

// setUp starts everything of a; the caller closes it, also after an error.
func (a *arena) setUp(ctx context.Context) (err error) {
	a.open = map[int]int{}
	for i := range a.variant.n {
		in, err := a.newInstance(i)
		if in != nil {
			a.instances = append(a.instances, in)
		}
		if err != nil {
			return err
		}
	}
	if a.registers, err = client.NewRegisters(); err != nil {
		return err
	}
	job := a.job
	job.Register = a.registers.Addr()
	for _, in := range a.instances {
		job.Endpoints = append(job.Endpoints, in.proxy.Addr())
	}
	for i := range a.plan.clients {
		job.Client = i
		p, err := startProcess(a.binary, job)
		if err != nil {
			return err
		}
		a.clients = append(a.clients, p)
	}
	for _, p := range a.clients {
		if err := p.expect(ctx, "ready"); err != nil {
			return err
		}
	}
	return nil
}

func (a *arena) newInstance(i int) (in *instance, err error) {
	in = &instance{}
	defer func() {
		if err != nil {
			err = errors.Join(err, in.close())
			in = nil
		}
	}()
	if a.embedded {
		e, err := launchEmbedded()
		if err != nil {
			return in, err
		}
		in.master = e
		if in.proxy, err = redistest.LaunchProxy(e.addr); err != nil {
			return in, err
		}
		e.proxy = in.proxy
		return in, nil
	}
	clock := slices.ContainsFunc(a.plan.slots, func(s slot) bool { return s.needsClock && s.victim(a.variant.n) == i })
	if in.master, err = launchNode(clock); err != nil {
		return in, err
	}
	if in.proxy, err = redistest.LaunchProxy(in.master.Addr()); err != nil {
		return in, err
	}
	if !a.variant.replica {
		return in, nil
	}
	if in.replica, err = launchNode(clock); err != nil {
		return in, err
	}
	if in.link, err = redistest.LaunchProxy(in.master.Addr()); err != nil {
		return in, err
	}
	if err = in.follow(in.replica); err != nil {
		return in, err
	}
	return in, in.synced(5 * time.Second)
}

func launchNode(clock bool) (node, error) {
	s, err := launchServer(clock)
	if err != nil {
		return nil, err
	}
	return s, nil
}

func (in *instance) close() error {
	var errs []error
	for _, n := range []node{in.master, in.replica} {
		if n != nil {
			errs = append(errs, n.Close())
		}
	}
	for _, p := range []*redistest.Proxy{in.proxy, in.link} {
		if p != nil {
			p.Close()
		}
	}
	return errors.Join(errs...)
}

func (a *arena) close() error {
	var errs []error
	for _, p := range a.clients {
		errs = append(errs, p.close())
	}
	if a.registers != nil {
		a.registers.Close()
	}
	for _, in := range a.instances {
		errs = append(errs, in.close())
	}
	return errors.Join(errs...)
}

// since returns the time since the start.
func (a *arena) since() time.Duration { return time.Since(a.start) }

// until waits until d after the start.
func (a *arena) until(ctx context.Context, d time.Duration) error {
	select {
	case <-ctx.Done():
		return context.Cause(ctx)
	case <-time.After(d - a.since()):
		return nil
	}
}

// run lets the clients work and the faults happen.
func (a *arena) run(ctx context.Context) (*record, error) {
	a.start = time.Now()
	for _, p := range a.clients {
		if err := p.say("start"); err != nil {
			return nil, err
		}
	}
	r := &record{variant: a.variant, plan: a.plan, measuredFrom: a.healthy / 4}
	if err := a.until(ctx, r.measuredFrom); err != nil {
		return nil, err
	}
	before, begin := a.usage(), a.since()
	for i, s := range a.plan.slots {
		if err := a.until(ctx, s.from); err != nil {
			return nil, err
		}
		if i == 0 {
			r.measuredFrom, r.measuredTo, r.used = begin, a.since(), a.usage().less(before)
		}
		if err := a.suffer(ctx, s); err != nil {
			return nil, fmt.Errorf("%s: %w", s.title, err)
		}
	}
	if err := a.until(ctx, a.total); err != nil {
		return nil, err
	}
	for _, p := range a.clients {
		if err := p.say("stop"); err != nil {
			return nil, err
		}
	}
	for i, p := range a.clients {
		t, err := p.testify(ctx)
		if err != nil {
			return nil, fmt.Errorf("client %d: %w", i, err)
		}
		if len(t.Errors) > 0 {
			return nil, fmt.Errorf("client %d: the registers failed: %s", i, t.Errors[0])
		}
		r.seen = append(r.seen, t)
	}
	r.start, r.spans, r.slots, r.log = a.start, a.spans, a.slots, a.registers.Log()
	for _, in := range a.instances {
		r.endpoints = append(r.endpoints, in.proxy.Addr())
	}
	return r, nil
}

// suffer lets one fault happen, and end.
func (a *arena) suffer(ctx context.Context, s slot) error {
	if !s.hits(a.variant) {
		a.slots = append(a.slots, s)
		return a.until(ctx, s.heal)
	}
	i := s.victim(len(a.instances))
	in := a.instances[i]
	heal := s.heal
	s.from = a.since()
	if err := s.begin(a, in); err != nil {
		return err
	}
	if s.takesMaster && in.replica != nil {
		if err := a.until(ctx, a.since()+a.detect); err != nil {
			return err
		}
		if err := a.promote(in); err != nil {
			return err
		}
	}
	if err := a.until(ctx, heal); err != nil {
		return err
	}
	if s.end != nil {
		if err := s.end(a, in); err != nil {
			return err
		}
	}
	s.heal = a.since()
	a.slots = append(a.slots, s)
	return nil
}

// enter begins a state of an instance, leave ends it.
func (a *arena) enter(in *instance, state string) {
	i := slices.Index(a.instances, in)
	a.open[i] = len(a.spans)
	a.spans = append(a.spans, span{i, state, a.since(), a.total})
}

func (a *arena) leave(in *instance) {
	i := slices.Index(a.instances, in)
	if s, ok := a.open[i]; ok {
		a.spans[s].to = a.since()
		delete(a.open, i)
	}
}

// mark notes something that happened to an instance at one moment.
func (a *arena) mark(in *instance, what string) {
	now := a.since()
	a.spans = append(a.spans, span{slices.Index(a.instances, in), what, now, now})
}

func (a *arena) kill(in *instance) error {
	a.enter(in, "down")
	return in.master.Kill()
}

// promote is what a monitor does: the replica becomes the master, clients are led
// to it, and what was the master will be its replica.
func (a *arena) promote(in *instance) error {
	if _, err := in.replica.Do("REPLICAOF", "NO", "ONE"); err != nil {
		return err
	}
	in.master, in.replica = in.replica, in.master
	in.proxy.Retarget(in.master.Addr())
	in.link.Retarget(in.master.Addr())
	in.link.HoldReplies(false)
	in.link.Break()
	a.reachable(in)
	in.proxy.Break()
	a.leave(in)
	a.mark(in, "replica promoted")
	return nil
}

// comeBack starts what was killed. A replica was promoted meanwhile, if there was
// one.
func (a *arena) comeBack(in *instance) error {
	if in.replica != nil {
		return errors.Join(in.replica.Restart(), in.follow(in.replica))
	}
	defer a.leave(in)
	return in.master.Restart()
}

func (a *arena) hang(in *instance) error {
	a.enter(in, "hung")
	return in.master.Pause()
}

func (a *arena) goOn(in *instance) error {
	if in.replica != nil {
		return errors.Join(in.replica.Resume(), in.follow(in.replica))
	}
	defer a.leave(in)
	return in.master.Resume()
}

func (a *arena) slow(in *instance) error {
	a.enter(in, "slow")
	in.proxy.Delay(a.slowness)
	return nil
}

func (a *arena) fast(in *instance) error {
	in.proxy.Delay(0)
	a.leave(in)
	return nil
}

// cut drops what is sent. Connections that are opened meanwhile seem to be made, as
// the proxy is there; what is sent on them is dropped, too.
func (a *arena) cut(in *instance) error {
	a.enter(in, "cut off")
	in.proxy.SwallowRequests(true)
	in.proxy.SwallowReplies(true)
	return nil
}

func (a *arena) reachable(in *instance) {
	in.proxy.SwallowRequests(false)
	in.proxy.SwallowReplies(false)
}

// reconnect ends the cut. What was swallowed left half a conversation on the
// connections that stood: no network would go on with those.
func (a *arena) reconnect(in *instance) error {
	if in.replica != nil {
		return in.follow(in.replica)
	}
	a.reachable(in)
	in.proxy.Break()
	a.leave(in)
	return nil
}

func (a *arena) restart(in *instance) error {
	a.enter(in, "down")
	err := in.master.Restart()
	a.leave(in)
	a.mark(in, "restarted empty")
	return err
}

// loseWrites lets the master go on for a while without its replica, and die.
func (a *arena) loseWrites(in *instance) error {
	a.mark(in, "replication cut")
	in.link.HoldReplies(true)
	time.Sleep(a.cutLink)
	return a.kill(in)
}

func (a *arena) clockForward(in *instance) error {
	a.enter(in, "clock ahead")
	return in.master.Shift(2 * a.job.TTL)
}

func (a *arena) clockBack(in *instance) error {
	a.leave(in)
	return in.master.Shift(-2 * a.job.TTL)
}

// stopped is the client that is paused.
func (a *arena) stopped() *process { return a.clients[0] }

func (a *arena) stopClient(*instance) error { return a.stopped().Pause() }
func (a *arena) wakeClient(*instance) error { return a.stopped().Resume() }

func (a *arena) flush(in *instance) error {
	a.mark(in, "flushed")
	return in.master.Flush()
}

// follow makes n the replica of the instance's master.
func (in *instance) follow(n node) error {
	host, port, _ := strings.Cut(in.link.Addr(), ":")
	_, err := n.Do("REPLICAOF", host, port)
	return err
}

// synced returns when the replica has what the master has.
func (in *instance) synced(limit time.Duration) error {
	for deadline := time.Now().Add(limit); ; time.Sleep(20 * ms) {
		info, err := in.replica.Do("INFO", "replication")
		if err == nil && strings.Contains(fmt.Sprint(info), "master_link_status:up") {
			return nil
		}
		if time.Now().After(deadline) {
			return errors.Join(fmt.Errorf("no replica within %v", limit), err)
		}
	}
}

// A usage is what was used so far.
type usage struct {
	commands           float64 // that clients sent to the instances
	serverCPU, clients time.Duration
}

func (u usage) less(v usage) usage {
	return usage{u.commands - v.commands, u.serverCPU - v.serverCPU, u.clients - v.clients}
}

var callsLine = regexp.MustCompile(`(?m)^cmdstat_([^:|]+)[^:]*:calls=(\d+),`)

// usage asks everybody. INFO itself does not count, nor do the commands of
// replication.
func (a *arena) usage() usage {
	var u usage
	for _, in := range a.instances {
		for _, n := range []node{in.master, in.replica} {
			if n != nil {
				u.serverCPU += cpuTime(n.PID())
			}
		}
		info, err := in.master.Do("INFO", "commandstats")
		if err != nil {
			continue // an embedded instance
		}
		ignored := append([]string{"info", "replconf", "psync", "ping"}, a.variant.scripted...)
		for _, m := range callsLine.FindAllStringSubmatch(fmt.Sprint(info), -1) {
			if calls, _ := strconv.ParseFloat(m[2], 64); !slices.Contains(ignored, m[1]) {
				u.commands += calls
			}
		}
	}
	for _, p := range a.clients {
		u.clients += cpuTime(p.PID())
	}
	return u
}
