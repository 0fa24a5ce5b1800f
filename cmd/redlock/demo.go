package main

import (
	"context"
	"crypto/rand"
	"errors"
	"flag"
	"fmt"
	"io"
	"strings"
	"time"

	"github.com/quorumlock/redlock"
)

const (
	demoTTL       = 5 * time.Second
	demoInstances = 5
	demoUsage     = `Usage: redlock demo [-e endpoint]...

Shows a lock at work: votes, a second client that is refused, instances that die
and come back. Without endpoints it starts five instances inside this process;
with endpoints it uses servers of yours, under a resource name of its own.

Examples:

  redlock demo
  redlock demo -e redis://127.0.0.1:7001 -e redis://127.0.0.1:7002 -e redis://127.0.0.1:7003
`
)

// demo tells the story of one lock and two clients.
func demo(flags *flag.FlagSet) action {
	source := endpointFlags(flags)
	return func(ctx context.Context, _ []string, stdout, stderr io.Writer) int {
		endpoints, err := source.list()
		if err != nil {
			fmt.Fprintln(stderr, "redlock demo:", err)
			return exitUsage
		}
		return tell(ctx, endpoints, stdout, stderr)
	}
}

func tell(ctx context.Context, endpoints []string, stdout, stderr io.Writer) int {
	s := &story{page: newPage(stdout), resource: "redlock-demo-" + strings.ToLower(rand.Text()[:6])}
	defer func() { s.closeServers() }()
	if err := s.open(endpoints); err != nil {
		fmt.Fprintln(stderr, "redlock demo:", err)
		if s.real {
			return exitUsage
		}
		return exitFailed
	}
	err := s.tell(ctx)
	if err != nil && ctx.Err() != nil {
		fmt.Fprintln(stderr, "redlock demo: interrupted")
	}
	_ = s.leave()
	switch {
	case err == nil:
		return exitOK
	case ctx.Err() != nil:
		return interrupted(ctx)
	}
	fmt.Fprintf(stderr, "redlock demo: step %d: %s\n", s.step, printable(err.Error()))
	if s.step == 1 && errors.Is(err, redlock.ErrNoQuorum) {
		return exitUnavailable
	}
	return exitFailed
}

// A story is what happens to one lock, step by step. Each step says what it does
// and what became of it; one whose outcome is not what it should be ends the
// story with an error.
type story struct {
	*page
	resource string
	real     bool // the servers are the user's
	servers  []server
	a, b     *client
	left     bool // leave was called

	lock   *redlock.Lock // the one that is held
	token  uint64        // of the last acquisition
	alive  []server      // those that vote
	killed []server      // by the demo; the last one comes back first
}

// open opens the clients, and the servers if there are no endpoints.
func (s *story) open(endpoints []string) (err error) {
	s.real = len(endpoints) > 0
	var options []redlock.Option
	var ls lines
	if s.real {
		options = append(options, redlock.WithClientOptions(ls.attach))
	} else {
		s.servers, err = startEmbedded(demoInstances)
		if err != nil {
			return fmt.Errorf("starting an instance: %w", err)
		}
		for _, server := range s.servers {
			endpoints = append(endpoints, server.name())
		}
	}
	if s.a, err = newClient("A", endpoints, options...); err != nil {
		return err
	}
	if s.b, err = newClient("B", endpoints, options...); err != nil {
		return errors.Join(err, s.a.Close())
	}
	if s.real {
		s.servers = ls.servers
	}
	return nil
}

func (s *story) n() int      { return len(s.servers) }
func (s *story) quorum() int { return s.n()/2 + 1 }

