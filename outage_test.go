package redlock_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/quorumlock/redlock"
	"github.com/quorumlock/redlock/internal/redistest"
)

// The matrix of what instances can suffer: two of five in a state are nobody's
// business, three of five are an honest error.

// An outage is a way in which an instance is of no use.
type outage struct {
	name  string
	begin func(t *testing.T, n int) odd
	cause func(error) bool // reports whether an error names it
}

// odd is instances that suffer an outage: at once, or from strike on, which is
// called when connections to their servers are open.
type odd struct {
	endpoints []string
	strike    func()
	servers   []*redistest.Server
}

var outages = []outage{
	{"killed", func(t *testing.T, n int) odd {
		servers := start(t, n)
		return odd{redistest.Addrs(servers), func() { each(t, servers, (*redistest.Server).Kill) }, servers}
	}, is(syscall.ECONNREFUSED)},

	{"refusing", func(t *testing.T, n int) odd {
		return odd{endpoints: sequence(n, func(int) string {
			addr, err := redistest.FreeAddr()
			require.NoError(t, err)
			return addr
		})}
	}, is(syscall.ECONNREFUSED)},

	{"unresolvable", func(_ *testing.T, n int) odd {
		return odd{endpoints: sequence(n, func(i int) string { return fmt.Sprintf("does-not-exist.invalid:%d", 6379+i) })}
	}, func(err error) bool {
		_, ok := errors.AsType[*net.DNSError](err)
		return ok
	}},

	{"accepting and silent", func(t *testing.T, n int) odd {
		return odd{endpoints: sequence(n, func(int) string { return redistest.Mute(t) })}
	}, is(os.ErrDeadlineExceeded)},

	{"stopped before it was connected to", func(t *testing.T, n int) odd {
		servers := start(t, n)
		each(t, servers, (*redistest.Server).Pause)
		return odd{endpoints: redistest.Addrs(servers)}
	}, is(os.ErrDeadlineExceeded)},

	{"stopped", func(t *testing.T, n int) odd {
		servers := start(t, n)
		return odd{redistest.Addrs(servers), func() { each(t, servers, (*redistest.Server).Pause) }, servers}
	}, is(os.ErrDeadlineExceeded)},

	{"clients paused", func(t *testing.T, n int) odd {
		servers := start(t, n)
		return odd{redistest.Addrs(servers), func() { each(t, servers, command("CLIENT", "PAUSE", "60000", "ALL")) }, servers}
	}, is(os.ErrDeadlineExceeded)},

	{"a replica", func(t *testing.T, n int) odd {
		master := start(t, 1)[0]
		_, port, err := net.SplitHostPort(master.Addr())
		require.NoError(t, err)
		return odd{endpoints: redistest.Addrs(start(t, n, "--replicaof", "127.0.0.1 "+port))}
	}, says("READONLY")},

	{"loading", loading, says("LOADING")},

	{"out of memory", func(t *testing.T, n int) odd {
		servers := start(t, n)
		return odd{redistest.Addrs(servers), func() { each(t, servers, command("CONFIG", "SET", "maxmemory", "1")) }, servers}
	}, says("OOM")},

	{"wanting a password", func(t *testing.T, n int) odd {
		return odd{endpoints: redistest.Addrs(start(t, n, "--requirepass", "s3cret"))}
	}, says("NOAUTH")},

	{"wanting another password", func(t *testing.T, n int) odd {
		servers := start(t, n, "--requirepass", "s3cret")
		return odd{endpoints: sequence(n, func(i int) string { return "redis://:" + wrongPassword + "@" + servers[i].Addr() })}
	}, says("WRONGPASS")},

	{"granting no rights", func(t *testing.T, n int) odd {
		servers := start(t, n)
		each(t, servers, command("ACL", "SETUSER", "guest", "on", ">"+wrongPassword, "~*", "+@all", "-evalsha", "-eval"))
		return odd{endpoints: sequence(n, func(i int) string { return "redis://guest:" + wrongPassword + "@" + servers[i].Addr() })}
	}, says("NOPERM")},

	{"out of clients", func(t *testing.T, n int) odd {
		servers := start(t, n, "--maxclients", "1")
		for _, s := range servers {
			idle, err := net.Dial("tcp", s.Addr())
			require.NoError(t, err)
			t.Cleanup(func() { _ = idle.Close() })
			// Until somebody else is sent away, it might be the idle one.
			becomes(t, func() bool {
				_, err := s.Do("PING")
				return err != nil && strings.Contains(err.Error(), "max number of clients")
			}, "the server takes no more clients")
		}
		return odd{endpoints: redistest.Addrs(servers)}
	}, func(err error) bool {
		// The server says why and closes at once: a client that is still writing may only see a broken pipe.
		return says("ERR max number of clients")(err) || brokenOff(err)
	}},

	{"without EVAL", func(t *testing.T, n int) odd {
		return odd{endpoints: redistest.Addrs(start(t, n, "--rename-command", "EVAL", ""))}
	}, says("ERR unknown command")},

	{"short of replicas", func(t *testing.T, n int) odd {
		return odd{endpoints: redistest.Addrs(start(t, n, "--min-replicas-to-write", "1"))}
	}, says("NOREPLICAS")},

	{"a cluster without slots", func(t *testing.T, n int) odd {
		return odd{endpoints: redistest.Addrs(start(t, n, "--cluster-enabled", "yes"))}
	}, says("CLUSTERDOWN")},

	{"not a Redis", func(t *testing.T, n int) odd {
		return odd{endpoints: sequence(n, func(int) string { return babbler(t) })}
	}, func(err error) bool { return err != nil && strings.Contains(err.Error(), "HTTP/1.1 400") }},
}

