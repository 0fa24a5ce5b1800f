package redlock

import (
	"cmp"
	"context"
	"crypto/rand"
	"fmt"
	"net"
	"slices"
	"strings"
	"time"

	"github.com/redis/go-redis/v9"
)

const (
	clockSamples = 4                      // the best of them counts
	rateInterval = 250 * time.Millisecond // between the two looks at a clock
	rateMost     = time.Second            // the same, of an instance that is far away
	trialTTL     = time.Second            // of the lock of a trial; its fence has twice that
)

// facts are what an instance told.
type facts struct {
	lost   error           // why it was not asked any further: silence, no connection, no entry
	trips  []time.Duration // how long its answers took
	info   map[string]string
	config map[string]string

	early, late clockSample // a moment apart; the late one may be missing

	trialErr  error // why it does not do what a lock needs
	infoErr   error // why it does not tell
	configErr error
	timeErr   error
	shards    string // how many masters its cluster has; "" when it does not tell
	plain     bool   // all that is about one server
}

// A clockSample is one reading of a server's clock.
type clockSample struct {
	server, before, after time.Time // before and after are ours
}

func (s clockSample) trip() time.Duration   { return s.after.Sub(s.before) }
func (s clockSample) offset() time.Duration { return clockOffset(s.server, s.before, s.after) }

// rateUntil returns how fast the server's clock ran from s to t, in terms of our
// monotonic clock, and the largest error of that.
func (s clockSample) rateUntil(t clockSample) (rate, most float64) {
	interval := t.before.Add(t.trip() / 2).Sub(s.before.Add(s.trip() / 2)).Seconds()
	return t.server.Sub(s.server).Seconds() / interval, (s.trip() + t.trip()).Seconds() / 2 / interval
}

// rateDiffers reports whether a rate is not 1 by more than tolerance, whatever the
// error of the measurement.
func rateDiffers(rate, most, tolerance float64) bool {
	return max(rate-1, 1-rate)-most > tolerance
}

// An inspection asks one instance.
type inspection struct {
	*facts
	in     *instance
	client redis.UniversalClient
	ctx    context.Context //nolint:containedctx // of the Check, of which it is a part

	resource string // which it tries to lock
	token    uint64 // of the next try: more than those before it
}

// inspect asks the instance everything, until ctx ends.
func (in *instance) inspect(ctx context.Context) *facts {
	client, done := in.inspected(ctx)
	defer done()
	_, plain := client.(*redis.Client)
	p := &inspection{
		facts: &facts{plain: plain}, in: in, client: client, ctx: ctx,
		resource: "redlock-check-" + rand.Text(),
		token:    uint64(in.locker.now().UnixMicro()), //nolint:gosec // of a clock after 1970
	}
	p.askInfo()
	p.early = p.askTime()
	p.askConfig()
	p.try("eval", string(batchText)) // a restart forgets the script: both are needed
	p.try("evalsha", string(batchSHA))
	p.watchClock()
	return p.facts
}

// inspected returns the client to ask with. For a client that Open built it is a
// copy with a connection of its own: so no question waits for a batch, nor a batch
// for a question, and closing it ends a read that nobody waits for any more, which
// the end of a context does not. A client that the caller brought is asked as it is, with whatever is hooked
// into it.
func (in *instance) inspected(ctx context.Context) (client redis.UniversalClient, done func()) {
	c, plain := in.other.(*redis.Client)
	if !plain || !in.locker.owned {
		return in.other, func() {}
	}
	o := *c.Options()
	o.MaxRetries = cmp.Or(o.MaxRetries, -1) // what was set to none reads as the default
	o.PoolSize, o.MinIdleConns, o.PipelinePoolSize = 1, 0, -1
	dial := o.Dialer
	o.Dialer = func(dialing context.Context, network, addr string) (net.Conn, error) {
		dialing, cancel := context.WithCancel(dialing)
		defer cancel()
		defer context.AfterFunc(ctx, cancel)()
		return dial(dialing, network, addr)
	}
	copied := redis.NewClient(&o)
	return copied, func() { _ = copied.Close() }
}

// ask puts one question, of the send limit at most: a client may ignore its
// context, and is left alone then. A connection that broke says little of the
// instance: the question is put twice.
func ask[T any](p *inspection, question func(ctx context.Context) (T, error)) (T, error) {
	var none T
	if p.lost != nil {
		return none, p.lost
	}
	type reply struct {
		value T
		err   error
		trip  time.Duration
	}
	l := p.in.locker
	ctx, cancel := context.WithTimeout(p.ctx, l.sendLimit())
	defer cancel()
	replies := make(chan reply, 1)
	l.inside.Add(1) // Close waits for it, as for a call
	go func() {
		defer l.exit()
		var r reply
		defer func() {
			if v := recover(); v != nil { // see perform
				r.err = fmt.Errorf("the client panicked: %v", v)
			}
			replies <- r
		}()
		for range 2 {
			start := time.Now()
			r.value, r.err = question(ctx)
			r.trip = time.Since(start)
			if r.err == nil || isReply(r.err) || isTimeout(r.err) || ctx.Err() != nil {
				break
			}
		}
	}()
	var r reply
	select {
	case r = <-replies:
	case <-ctx.Done():
		r.err = ctx.Err()
	}
	switch {
	case r.err == nil, isReply(r.err) && !bars(r.err) && !says(r.err, busy...):
		p.trips = append(p.trips, r.trip)
		return r.value, p.in.explain(r.err)
	case p.ctx.Err() != nil:
		p.lost = errPending
	default:
		p.lost = p.in.explain(r.err)
	}
	return none, p.lost
}