func (s *story) tell(ctx context.Context) error {
	where := "in this process (miniredis)"
	if s.real {
		where = "of yours"
	}
	s.say("%s %s; a quorum is %d.", count(s.n(), "instance"), where, s.quorum())
	s.say("Two clients, A and B, want the lock of %q, for %v at a time.", s.resource, demoTTL)
	if s.real {
		s.say("Your servers run on: to kill an instance, the demo cuts its own connections to it.")
	}
	for _, step := range []func(context.Context) error{
		s.acquire, s.refuse, s.killMinority, s.extend, s.release, s.handOver, s.releaseB, s.killQuorum, s.comeBack, s.finish,
	} {
		if err := step(withStep(ctx, s.step+1)); err != nil {
			return err
		}
	}
	fmt.Fprintln(s.out)
	s.say("Shown: a quorum is enough to acquire, extend and release; without one nobody gets the " +
		"lock, and the error says why; each holder's fencing token is larger than the last one's.")
	s.say("Not shown: that the lock is safe; no demo can prove that. The README says what it " +
		"promises, under which conditions, and what it does not promise.")
	return nil
}

// acquire also finds out which instances can be counted on.
func (s *story) acquire(ctx context.Context) error {
	s.begin("A acquires the lock.")
	lock, err := s.a.TryAcquire(ctx, s.resource, demoTTL)
	e, unseen := s.show(ctx, s.a, "acquire", err == nil)
	if err = errors.Join(err, unseen); err != nil {
		return err
	}
	var missing []string
	for i, v := range e.Votes {
		if v.Vote == "granted" {
			s.alive = append(s.alive, s.servers[i])
			continue
		}
		missing = append(missing, v.Instance)
	}
	if len(missing) > 0 {
		s.note("The demo goes on without %s: %d of %d are a quorum.", strings.Join(missing, ", "), len(s.alive), s.n())
	}
	return s.hold(s.a, lock)
}

// show prints the votes on the call op that c has made in this step.
func (s *story) show(ctx context.Context, c *client, op string, won bool) (redlock.RoundEvent, error) {
	e, err := c.round(ctx, op, won)
	if err == nil {
		s.votes(e)
	}
	return e, err
}

// hold takes the lock that c has acquired.
func (s *story) hold(c *client, lock *redlock.Lock) error {
	s.lock = lock
	if lock.FencingToken() <= s.token {
		return fmt.Errorf("fencing token %d is not larger than %d", lock.FencingToken(), s.token)
	}
	s.token = lock.FencingToken()
	return s.holds(c)
}

// holds says what c has.
func (s *story) holds(c *client) error {
	left := s.lock.Remaining()
	if left <= 0 {
		return fmt.Errorf("%s has a lock with %v left", c.name, left)
	}
	s.note("%s holds it for %.3fs more, with fencing token %d.", c.name, left.Seconds(), s.lock.FencingToken())
	return nil
}

func (s *story) refuse(ctx context.Context) error {
	s.begin("B wants it, too, and is refused.")
	return s.denied(ctx, s.b, redlock.ErrTaken)
}

// denied lets c ask for the lock, in vain.
func (s *story) denied(ctx context.Context, c *client, want error) error {
	_, err := c.TryAcquire(ctx, s.resource, demoTTL)
	switch {
	case err == nil:
		return fmt.Errorf("%s got the lock", c.name)
	case !errors.Is(err, want):
		return fmt.Errorf("%s got another error than %q: %w", c.name, want.Error(), err)
	}
	if _, err := s.show(ctx, c, "acquire", false); err != nil {
		return err
	}
	s.failure(c.name, err)
	return nil
}

func (s *story) killMinority(context.Context) error {
	spare := len(s.alive) - s.quorum()
	if spare == 0 {
		s.begin("No instance can be spared: a quorum takes all %d that vote.", s.quorum())
		return nil
	}
	s.begin("The demo kills %s; the other %d are still a quorum.", count(spare, "instance"), s.quorum())
	s.kill(spare)
	return nil
}

// kill takes the last n instances away.
func (s *story) kill(n int) {
	victims := s.alive[len(s.alive)-n:]
	s.alive = s.alive[:len(s.alive)-n]
	var names []string
	for _, server := range victims {
		server.kill()
		s.killed = append(s.killed, server)
		names = append(names, server.name())
	}
	s.note("Killed: %s.", strings.Join(names, ", "))
}

// revive gives the instance back that was killed last.
func (s *story) revive() error {
	last := s.killed[len(s.killed)-1]
	s.killed = s.killed[:len(s.killed)-1]
	s.alive = append(s.alive, last)
	if err := last.revive(); err != nil {
		return fmt.Errorf("%s does not come back: %w", last.name(), err)
	}
	return nil
}