const wrongPassword = "hunter2" // must appear in no error

// loading starts servers that are busy with a large data set for the next half
// minute, and answer meanwhile.
func loading(t *testing.T, n int) odd {
	servers := start(t, n, "--enable-debug-command", "yes")
	servers[0].MustDo(t, "DEBUG", "POPULATE", "60000")
	servers[0].MustDo(t, "SAVE")
	dump, err := os.ReadFile(filepath.Join(servers[0].Dir(), "dump.rdb"))
	require.NoError(t, err)
	for _, s := range servers[1:] {
		require.NoError(t, os.WriteFile(filepath.Join(s.Dir(), "dump.rdb"), dump, 0o600))
	}
	each(t, servers, func(s *redistest.Server) error {
		return s.RestartWith("--key-load-delay", "500", "--loading-process-events-interval-bytes", "1024")
	})
	return odd{endpoints: redistest.Addrs(servers)}
}

// babbler returns the address of a listener that answers whatever it is sent
// like a web server.
func babbler(t *testing.T) string {
	return listen(t, "127.0.0.1:0", func(conn net.Conn) {
		buf := make([]byte, 1<<10)
		for {
			if _, err := conn.Read(buf); err != nil {
				return
			}
			if _, err := io.WriteString(conn, "HTTP/1.1 400 Bad Request\r\nConnection: close\r\n\r\n"); err != nil {
				return
			}
		}
	})
}

// listen serves each connection to addr with handle, until the test ends, and
// returns the address.
func listen(t *testing.T, addr string, handle func(net.Conn)) string {
	l, err := net.Listen("tcp", addr)
	require.NoError(t, err)
	var (
		wg    sync.WaitGroup
		mu    sync.Mutex
		conns []net.Conn
	)
	wg.Go(func() {
		for {
			conn, err := l.Accept()
			if err != nil {
				return
			}
			mu.Lock()
			conns = append(conns, conn)
			mu.Unlock()
			wg.Go(func() {
				defer conn.Close()
				handle(conn)
			})
		}
	})
	t.Cleanup(func() {
		_ = l.Close()
		mu.Lock()
		for _, conn := range conns {
			_ = conn.Close()
		}
		mu.Unlock()
		wg.Wait()
	})
	return l.Addr().String()
}