// bars reports whether err is the answer to a client that is not let in.
func bars(err error) bool {
	return says(err, "NOAUTH", "WRONGPASS", "DENIED", "unauthenticated", "invalid password", "AUTH <password>", "command 'auth'", "max number of clients")
}

// busy is how an instance begins that answers nothing else for now.
var busy = []string{"BUSY", "LOADING", "MASTERDOWN"}

// elsewhere is how a node of a cluster begins that does not have the key.
var elsewhere = []string{"MOVED", "ASK ", "CLUSTERDOWN", "CROSSSLOT"}

// says reports whether the text of err contains one of texts.
func says(err error, texts ...string) bool {
	return err != nil && slices.ContainsFunc(texts, func(t string) bool { return strings.Contains(err.Error(), t) })
}

func (p *inspection) askInfo() {
	text, err := ask(p, func(ctx context.Context) (string, error) { return p.client.Info(ctx).Result() })
	p.info, p.infoErr = parseInfo(text), err
	if !p.plain || p.info["cluster_enabled"] != "1" {
		return
	}
	text, _ = ask(p, func(ctx context.Context) (string, error) { return p.client.ClusterInfo(ctx).Result() })
	p.shards = parseInfo(text)["cluster_size"]
}

// askTime returns the best of some looks at the clock: the one with the shortest
// round trip, of which half is its error.
func (p *inspection) askTime() clockSample {
	var best clockSample
	for range clockSamples {
		if p.timeErr != nil { // each refusal is a line in the server's log
			break
		}
		var s clockSample
		s, p.timeErr = ask(p, func(ctx context.Context) (s clockSample, err error) {
			s.before = p.in.locker.now()
			s.server, err = p.client.Time(ctx).Result()
			s.after = p.in.locker.now()
			return s, err
		})
		if p.timeErr == nil && (best.server.IsZero() || s.trip() < best.trip()) {
			best = s
		}
	}
	return best
}

// watchClock looks at the clock again, some time after the first look: the longer,
// the farther away the instance is. It does not spend the last of the caller's time
// on that, and asks no cluster, in which another node would answer.
func (p *inspection) watchClock() {
	if p.lost != nil || p.timeErr != nil || !p.plain {
		return
	}
	wait := rateInterval
	if d := p.in.locker.driftFactor; d > 0 {
		wait = min(max(wait, time.Duration(float64(p.early.trip())*2/d)), rateMost)
	}
	wait -= time.Since(p.early.after)
	if end, ok := p.ctx.Deadline(); ok && time.Until(end) < wait+clockSamples*2*p.early.trip() {
		return
	}
	timer := time.NewTimer(wait)
	defer timer.Stop()
	select {
	case <-timer.C:
		p.late = p.askTime()
	case <-p.ctx.Done():
	}
}

// askConfig asks what only CONFIG tells.
func (p *inspection) askConfig() {
	if p.info["aof_enabled"] != "1" {
		return
	}
	p.config, p.configErr = ask(p, func(ctx context.Context) (map[string]string, error) {
		return p.client.ConfigGet(ctx, "*append*").Result()
	})
}

// try locks: it acquires, raises, extends and releases with the script that locks,
// as a new owner of a resource that nobody else uses. All is one batch, and so one
// atomic step, after which only the fence is left, for two seconds: a request that
// arrives late does no harm either.
func (p *inspection) try(command, script string) {
	if p.trialErr != nil {
		return
	}
	l := p.in.locker
	k := &Lock{locker: l, resource: p.resource, key: l.prefix + p.resource, owner: rand.Text()}
	ttl, keep, raised := serverTTL(trialTTL), serverTTL(2*trialTTL), p.token+1
	ops := []*round{
		{op: opAcquire, lock: k, ttl: ttl, keep: keep, token: p.token},
		{op: opExtend, lock: k, ttl: ttl, keep: keep, token: raised},
		{op: opRelease, lock: k},
	}
	if l.fenced() {
		k.fence = fenceKey(l.prefix, p.resource)
		ops = slices.Insert(ops, 1, &round{op: opRaise, lock: k, token: raised})
	}
	p.token = raised + 1
	args := []any{command, script, 0}
	for _, o := range ops {
		args = o.appendKeys(args)
	}
	args[2], args[3] = len(args)-3, k.key // see call
	args = append(args, flag(l.fenced()), &blank, &no, &blank)
	for _, o := range ops {
		args = o.appendArgs(args, nil)
	}

	lines, err := ask(p, func(ctx context.Context) (string, error) {
		cmd := redis.NewStringCmd(ctx, args...)
		err := p.client.Process(ctx, cmd)
		if cmd.Err() != nil {
			err = cmd.Err()
		}
		return cmd.Val(), err
	})
	p.trialErr = err
	if err == nil {
		p.trialErr = judgeTrial(ops, lines)
	}
}

// judgeTrial returns why one of the operations was not granted.
func judgeTrial(ops []*round, lines string) error {
	answers := strings.Split(lines, "\n")
	if len(answers) != len(ops)+1 {
		return fmt.Errorf("unexpected answer %.40q", lines)
	}
	for i, line := range answers[1:] {
		if a := parseAnswer(line); a.vote != granted {
			return fmt.Errorf("%v: %w", ops[i].op, a.err)
		}
	}
	return nil
}