func (s *story) extend(ctx context.Context) error {
	s.begin("A extends the lock.")
	if err := s.lock.Extend(ctx, demoTTL); err != nil {
		return err
	}
	if _, err := s.show(ctx, s.a, "extend", true); err != nil {
		return err
	}
	return s.holds(s.a)
}

func (s *story) release(ctx context.Context) error {
	s.begin("A releases the lock.")
	return s.releaseAs(ctx, s.a)
}

func (s *story) releaseAs(ctx context.Context, c *client) error {
	if err := s.lock.Release(ctx); err != nil {
		return err
	}
	_, err := s.show(ctx, c, "release", true)
	return err
}

func (s *story) handOver(ctx context.Context) error {
	s.begin("B acquires it, with a larger fencing token.")
	lock, err := s.b.TryAcquire(ctx, s.resource, demoTTL)
	return s.acquired(ctx, s.b, lock, err)
}

// acquired says how the acquire of c ended.
func (s *story) acquired(ctx context.Context, c *client, lock *redlock.Lock, err error) error {
	if err != nil {
		return err
	}
	if _, err := s.show(ctx, c, "acquire", true); err != nil {
		return err
	}
	return s.hold(c, lock)
}

func (s *story) releaseB(ctx context.Context) error {
	s.begin("B releases it.")
	return s.releaseAs(ctx, s.b)
}

func (s *story) killQuorum(ctx context.Context) error {
	one := "one"
	if len(s.killed) > 0 {
		one = "one more"
	}
	s.begin("The demo kills %s: %d of %d are no quorum, and A gets no lock.", one, len(s.alive)-1, s.n())
	s.kill(1)
	return s.denied(ctx, s.a, redlock.ErrNoQuorum)
}

func (s *story) comeBack(ctx context.Context) error {
	s.begin("%s comes back, and A, who waited for that, acquires the lock.", s.killed[len(s.killed)-1].name())
	if err := s.revive(); err != nil {
		return err
	}
	lock, err := s.a.Acquire(ctx, s.resource, demoTTL, redlock.WithMaxWait(patience))
	return s.acquired(ctx, s.a, lock, err)
}

func (s *story) finish(ctx context.Context) error {
	if len(s.killed) > 0 {
		s.begin("A releases it, and what else was killed comes back.")
	} else {
		s.begin("A releases it.")
	}
	if err := s.releaseAs(ctx, s.a); err != nil {
		return err
	}
	if err := s.leave(); err != nil {
		return err
	}
	for _, server := range s.alive {
		switch found, err := server.has(ctx, s.resource); {
		case err != nil:
			return fmt.Errorf("looking for the lock key on %s: %w", server.name(), err)
		case found:
			return fmt.Errorf("the lock key is left on %s", server.name())
		}
	}
	s.note("The clients are closed, and no lock key is left on the %s.", count(len(s.alive), "instance"))
	if s.real {
		s.note("The fence key of %q expires by itself in some ten minutes.", s.resource)
	}
	return nil
}

// leave gives all instances back, waits until the Lockers have noticed, so that
// they clean up what is left there, and closes them.
func (s *story) leave() error {
	if s.left {
		return nil
	}
	s.left = true
	var errs []error
	var back []string
	for len(s.killed) > 0 {
		back = append(back, s.killed[len(s.killed)-1].name())
		if err := s.revive(); err != nil {
			errs = append(errs, err)
		}
	}
	closed := make(chan error)
	for _, c := range []*client{s.a, s.b} {
		go func() {
			c.settle(back)
			closed <- c.Close()
		}()
	}
	return errors.Join(append(errs, <-closed, <-closed)...)
}

func (s *story) closeServers() {
	for _, server := range s.servers {
		server.close()
	}
}

// count returns n with a noun.
func count(n int, noun string) string {
	if n == 1 {
		return "1 " + noun
	}
	return fmt.Sprintf("%d %ss", n, noun)
}