func is(target error) func(error) bool {
	return func(err error) bool { return errors.Is(err, target) }
}

// brokenOff reports whether err is the end of a connection.
func brokenOff(err error) bool {
	return errors.Is(err, io.EOF) || errors.Is(err, syscall.ECONNRESET) || errors.Is(err, syscall.EPIPE)
}

// says returns a cause: an error of the server that begins with code.
func says(code string) func(error) bool {
	return func(err error) bool {
		reply, ok := errors.AsType[redis.Error](err)
		return ok && strings.HasPrefix(reply.Error(), code)
	}
}

func command(args ...string) func(*redistest.Server) error {
	return func(s *redistest.Server) error {
		_, err := s.Do(args...)
		return err
	}
}

// each does the same to all servers, in parallel.
func each(t *testing.T, servers []*redistest.Server, do func(*redistest.Server) error) {
	t.Helper()
	errs := make([]error, len(servers))
	var wg sync.WaitGroup
	for i, s := range servers {
		wg.Go(func() { errs[i] = do(s) })
	}
	wg.Wait()
	require.NoError(t, errors.Join(errs...))
}

func sequence(n int, f func(i int) string) []string {
	s := make([]string, n)
	for i := range s {
		s[i] = f(i)
	}
	return s
}

// host returns the host:port of an endpoint, the name of its instance.
func host(endpoint string) string {
	_, rest, found := strings.Cut(endpoint, "@")
	if !found {
		return endpoint
	}
	return rest
}

func TestOutages(t *testing.T) {
	t.Parallel()
	healthy := start(t, 3)
	for _, o := range outages {
		t.Run(o.name, func(t *testing.T) {
			t.Parallel()
			o.test(t, healthy)
		})
	}
}

// quiet is set in the environment of a test process whose output is looked at.
const quiet = "REDLOCK_TEST_QUIET"

func (o outage) test(t *testing.T, healthy []*redistest.Server) {
	odd := o.begin(t, 3)
	causes := &causes{is: o.cause, named: map[string]bool{}}
	two := openAt(t, slices.Concat(redistest.Addrs(healthy), odd.endpoints[:2]), redlock.WithObserver(redlock.Observer{Round: causes.note}))
	three := openAt(t, slices.Concat(redistest.Addrs(healthy[:2]), odd.endpoints), redlock.WithInstanceTimeout(patience))
	if odd.strike != nil {
		warm(t, two, slices.Concat(healthy, odd.servers[:2]))
		warm(t, three, slices.Concat(healthy[:2], odd.servers))
		odd.strike()
	}
	t.Run("two of five", func(t *testing.T) { goesOn(t, two, causes, odd.endpoints[:2]) })
	t.Run("three of five", func(t *testing.T) { failsHonestly(t, three, healthy[:2], odd.endpoints, o.cause) })
}

// patience is the instance time-out of a Locker that loses its majority.
const patience = 300 * time.Millisecond

// grace is what a busy machine may add; with it, it is still less than a connection's
// time-out, but for the race detector, which takes more.
var grace = paced(500*time.Millisecond, 2*time.Second)

// cycle acquires, extends and releases resource, and notes how long each took.
func cycle(l *redlock.Locker, resource string, took *[]time.Duration) error {
	ctx := context.Background()
	begin := time.Now()
	lap := func() {
		if took != nil {
			*took = append(*took, time.Since(begin))
		}
		begin = time.Now()
	}
	lock, err := l.TryAcquire(ctx, resource, 10*time.Second)
	lap()
	if err != nil {
		return err
	}
	err = lock.Extend(ctx, 10*time.Second)
	lap()
	if err != nil {
		return err
	}
	err = lock.Release(ctx)
	lap()
	return err
}

// goesOn requires that the healthy majority decides, fast, and that an observer
// learns what is wrong with the others.
func goesOn(t *testing.T, l *redlock.Locker, causes *causes, odd []string) {
	begin := time.Now()
	require.NoError(t, cycle(l, t.Name()+" first", nil))
	require.Less(t, time.Since(begin), grace, "nor does it wait until it knows")
	for i := range 5 {
		require.NoError(t, cycle(l, fmt.Sprint(t.Name(), " warm ", i), nil))
	}
	if os.Getenv(quiet) == "" {
		var took []time.Duration
		for i := range 100 {
			require.NoError(t, cycle(l, fmt.Sprint(t.Name(), i), &took))
		}
		isFast(t, took)
	}
	becomes(t, func() bool { return causes.name(odd) }, "the observer learns the cause at %v: %v", odd, causes)
}

// isFast requires a 99th percentile that a busy machine can keep, and that an
// instance time-out in the path can't. On a quiet machine it is below 100 ms by
// far: see the log.
func isFast(t *testing.T, took []time.Duration) {
	t.Helper()
	slices.Sort(took)
	p50, p99 := took[len(took)/2], took[len(took)*99/100]
	t.Logf("p50 %v, p99 %v of %d calls", p50, p99, len(took))
	require.Less(t, p99, 250*time.Millisecond)
}

// causes collects what an Observer hears of failed votes.
type causes struct {
	is    func(error) bool
	mu    sync.Mutex
	named map[string]bool
	other map[string]error
}

func (c *causes) note(e redlock.RoundEvent) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, v := range e.Votes {
		switch {
		case v.Vote == "failed" && c.is(v.Err):
			c.named[v.Instance] = true
		case v.Vote == "failed":
			if c.other == nil {
				c.other = map[string]error{}
			}
			c.other[v.Instance] = v.Err
		}
	}
}

func (c *causes) name(instances []string) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return !slices.ContainsFunc(instances, func(in string) bool { return !c.named[host(in)] })
}

// String shows what was heard instead.
func (c *causes) String() string {
	c.mu.Lock()
	defer c.mu.Unlock()
	return fmt.Sprint(c.other)
}

// failsHonestly requires ErrNoQuorum in time, which names the three and leaves
// nothing on the two.
func failsHonestly(t *testing.T, l *redlock.Locker, healthy []*redistest.Server, odd []string, cause func(error) bool) {
	ctx := context.Background()
	resource := t.Name()
	var err error
	for deadline := time.Now().Add(soon); ; {
		begin := time.Now()
		_, err = l.TryAcquire(ctx, resource, long)
		require.Less(t, time.Since(begin), patience+grace)
		requireNoQuorum(t, err, odd)
		unnamed := slices.DeleteFunc(slices.Clone(odd), func(endpoint string) bool { return cause(instanceError(err, host(endpoint))) })
		if len(unnamed) == 0 {
			break
		}
		// The first answer may be the end of a connection that was open, or a
		// time-out where the answer takes longer.
		for _, endpoint := range unnamed {
			e := instanceError(err, host(endpoint))
			require.True(t, brokenOff(e) || errors.Is(e, os.ErrDeadlineExceeded), "%v", e)
		}
		require.True(t, time.Now().Before(deadline), "the cause is never named: %v", err)
	}
	t.Log(err)

	short, cancel := context.WithTimeout(ctx, 150*time.Millisecond)
	defer cancel()
	_, err = l.Acquire(short, resource, long)
	require.Less(t, time.Since(deadlineOf(short)), fast)
	require.ErrorIs(t, err, context.DeadlineExceeded)
	requireNoQuorum(t, err, odd)

	begin := time.Now()
	_, err = l.Acquire(ctx, resource, long, redlock.WithMaxWait(50*time.Millisecond))
	require.Less(t, time.Since(begin), 50*time.Millisecond+grace)
	require.NotErrorIs(t, err, context.DeadlineExceeded)
	requireNoQuorum(t, err, odd)

	becomes(t, func() bool { return !anyHas(healthy, resource) }, "nothing stays on the healthy two")
}

func deadlineOf(ctx context.Context) time.Time {
	d, _ := ctx.Deadline()
	return d
}

// instanceError returns what err says of one instance.
func instanceError(err error, instance string) error {
	quorum, ok := errors.AsType[*redlock.QuorumError](err)
	if !ok || quorum.Errs == nil {
		return nil
	}
	for _, e := range quorum.Errs.Errors {
		if e, ok := errors.AsType[*redlock.InstanceError](e); ok && e.Instance == instance {
			return e
		}
	}
	return nil
}

func requireNoQuorum(t *testing.T, err error, odd []string) {
	t.Helper()
	require.ErrorIs(t, err, redlock.ErrNoQuorum)
	require.NotErrorIs(t, err, redlock.ErrTaken)
	quorum, ok := errors.AsType[*redlock.QuorumError](err)
	require.True(t, ok, err)
	require.Equal(t, 5, quorum.Instances)
	require.Equal(t, 3, quorum.Needed)
	require.NotContains(t, err.Error(), "\n")
	require.NotContains(t, err.Error(), wrongPassword)
	for _, endpoint := range odd {
		require.Error(t, instanceError(err, host(endpoint)), err)
		require.Contains(t, err.Error(), host(endpoint))
	}
}

// The library prints nothing, and neither does the client library on its behalf.
// Only another process can tell: what the tests above print there is their
// verdict.
func TestOutagesArePassedOverInSilence(t *testing.T) {
	t.Parallel()
	redistest.Need(t)
	if os.Getenv(quiet) != "" {
		t.Skip("in the child")
	}
	cmd := exec.Command(os.Args[0], "-test.timeout=60s", "-test.run=^TestOutages$/^(killed|refusing|unresolvable|accepting_and_silent|out_of_clients|wanting_another_password|loading|not_a_Redis)$")
	requireSilentPass(t, cmd)
}

func requireSilentPass(t *testing.T, cmd *exec.Cmd) {
	t.Helper()
	cmd.Env = append(os.Environ(), quiet+"=1")
	output, err := cmd.CombinedOutput()
	require.NoError(t, err, "%s", output)
	lines := strings.Split(strings.TrimSpace(string(output)), "\n")
	lines = slices.DeleteFunc(lines, func(line string) bool { return strings.HasPrefix(line, "coverage: ") })
	require.Equal(t, []string{"PASS"}, lines)
}

// Packets that vanish: the test runs again as the only process of a network
// namespace of its own, where 10.77.0.0/24 leads nowhere.
func TestBlackholes(t *testing.T) {
	t.Parallel()
	redistest.Need(t)
	const inside = "REDLOCK_TEST_NETNS"
	if os.Getenv(inside) == "" {
		script := `ip link set lo up && ip route add 10.77.0.0/24 dev lo`
		if output, err := exec.Command("unshare", "-n", "sh", "-c", script).CombinedOutput(); err != nil {
			t.Skipf("SKIPPED, NOT PASSED: no network namespace of our own: %v %s", err, output)
		}
		cmd := exec.Command("unshare", "-n", "sh", "-c", script+` && exec "$0" "$@"`, os.Args[0], "-test.timeout=60s", "-test.run=^TestBlackholes$")
		cmd.Env = append(os.Environ(), inside+"=1")
		output, err := cmd.CombinedOutput()
		require.NoError(t, err, "%s", output)
		return
	}

	healthy := start(t, 3)
	t.Run("from the beginning", func(t *testing.T) {
		outage{begin: func(*testing.T, int) odd {
			return odd{endpoints: []string{"10.77.0.1:6379", "10.77.0.2:6379", "10.77.0.3:6379"}}
		}, cause: is(os.ErrDeadlineExceeded)}.test(t, healthy)
	})
	t.Run("connected", func(t *testing.T) {
		address := func(verb string) {
			for i := range 3 {
				output, err := exec.Command("ip", "addr", verb, fmt.Sprintf("10.77.0.%d/32", 11+i), "dev", "lo").CombinedOutput()
				require.NoError(t, err, "%s", output)
			}
		}
		address("add")
		servers := start(t, 3)
		o := odd{strike: func() { address("del") }, servers: servers, endpoints: sequence(3, func(i int) string {
			return listen(t, fmt.Sprintf("10.77.0.%d:0", 11+i), func(client net.Conn) { forward(client, servers[i].Addr()) })
		})}
		outage{begin: func(*testing.T, int) odd { return o }, cause: is(os.ErrDeadlineExceeded)}.test(t, healthy)
	})
}

// forward copies both ways until one side ends.
func forward(client net.Conn, addr string) {
	server, err := net.Dial("tcp", addr)
	if err != nil {
		return
	}
	var wg sync.WaitGroup
	wg.Go(func() {
		_, _ = io.Copy(server, client)
		_ = server.Close()
	})
	_, _ = io.Copy(client, server)
	_ = client.Close()
	wg.Wait()
}

func TestContextIsObeyedWhenEveryInstanceIsStopped(t *testing.T) {
	t.Parallel()
	servers := start(t, 5)
	// The time-out is so long that only ctx can end a call.
	l := openAt(t, redistest.Addrs(servers), redlock.WithInstanceTimeout(20*time.Second))
	warm(t, l, servers)
	held, err := l.TryAcquire(context.Background(), "held", long)
	require.NoError(t, err)
	each(t, servers, (*redistest.Server).Pause)
	defer each(t, servers, (*redistest.Server).Resume)

	cause := errors.New("the user went away")
	calls := map[string]func(context.Context) error{
		"Acquire": func(ctx context.Context) error {
			_, err := l.Acquire(ctx, "r", long)
			return err
		},
		"TryAcquire": func(ctx context.Context) error {
			_, err := l.TryAcquire(ctx, "r", long)
			return err
		},
		"Extend": func(ctx context.Context) error { return held.Extend(ctx, long) },
	}
	ends := map[string]struct {
		is    []error
		begin func(end time.Duration) (context.Context, func())
	}{
		"deadline": {[]error{context.DeadlineExceeded}, func(end time.Duration) (context.Context, func()) {
			return context.WithTimeout(context.Background(), end)
		}},
		"cancel": {[]error{context.Canceled}, func(end time.Duration) (context.Context, func()) {
			ctx, cancel := context.WithCancel(context.Background())
			time.AfterFunc(end, cancel)
			return ctx, cancel
		}},
		"cancel with a cause": {[]error{context.Canceled, cause}, func(end time.Duration) (context.Context, func()) {
			ctx, cancel := context.WithCancelCause(context.Background())
			time.AfterFunc(end, func() { cancel(cause) })
			return ctx, func() { cancel(nil) }
		}},
		"deadline with a cause": {[]error{context.DeadlineExceeded, cause}, func(end time.Duration) (context.Context, func()) {
			return context.WithTimeoutCause(context.Background(), end, cause)
		}},
	}
	for name, call := range calls {
		for how, end := range ends {
			var late []time.Duration
			for range 5 {
				const after = 20 * time.Millisecond
				begin := time.Now()
				ctx, cancel := end.begin(after)
				err := call(ctx)
				late = append(late, time.Since(begin)-after)
				cancel()
				require.ErrorIs(t, err, redlock.ErrNoQuorum, "%s, %s", name, how)
				for _, target := range end.is {
					require.ErrorIs(t, err, target, "%s, %s", name, how)
				}
				require.NotErrorIs(t, err, redlock.ErrLost)
				require.NotContains(t, err.Error(), "\n")
			}
			// The median: on a busy machine one of five may be late.
			slices.Sort(late)
			t.Logf("%s, %s: %v late", name, how, late)
			require.Less(t, late[2], 60*time.Millisecond, "%s, %s", name, how)
		}
	}
	require.Positive(t, held.Remaining())
}

func TestContextThatHasEndedSendsNothing(t *testing.T) {
	t.Parallel()
	g := newRig(t, 1)
	l := g.open()
	held, err := l.TryAcquire(context.Background(), "held", long)
	require.NoError(t, err)
	sent := len(g.sent(0))
	cause := errors.New("the user went away")
	ctx, cancel := context.WithCancelCause(context.Background())
	cancel(cause)
	_, err = l.Acquire(ctx, "r", long)
	for _, err := range []error{err, held.Extend(ctx, long)} {
		require.ErrorIs(t, err, context.Canceled)
		require.ErrorIs(t, err, cause)
		require.NotErrorIs(t, err, redlock.ErrLost)
	}
	require.NoError(t, held.Release(context.Background())) // behind whatever was sent
	require.Equal(t, "d", g.letters(0)[sent:])
}

func TestReleaseIgnoresTheEndOfItsContext(t *testing.T) {
	t.Parallel()
	servers := start(t, 3)
	l := openAt(t, redistest.Addrs(servers), redlock.WithInstanceTimeout(patience))
	warm(t, l, servers)
	ctx, cancel := context.WithCancel(context.Background())
	free, err := l.TryAcquire(ctx, "free", long)
	require.NoError(t, err)
	stuck, err := l.TryAcquire(ctx, "stuck", long)
	require.NoError(t, err)
	cancel()

	require.NoError(t, free.Release(ctx))
	becomes(t, func() bool { return !anyHas(servers, "free") }, "the lock is gone")

	each(t, servers, (*redistest.Server).Pause)
	begin := time.Now()
	err = stuck.Release(ctx)
	took := time.Since(begin)
	each(t, servers, (*redistest.Server).Resume)
	require.GreaterOrEqual(t, took, patience)
	require.Less(t, took, patience+grace)
	require.ErrorIs(t, err, redlock.ErrNoQuorum)
	require.NotErrorIs(t, err, context.Canceled)
	becomes(t, func() bool { return !anyHas(servers, "stuck") }, "the lock is gone in the end")
}

// Clients that were brought along wait for ever, dial for ever and try again
// behind our back; their owner may be using the only connection.
func TestSettingsOfTheUsersClientsBoundNothing(t *testing.T) {
	t.Parallel()
	healthy := start(t, 3)
	hostile := redis.Options{
		MaxRetries: 3, DialTimeout: 30 * time.Second, ReadTimeout: -1, WriteTimeout: -1, PoolTimeout: 30 * time.Second,
		PoolSize: 1, ContextTimeoutEnabled: false,
	}
	patient := hostile
	patient.ReadTimeout, patient.WriteTimeout = 30*time.Second, 30*time.Second
	client := func(o redis.Options) func(string) redis.UniversalClient {
		return func(addr string) redis.UniversalClient {
			o.Addr = addr
			return redis.NewClient(&o)
		}
	}
	clients := map[string]func(addr string) redis.UniversalClient{
		"client without time-outs":   client(hostile),
		"client with long time-outs": client(patient),
		"ring": func(addr string) redis.UniversalClient {
			return redis.NewRing(&redis.RingOptions{
				Addrs: map[string]string{"shard": addr}, MaxRetries: 3, DialTimeout: 30 * time.Second, ReadTimeout: 30 * time.Second,
				WriteTimeout: 30 * time.Second, PoolTimeout: 30 * time.Second, PoolSize: 1,
			})
		},
	}
	for kind, build := range clients {
		for _, o := range outages {
			switch {
			case kind == "client with long time-outs" && o.name != "stopped": // as without time-outs
			case o.name == "killed", o.name == "stopped", o.name == "accepting and silent":
				t.Run(kind+" "+o.name, func(t *testing.T) {
					t.Parallel()
					o := o.begin(t, 3)
					withBroughtClients(t, healthy, o, build, func([]redis.UniversalClient) {
						if o.strike != nil {
							o.strike()
						}
					})
				})
			}
		}
		t.Run(kind+" in use", func(t *testing.T) {
			t.Parallel()
			servers := start(t, 3)
			o := odd{endpoints: redistest.Addrs(servers), servers: servers}
			withBroughtClients(t, healthy, o, build, func(clients []redis.UniversalClient) {
				for _, c := range clients {
					go c.BLPop(context.Background(), 0, "nothing")
				}
				for i, s := range servers {
					clients := []int{2, 2, 1}[i] // of the two Lockers
					becomes(t, func() bool { return blocked(s) == clients }, "the only connection is in use")
				}
			})
		})
	}
}

// blocked returns how many clients of s wait in a command like BLPOP.
func blocked(s *redistest.Server) int {
	info, _ := s.Do("INFO", "clients")
	_, rest, _ := strings.Cut(fmt.Sprint(info), "blocked_clients:")
	count, _, _ := strings.Cut(rest, "\r\n")
	n, _ := strconv.Atoi(count)
	return n
}

// withBroughtClients requires what TestOutages does of Lockers with the clients
// that build returns. When strike is called, those to odd.servers are connected.
func withBroughtClients(t *testing.T, healthy []*redistest.Server, odd odd, build func(string) redis.UniversalClient, strike func([]redis.UniversalClient)) {
	ctx := context.Background()
	var sick []redis.UniversalClient // the odd ones of both Lockers
	bring := func(healthy []*redistest.Server, odd []string) *redlock.Locker {
		var instances []redlock.Instance
		for i, addr := range slices.Concat(redistest.Addrs(healthy), odd) {
			c := build(addr)
			t.Cleanup(func() { _ = c.Close() })
			if i >= len(healthy) {
				sick = append(sick, c)
			}
			instances = append(instances, redlock.Instance{Name: addr, Client: c})
		}
		l, err := redlock.New(instances, redlock.WithInstanceTimeout(patience), redlock.WithQuarantine(0))
		require.NoError(t, err)
		return l
	}
	two, three := bring(healthy, odd.endpoints[:2]), bring(healthy[:2], odd.endpoints)
	if odd.servers != nil {
		warm(t, two, slices.Concat(healthy, odd.servers[:2]))
		warm(t, three, slices.Concat(healthy[:2], odd.servers))
	}
	strike(sick)

	var took []time.Duration
	for i := range 40 {
		require.NoError(t, cycle(two, fmt.Sprint(t.Name(), i), &took))
	}
	isFast(t, took)

	begin := time.Now()
	_, err := three.TryAcquire(ctx, t.Name(), long)
	require.Less(t, time.Since(begin), patience+grace)
	requireNoQuorum(t, err, odd.endpoints)
	short, cancel := context.WithTimeout(ctx, 100*time.Millisecond)
	defer cancel()
	_, err = three.Acquire(short, t.Name(), long)
	require.Less(t, time.Since(deadlineOf(short)), fast)
	require.ErrorIs(t, err, context.DeadlineExceeded)
	requireNoQuorum(t, err, odd.endpoints)

	for _, l := range []*redlock.Locker{two, three} {
		begin = time.Now()
		err := l.Close()
		took := time.Since(begin)
		t.Logf("Close took %v: %v", took, err)
		require.Less(t, took, 2500*time.Millisecond)
		if err != nil {
			// Only a lock that a majority may still have, or a call that its client
			// won't give back; and then by name.
			require.NotContains(t, err.Error(), "\n")
			require.True(t, errors.Is(err, redlock.ErrNoQuorum) || slices.ContainsFunc(odd.endpoints, func(addr string) bool { return strings.Contains(err.Error(), addr) }), err)
		}
	}
	becomes(t, func() bool { return !anyHas(healthy, t.Name()) }, "nothing stays on the healthy ones")
}
