package redlock_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/quorumlock/redlock"
	"github.com/quorumlock/redlock/internal/redistest"
)

// The faults that other lock libraries are known for. Each test here breaks when
// the rule against its fault is broken, on real servers.

const (
	soon = 5 * time.Second        // by then, what must happen has happened
	fast = 250 * time.Millisecond // no time-out is in it, also on a busy machine
	long = time.Minute            // a ttl that no test waits for
)

// slots bounds how many servers the parallel tests run at one time.
var (
	slots  = make(chan struct{}, 16)
	slotMu sync.Mutex // one test takes all its slots, then the next one does
)

// start returns n servers. They end with the test.
func start(t testing.TB, n int, args ...string) []*redistest.Server {
	t.Helper()
	redistest.Need(t)
	slotMu.Lock()
	for range n {
		slots <- struct{}{}
	}
	slotMu.Unlock()
	t.Cleanup(func() {
		for range n {
			<-slots
		}
	})
	return redistest.StartN(t, n, args...)
}

// openAt returns a Locker on endpoints, which ends with the test, and in time.
func openAt(t testing.TB, endpoints []string, opts ...redlock.Option) *redlock.Locker {
	t.Helper()
	l, err := redlock.Open(endpoints, fresh(opts)...)
	require.NoError(t, err)
	t.Cleanup(func() {
		begin := time.Now()
		_ = l.Close()
		if took := time.Since(begin); took > 2500*time.Millisecond {
			t.Errorf("Close took %v", took)
		}
	})
	return l
}

func becomes(t testing.TB, condition func() bool, format string, args ...any) {
	t.Helper()
	require.Eventually(t, condition, soon, 2*time.Millisecond, append([]any{format}, args...)...)
}

// get returns the value of key on s, "" where it is absent, and reports whether
// the server answered.
func get(s *redistest.Server, key string) (string, bool) {
	value, err := s.Do("GET", key)
	text, _ := value.(string)
	return text, err == nil
}

// anyHas reports whether key may be on one of servers.
func anyHas(servers []*redistest.Server, key string) bool {
	return slices.ContainsFunc(servers, func(s *redistest.Server) bool {
		value, ok := get(s, key)
		return !ok || value != ""
	})
}

// all reports whether every server says that key has value.
func all(servers []*redistest.Server, key, value string) bool {
	return !slices.ContainsFunc(servers, func(s *redistest.Server) bool {
		v, ok := get(s, key)
		return !ok || v != value
	})
}

// fenceOf returns the key that remembers the fencing token of resource. It stays
// when the lock goes: that it is there tells that an acquire has run.
func fenceOf(resource string) string { return "{" + resource + "}:fence" }

// keysOn returns all keys on s, and with fences false only those that are no fence
// keys.
func keysOn(s *redistest.Server, fences bool) ([]string, error) {
	reply, err := s.Do("KEYS", "*")
	keys, _ := reply.([]any)
	var found []string
	for _, k := range keys {
		if key := fmt.Sprint(k); fences || !strings.HasSuffix(key, ":fence") {
			found = append(found, key)
		}
	}
	return found, err
}

// requireNoOrphans waits until no server has a lock key.
func requireNoOrphans(t testing.TB, servers []*redistest.Server) {
	t.Helper()
	for _, s := range servers {
		becomes(t, func() bool {
			keys, err := keysOn(s, false)
			return err == nil && len(keys) == 0
		}, "no lock key is left on %s", s.Addr())
	}
}

// occupy makes resource somebody else's.
func occupy(t testing.TB, servers []*redistest.Server, resource, owner string) {
	t.Helper()
	for _, s := range servers {
		s.MustDo(t, "SET", resource, owner, "PX", "60000")
	}
}

func remove(t testing.TB, servers []*redistest.Server, key string) {
	t.Helper()
	for _, s := range servers {
		s.MustDo(t, "DEL", key)
	}
}

// A rig is n servers, each behind a proxy that notes what it is sent.
type rig struct {
	t       testing.TB
	servers []*redistest.Server
	proxies []*redistest.Proxy

	mu     sync.Mutex
	seen   [][]request // of each proxy
	onSeen func(i int, q request)
}

// A request is one operation of a batch, on its way to a server.
type request struct {
	letter string // of lua/batch.lua: a(cquire), r(aise), e(xtend), h(eal), d(elete); a, too, for that of one that waits
	owner  string
	ttl    string // in ms, of an acquire
	chunk  []byte // what was sent with it
}

var requestPattern = regexp.MustCompile(`\$1\r\n([arehdw])\r\n\$26\r\n([A-Z2-7]{26})\r\n(?:\$\d+\r\n(\d+)\r\n)?`)

func newRig(t testing.TB, n int, args ...string) *rig {
	t.Helper()
	g := &rig{t: t, servers: start(t, n, args...), seen: make([][]request, n)}
	for i, s := range g.servers {
		p := redistest.NewProxy(t, s.Addr())
		g.watch(p, i)
		g.proxies = append(g.proxies, p)
	}
	return g
}

// watch notes what p delivers as sent to instance i.
func (g *rig) watch(p *redistest.Proxy, i int) {
	p.OnRequest(func(chunk []byte) {
		for _, m := range requestPattern.FindAllSubmatch(chunk, -1) {
			q := request{strings.Replace(string(m[1]), "w", "a", 1), string(m[2]), string(m[3]), chunk}
			g.mu.Lock()
			g.seen[i] = append(g.seen[i], q)
			f := g.onSeen
			g.mu.Unlock()
			if f != nil {
				f(i, q)
			}
		}
	})
}

// onRequest calls f for each operation just before it is delivered.
func (g *rig) onRequest(f func(i int, q request)) {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.onSeen = f
}

// sent returns what instance i was sent so far.
func (g *rig) sent(i int) []request {
	g.mu.Lock()
	defer g.mu.Unlock()
	return slices.Clone(g.seen[i])
}

// letters returns the operations that instance i was sent so far.
func (g *rig) letters(i int) string {
	var s strings.Builder
	for _, q := range g.sent(i) {
		s.WriteString(q.letter)
	}
	return s.String()
}

// of returns the operations of one owner that instance i was sent so far.
func (g *rig) of(i int, owner string) string {
	var s strings.Builder
	for _, q := range g.sent(i) {
		if q.owner == owner {
			s.WriteString(q.letter)
		}
	}
	return s.String()
}

func (g *rig) endpoints() []string {
	return sequence(len(g.proxies), func(i int) string { return g.proxies[i].Addr() })
}

func (g *rig) open(opts ...redlock.Option) *redlock.Locker {
	g.t.Helper()
	return openAt(g.t, g.endpoints(), opts...)
}

// bring returns a Locker with clients of ours, which try again by themselves.
func (g *rig) bring(o redis.Options, opts ...redlock.Option) *redlock.Locker {
	g.t.Helper()
	var instances []redlock.Instance
	for _, p := range g.proxies {
		o := o
		o.Addr = p.Addr()
		c := redis.NewClient(&o)
		g.t.Cleanup(func() { _ = c.Close() })
		instances = append(instances, redlock.Instance{Client: c})
	}
	l, err := redlock.New(instances, fresh(opts)...)
	require.NoError(g.t, err)
	g.t.Cleanup(func() { _ = l.Close() })
	return l
}

// warm makes l connect to all instances, and them know its script.
func warm(t testing.TB, l *redlock.Locker, servers []*redistest.Server) {
	t.Helper()
	resource := t.Name() + " warm"
	ctx, cancel := context.WithTimeout(t.Context(), soon)
	defer cancel()
	lock, err := l.Acquire(ctx, resource, long)
	require.NoError(t, err)
	becomes(t, func() bool { return lock.Extend(ctx, long) == nil && all(servers, resource, lock.Owner()) }, "it is on all")
	require.NoError(t, lock.Release(ctx))
	becomes(t, func() bool { return !anyHas(servers, resource) }, "it is on none")
	remove(t, servers, fenceOf(resource))
}

// replay sends a chunk to s, once more, and waits until it has run.
func replay(t testing.TB, s *redistest.Server, chunk []byte) {
	t.Helper()
	conn, err := net.Dial("tcp", s.Addr())
	require.NoError(t, err)
	defer conn.Close()
	require.NoError(t, conn.SetDeadline(time.Now().Add(soon)))
	_, err = conn.Write(append(slices.Clone(chunk), "*1\r\n$4\r\nQUIT\r\n"...))
	require.NoError(t, err)
	_, err = io.Copy(io.Discard, conn)
	require.NoError(t, err)
}

// Fault: one random value for all retries, so that a late release of the first
// try deletes the key of the second.
func TestReleaseOfAFailedRoundCannotTouchTheNext(t *testing.T) {
	t.Parallel()
	g := newRig(t, 3)
	for _, s := range g.servers { // who is not told of releases asks again, and does not only look
		_, err := s.Do("ACL", "SETUSER", "default", "-subscribe")
		require.NoError(t, err)
	}
	l := g.open(redlock.WithRetryDelay(time.Millisecond, 5*time.Millisecond))
	warm(t, l, g.servers)
	before := len(g.sent(0))
	for _, s := range g.servers {
		s.MustDo(t, "ACL", "SETUSER", "default", "-subscribe") // who hears of releases asks three times, and then only looks
	}
	occupy(t, g.servers[1:], "r", "somebody else")
	// Five rounds ask the first instance, and lose.
	ready := make(chan struct{})
	var rounds atomic.Int32
	g.onRequest(func(i int, q request) {
		if i == 0 && q.letter == "a" && rounds.Add(1) == 5 {
			close(ready)
		}
	})
	go func() {
		<-ready
		for _, s := range g.servers[1:] {
			_, _ = s.Do("DEL", "r")
		}
	}()
	ctx, cancel := context.WithTimeout(t.Context(), soon)
	defer cancel()
	lock, err := l.Acquire(ctx, "r", long)
	require.NoError(t, err)
	becomes(t, func() bool {
		return lock.Extend(t.Context(), long) == nil && all(g.servers, "r", lock.Owner())
	}, "it is on all, also where it was freed too late")

	owners := map[string]bool{}
	for _, q := range g.sent(0)[before:] {
		if q.letter == "a" {
			require.False(t, owners[q.owner], "an owner for each round")
			owners[q.owner] = true
		}
	}
	require.GreaterOrEqual(t, len(owners), 5)
	for i, s := range g.servers {
		for _, q := range g.sent(i) {
			replay(t, s, q.chunk)
		}
	}
	require.True(t, all(g.servers, "r", lock.Owner()))
	require.NoError(t, lock.Extend(t.Context(), long))
}

// Fault: clean-up runs on the caller's cancelled context, and so not at all.
func TestCancelledCallLeavesNoKey(t *testing.T) {
	t.Parallel()
	g := newRig(t, 3)
	l := g.open()
	warm(t, l, g.servers)
	for _, p := range g.proxies {
		p.DelayReplies(30 * time.Millisecond)
	}
	calls := []func(context.Context, string) (*redlock.Lock, error){
		func(ctx context.Context, r string) (*redlock.Lock, error) { return l.Acquire(ctx, r, long) },
		func(ctx context.Context, r string) (*redlock.Lock, error) { return l.TryAcquire(ctx, r, long) },
	}
	for n, call := range calls {
		resource := fmt.Sprint("r", n)
		ctx, cancel := context.WithCancel(t.Context())
		g.onRequest(func(_ int, q request) {
			if q.letter == "a" {
				cancel() // the request has left, no reply is back
			}
		})
		lock, err := call(ctx, resource)
		require.ErrorIs(t, err, context.Canceled)
		require.Nil(t, lock)
		becomes(t, func() bool { return anyHas(g.servers, fenceOf(resource)) }, "an instance had granted")
		becomes(t, func() bool { return !anyHas(g.servers, resource) }, "the key is gone, 59 s before its ttl is over")
		cancel()
	}
}

// Fault: everybody waits for the slowest node.
func TestHungInstanceDelaysNobody(t *testing.T) {
	t.Parallel()
	servers := start(t, 3)
	l := openAt(t, redistest.Addrs(servers))
	warm(t, l, servers)
	// It hangs anew for each lock: after a second of silence, nobody asks it.
	const times = 9
	var acquires, extends, releases, refusals []time.Duration
	for i := range times {
		require.NoError(t, servers[2].Pause())
		var took []time.Duration
		require.NoError(t, cycle(l, fmt.Sprint("r", i), &took))
		lock, err := l.TryAcquire(t.Context(), "taken", long)
		require.NoError(t, err)
		begin := time.Now()
		_, err = l.TryAcquire(t.Context(), "taken", long)
		took = append(took, time.Since(begin))
		require.ErrorIs(t, err, redlock.ErrTaken)
		require.NoError(t, lock.Release(t.Context()))
		require.NoError(t, servers[2].Resume())
		acquires, extends = append(acquires, took[0]), append(extends, took[1])
		releases, refusals = append(releases, took[2]), append(refusals, took[3])
		becomes(t, func() bool { return !anyHas(servers, "taken") }, "it answers again")
	}
	for what, took := range map[string][]time.Duration{
		"acquire": acquires, "extend": extends, "release": releases, "refusal": refusals,
	} {
		// The median, as a busy machine may be slow once or twice.
		slices.Sort(took)
		t.Logf("%s: %v", what, took)
		require.Less(t, took[times/2], fast, what)
	}
}

// Fault: a release on a connection of its own overtakes its acquire, on the
// instance that is slow.
func TestNoReleaseOvertakesItsAcquire(t *testing.T) {
	t.Parallel()
	g := newRig(t, 3)
	l := g.open()
	warm(t, l, g.servers)
	for wave := range 10 {
		// What is sent on another connection would overtake what is under way.
		g.proxies[2].DelayRequests(50 * time.Millisecond)
		before := len(g.sent(2))
		locks := make([]*redlock.Lock, 20)
		errs := make([]error, 20)
		var wg sync.WaitGroup
		for i := range locks {
			wg.Go(func() { locks[i], errs[i] = l.TryAcquire(t.Context(), fmt.Sprint("r", wave, "-", i), long) })
		}
		wg.Wait()
		require.NoError(t, errors.Join(errs...))
		g.proxies[2].DelayRequests(0)
		for i, lock := range locks {
			wg.Go(func() { errs[i] = lock.Release(t.Context()) })
		}
		wg.Wait()
		require.NoError(t, errors.Join(errs...))
		becomes(t, func() bool { return len(g.sent(2)) > before }, "the straggler has a part in it")
	}
	// What is still under way arrives before this one.
	last, err := l.TryAcquire(t.Context(), "last", long)
	require.NoError(t, err)
	becomes(t, func() bool { return all(g.servers, "last", last.Owner()) }, "the last one arrives")
	require.NoError(t, last.Release(t.Context()))
	requireNoOrphans(t, g.servers)
}

// Fault: the request in the socket buffer of a hung server runs when it resumes,
// after the release on a new connection.
func TestOwnerLeftOnAStoppedServerIsCleanedUp(t *testing.T) {
	t.Parallel()
	servers := start(t, 3)
	const n = 20 // Lockers, and so connections with one request each
	var down sync.WaitGroup
	down.Add(n)
	var lockers []*redlock.Locker
	for range n {
		var once sync.Once
		l := openAt(t, redistest.Addrs(servers), redlock.WithObserver(redlock.Observer{Instance: func(e redlock.InstanceEvent) {
			if e.Change == redlock.InstanceDown {
				once.Do(down.Done)
			}
		}}))
		warm(t, l, servers)
		lockers = append(lockers, l)
	}
	require.NoError(t, servers[2].Pause())
	var locks []*redlock.Lock
	for i, l := range lockers {
		lock, err := l.TryAcquire(t.Context(), fmt.Sprint("r", i), long)
		require.NoError(t, err)
		locks = append(locks, lock)
	}
	for _, lock := range locks {
		require.NoError(t, lock.Release(t.Context()))
	}
	down.Wait() // the connections are given up, the requests are in their buffers
	require.NoError(t, servers[2].Resume())

	becomes(t, func() bool {
		for i := range n {
			if fence, _ := get(servers[2], fenceOf(fmt.Sprint("r", i))); fence == "" {
				return false
			}
		}
		return true
	}, "the acquires run after all")
	requireNoOrphans(t, servers)
}

// reroute makes connections to g's last instance go through a second proxy, from
// the call of the function that it returns on. So what is held in the first one is
// overtaken by what is sent later, as it is in a network.
func (g *rig) reroute(wrap func(net.Conn) net.Conn) (dialer func(context.Context, string, string) (net.Conn, error), onto *redistest.Proxy, now func()) {
	last := len(g.servers) - 1
	onto = redistest.NewProxy(g.t, g.servers[last].Addr())
	g.watch(onto, last)
	var rerouted atomic.Bool
	from := g.proxies[last].Addr()
	dialer = func(ctx context.Context, network, addr string) (net.Conn, error) {
		if addr == from && rerouted.Load() {
			addr = onto.Addr()
		}
		var d net.Dialer
		conn, err := d.DialContext(ctx, network, addr)
		if err == nil && wrap != nil {
			conn = wrap(conn)
		}
		return conn, err
	}
	return dialer, onto, func() { rerouted.Store(true) }
}

// One confirmed release is not enough: the request may still be under way then.
func TestRequestThatArrivesAfterTheFirstCleanUpIsCleanedUp(t *testing.T) {
	t.Parallel()
	g := newRig(t, 3)
	dialer, _, reroute := g.reroute(nil)
	l := g.open(redlock.WithClientOptions(func(o *redis.Options) { o.Dialer = dialer }))
	warm(t, l, g.servers)
	held := g.proxies[2]
	held.HoldRequests(true)
	reroute()
	lock, err := l.TryAcquire(t.Context(), "r", long)
	require.NoError(t, err)
	cleaned := make(chan struct{})
	var once sync.Once
	g.onRequest(func(i int, q request) {
		if i == 2 && q.letter == "d" && q.owner == lock.Owner() {
			once.Do(func() { close(cleaned) })
		}
	})
	require.NoError(t, lock.Release(t.Context()))
	select {
	case <-cleaned: // on a new connection: there is nothing yet
	case <-time.After(soon):
		require.Fail(t, "no release was sent on the new connection")
	}
	becomes(t, func() bool { return answered(g.servers[2]) }, "the release has run")
	require.True(t, all(g.servers[2:], fenceOf("r"), ""), "the acquire has not run")
	held.HoldRequests(false)
	becomes(t, func() bool { return !all(g.servers[2:], fenceOf("r"), "") }, "now it runs")
	requireNoOrphans(t, g.servers)
}

// answered reports whether s has run what it was sent before.
func answered(s *redistest.Server) bool {
	_, err := s.Do("PING")
	return err == nil
}

// The same with a client that tries again behind our back: its first request is
// still under way when the second one is granted, and when the lock is released.
func TestFirstCopyOfARetriedRequestIsCleanedUp(t *testing.T) {
	t.Parallel()
	g := newRig(t, 1)
	var mu sync.Mutex
	var conns []*breakable
	dialer, _, reroute := g.reroute(func(conn net.Conn) net.Conn {
		mu.Lock()
		defer mu.Unlock()
		b := &breakable{Conn: conn}
		conns = append(conns, b)
		return b
	})
	l := g.bring(redis.Options{MaxRetries: 3, Dialer: dialer})
	warm(t, l, g.servers)
	g.proxies[0].HoldRequests(true)
	reroute()
	time.AfterFunc(50*time.Millisecond, func() { // the acquire has left by then, or the test shows nothing
		mu.Lock()
		defer mu.Unlock()
		for _, c := range conns {
			c.breakNow()
		}
	})
	lock, err := l.TryAcquire(t.Context(), "r", long)
	require.NoError(t, err)
	first, before := lock.FencingToken(), scriptsRun(t, g.servers[0])
	require.NoError(t, lock.Release(t.Context()))
	require.False(t, anyHas(g.servers, "r"))
	becomes(t, func() bool { return scriptsRun(t, g.servers[0]) == before+2 }, "the clean-up has released it once more")
	g.proxies[0].HoldRequests(false)
	becomes(t, func() bool {
		fence, _ := get(g.servers[0], fenceOf("r"))
		n, _ := strconv.ParseUint(fence, 10, 64)
		return n > first
	}, "the first copy runs, and is a fresh grant")
	requireNoOrphans(t, g.servers)
}

// scriptsRun returns how many scripts s has run.
func scriptsRun(t *testing.T, s *redistest.Server) int {
	t.Helper()
	stats, _ := s.MustDo(t, "INFO", "commandstats").(string)
	var n int
	_, rest, _ := strings.Cut(stats, "cmdstat_evalsha:calls=")
	_, _ = fmt.Sscanf(rest, "%d", &n)
	return n
}

// A breakable is a connection whose reads end early, once.
type breakable struct {
	net.Conn
	broken atomic.Bool
}

func (b *breakable) breakNow() {
	b.broken.Store(true)
	_ = b.SetReadDeadline(time.Unix(1, 0))
}

func (b *breakable) Read(p []byte) (int, error) {
	n, err := b.Conn.Read(p)
	if err != nil && b.broken.Load() {
		return n, io.EOF
	}
	return n, err
}

// Fault: the client sends a request again whose reply was lost, and our own key
// looks like somebody else's.
func TestLostReplyIsNoRefusal(t *testing.T) {
	t.Parallel()
	g := newRig(t, 3)
	l := g.bring(redis.Options{MaxRetries: 3})
	warm(t, l, g.servers)
	const before = uint64(4_000_000_000_000_000) // a token far ahead of the clock: each grant adds one
	for i, s := range g.servers {
		s.MustDo(t, "SET", fenceOf("r"), strconv.FormatUint(before, 10))
		g.proxies[i].CutReplies(fenceOf("r"))
	}
	lock, err := l.TryAcquire(t.Context(), "r", long)
	require.NoError(t, err)
	becomes(t, func() bool { return all(g.servers, "r", lock.Owner()) }, "all have granted")
	require.EqualValues(t, before+1, lock.FencingToken())
	for i := range g.servers {
		becomes(t, func() bool { return strings.HasSuffix(g.letters(i), "aa") }, "it was sent twice")
	}
	require.True(t, all(g.servers, fenceOf("r"), strconv.FormatUint(before+1, 10)), "counted up once")
	require.NoError(t, lock.Release(t.Context()))
	requireNoOrphans(t, g.servers)
}

// Nor is it a loss: a release that was sent twice finds nothing the second time.
func TestLostReplyOfAReleaseIsNoLoss(t *testing.T) {
	t.Parallel()
	g := newRig(t, 3)
	l := g.bring(redis.Options{MaxRetries: 3})
	warm(t, l, g.servers)
	lock, err := l.TryAcquire(t.Context(), "r", long)
	require.NoError(t, err)
	becomes(t, func() bool { return all(g.servers, "r", lock.Owner()) }, "all have granted")
	for _, p := range g.proxies {
		p.CutReplies(lock.Owner())
	}
	require.NoError(t, lock.Release(t.Context()))
	requireNoOrphans(t, g.servers)
}

// Where nobody tries again, a grant whose reply was lost is a failed vote, and
// is cleaned up.
func TestGrantWhoseReplyWasLostIsCleanedUp(t *testing.T) {
	t.Parallel()
	for name, lose := range map[string]func(*redistest.Proxy, string){
		"swallowed": func(p *redistest.Proxy, _ string) { p.SwallowReplies(true) },
		"cut":       func(p *redistest.Proxy, resource string) { p.CutReplies(fenceOf(resource)) },
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			g := newRig(t, 3)
			l := g.open(redlock.WithInstanceTimeout(patience))
			warm(t, l, g.servers)
			for _, p := range g.proxies[1:] {
				lose(p, "r")
			}
			_, err := l.TryAcquire(t.Context(), "r", long)
			require.ErrorIs(t, err, redlock.ErrNoQuorum)
			require.NotErrorIs(t, err, redlock.ErrTaken)
			becomes(t, func() bool { return !all(g.servers[1:2], fenceOf("r"), "") }, "it was granted")
			for _, p := range g.proxies[1:] {
				p.SwallowReplies(false)
			}
			requireNoOrphans(t, g.servers)
		})
	}
}

// Messages that arrive twice do no harm.
func TestDuplicatedRequestsDoNoHarm(t *testing.T) {
	t.Parallel()
	g := newRig(t, 3)
	l := g.open(redlock.WithRetryDelay(time.Millisecond, 5*time.Millisecond))
	for _, p := range g.proxies {
		p.DuplicateRequests(true)
	}
	ctx, cancel := context.WithTimeout(t.Context(), 4*soon)
	defer cancel()
	var last uint64
	for range 50 {
		lock, err := l.Acquire(ctx, "r", long)
		require.NoError(t, err)
		require.Greater(t, lock.FencingToken(), last)
		last = lock.FencingToken()
		require.NoError(t, lock.Extend(ctx, long))
		if err := lock.Release(ctx); err != nil {
			// A duplicate on its own connection may be first; then there is nothing left to delete.
			requireLost(t, err, redlock.LostExpired)
		}
	}
	requireNoOrphans(t, g.servers)
}

// Fault: an extend revives a lease that has expired.
func TestExtendDoesNotReviveAnExpiredLease(t *testing.T) {
	t.Parallel()
	g := newRig(t, 3)
	l := g.open(redlock.WithInstanceTimeout(patience))
	warm(t, l, g.servers)
	lock, err := l.TryAcquire(t.Context(), "r", 2*patience)
	require.NoError(t, err)
	becomes(t, func() bool { return lock.Remaining() <= 0 }, "the window ends")
	requireLost(t, lock.Extend(t.Context(), long), redlock.LostExpired)
	requireLost(t, lock.Extend(t.Context(), long), redlock.LostExpired)
	requireLost(t, lock.Release(t.Context()), redlock.LostExpired)
	requireNoOrphans(t, g.servers)
	for i := range g.servers {
		require.NotContains(t, g.of(i, lock.Owner()), "e")
	}
}

func requireLost(t testing.TB, err error, reason redlock.LostReason) {
	t.Helper()
	require.ErrorIs(t, err, redlock.ErrLost)
	lost, ok := errors.AsType[*redlock.LostError](err)
	require.True(t, ok)
	require.Equal(t, reason, lost.Reason, err)
	require.NotContains(t, err.Error(), "\n")
}

// Fault: SetNXOnExtend, which sets the key again where it is gone, after somebody
// else came and went.
func TestExtendDoesNotReviveALeaseThatSomebodyElseHad(t *testing.T) {
	t.Parallel()
	g := newRig(t, 3)
	ours, others := g.open(), g.open()
	lock, err := ours.TryAcquire(t.Context(), "r", long)
	require.NoError(t, err)
	becomes(t, func() bool { return all(g.servers, "r", lock.Owner()) }, "all have granted")
	remove(t, g.servers[:2], "r")
	other, err := others.TryAcquire(t.Context(), "r", long)
	require.NoError(t, err)
	require.Greater(t, other.FencingToken(), lock.FencingToken())
	require.NoError(t, other.Release(t.Context()))

	requireLost(t, lock.Extend(t.Context(), long), redlock.LostExpired)
	requireLost(t, lock.Extend(t.Context(), long), redlock.LostExpired)
	requireLost(t, lock.Release(t.Context()), redlock.LostExpired)
	requireNoOrphans(t, g.servers)
	for i := range g.servers {
		require.NotContains(t, g.letters(i), "h")
	}
}

// A heal is not for an instance that has granted the resource since: it has a
// larger token.
func TestHealPassesOverAnInstanceThatGrantedALargerToken(t *testing.T) {
	t.Parallel()
	g := newRig(t, 3)
	heals := newEvents("heal")
	l := g.open(redlock.WithObserver(heals.observer()))
	lock, err := l.TryAcquire(t.Context(), "r", long)
	require.NoError(t, err)
	becomes(t, func() bool { return all(g.servers, "r", lock.Owner()) }, "all have granted")
	// Somebody who found no majority came and went.
	remove(t, g.servers[2:], "r")
	token := strconv.FormatUint(lock.FencingToken()+1, 10)
	g.servers[2].MustDo(t, "SET", fenceOf("r"), token)

	require.NoError(t, lock.Extend(t.Context(), long))
	require.False(t, heals.next(t).Won)
	require.True(t, all(g.servers[2:], "r", ""))
	require.True(t, all(g.servers[2:], fenceOf("r"), token))
	require.NoError(t, lock.Release(t.Context()))
}

// An instance that granted a larger number than the quorum decided on confirms
// nothing: the observer hears of it, and the others extend. It is no loss either:
// without one of them nobody can tell.
func TestAThinHoldIsSeenAndExtendsWithTheOthers(t *testing.T) {
	t.Parallel()
	g := newRig(t, 3)
	acquires, extends := newEvents("acquire"), newEvents("extend")
	l := g.open(redlock.WithInstanceTimeout(patience), redlock.WithObserver(redlock.Observer{Round: func(r redlock.RoundEvent) {
		acquires.observer().Round(r)
		extends.observer().Round(r)
	}}))
	warm(t, l, g.servers)
	const ahead = uint64(4_000_000_000_000_000)
	g.servers[2].MustDo(t, "SET", fenceOf("r"), strconv.FormatUint(ahead, 10))
	g.proxies[2].HoldReplies(true)
	lock, err := l.TryAcquire(t.Context(), "r", long)
	require.NoError(t, err)
	g.proxies[2].HoldReplies(false)
	require.Less(t, lock.FencingToken(), ahead, "the two others decided")
	require.Equal(t, 1, acquires.nextOf(t, lock).Thin())

	require.NoError(t, lock.Extend(t.Context(), long))
	e := extends.nextOf(t, lock)
	require.True(t, e.Won)
	require.Equal(t, 1, e.Thin())
	require.Equal(t, "failed", e.Votes[2].Vote)
	require.Equal(t, ahead+1, e.Votes[2].Fence)
	require.True(t, all(g.servers[2:], fenceOf("r"), strconv.FormatUint(ahead+1, 10)), "never down")

	g.proxies[1].Refuse(true)
	g.proxies[1].Break()
	err = lock.Extend(t.Context(), long)
	require.ErrorIs(t, err, redlock.ErrNoQuorum)
	require.NotErrorIs(t, err, redlock.ErrLost)
	require.ErrorContains(t, err, "beyond our token")
	require.Positive(t, lock.Remaining())
	g.proxies[1].Refuse(false)
	require.NoError(t, lock.Release(t.Context()))
	requireNoOrphans(t, g.servers)
}

// A fence that is no number below 2^53 is a failed vote of its instance, and never
// a token: a minority of them costs nothing, with a majority there is no lock.
func TestABadFenceIsAFailedVote(t *testing.T) {
	t.Parallel()
	servers := start(t, 3)
	l := openAt(t, redistest.Addrs(servers))
	for i, bad := range []string{"", "x", "-5", "+5", "1e3", "0x10", "nan", "inf", "1.5", " 7", "9007199254740992", "18446744073709551615"} {
		minority, majority := fmt.Sprint("minority", i), fmt.Sprint("majority", i)
		servers[0].MustDo(t, "SET", fenceOf(minority), bad)
		servers[0].MustDo(t, "SET", fenceOf(majority), bad)
		servers[1].MustDo(t, "SET", fenceOf(majority), bad)

		lock, err := l.TryAcquire(t.Context(), minority, long)
		require.NoError(t, err, "%q", bad)
		require.InDelta(t, time.Now().UnixMicro(), lock.FencingToken(), 60e6, "%q", bad)
		require.NoError(t, lock.Extend(t.Context(), long), "%q", bad)
		require.NoError(t, lock.Release(t.Context()), "%q", bad)

		lock, err = l.TryAcquire(t.Context(), majority, long)
		require.Nil(t, lock, "%q", bad)
		require.ErrorIs(t, err, redlock.ErrNoQuorum, "%q", bad)
		require.ErrorContains(t, err, "the fence key holds no token", "%q", bad)
		for _, s := range servers[:2] {
			require.Equal(t, bad, s.MustDo(t, "GET", fenceOf(majority)), "it is left for somebody to look at")
		}
	}
	requireNoOrphans(t, servers)
}

// events are the rounds of one operation that an Observer hears of.
type events struct {
	op string
	ch chan redlock.RoundEvent
}

func newEvents(op string) events { return events{op, make(chan redlock.RoundEvent, 1000)} }

func (e events) observer() redlock.Observer {
	return redlock.Observer{Round: func(r redlock.RoundEvent) {
		if r.Op == e.op {
			e.ch <- r
		}
	}}
}

func (e events) next(t testing.TB) redlock.RoundEvent {
	t.Helper()
	select {
	case r := <-e.ch:
		return r
	case <-time.After(soon):
		require.Fail(t, "no event of a "+e.op)
		return redlock.RoundEvent{}
	}
}

// nextOf passes over the rounds of other locks.
func (e events) nextOf(t testing.TB, lock *redlock.Lock) redlock.RoundEvent {
	t.Helper()
	for {
		if r := e.next(t); r.Token == lock.FencingToken() {
			return r
		}
	}
}

// Fault: a hold shrinks to a bare majority and dies at the next restart.
func TestExtendHealsAnInstanceThatLostTheKey(t *testing.T) {
	t.Parallel()
	for name, forget := range map[string]func(t *testing.T, s *redistest.Server){
		"the key":      func(t *testing.T, s *redistest.Server) { s.MustDo(t, "DEL", "r") },
		"everything":   func(t *testing.T, s *redistest.Server) { s.MustDo(t, "FLUSHALL") },
		"in a restart": func(t *testing.T, s *redistest.Server) { require.NoError(t, s.Restart()) },
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			servers := start(t, 3)
			l := openAt(t, redistest.Addrs(servers))
			lock, err := l.TryAcquire(t.Context(), "r", long)
			require.NoError(t, err)
			becomes(t, func() bool { return all(servers, "r", lock.Owner()) }, "all have granted")
			forget(t, servers[0])
			require.True(t, all(servers[:1], "r", ""))
			becomes(t, func() bool {
				return lock.Extend(t.Context(), long) == nil && all(servers, "r", lock.Owner())
			}, "it is back, on an instance that may have to be connected to first")
			require.True(t, all(servers, fenceOf("r"), strconv.FormatUint(lock.FencingToken(), 10)))
			left, ok := servers[0].MustDo(t, "PTTL", "r").(int64)
			require.True(t, ok)
			require.Greater(t, left, int64(50_000))
			require.LessOrEqual(t, left, int64(60_000))

			// So it survives the loss of another one.
			require.NoError(t, servers[1].Kill())
			require.NoError(t, lock.Extend(t.Context(), long))
			require.NoError(t, lock.Release(t.Context()))
		})
	}
}

func TestHoldOnABareMajorityIsHealed(t *testing.T) {
	t.Parallel()
	servers := start(t, 3)
	require.NoError(t, servers[2].Kill())
	l := openAt(t, redistest.Addrs(servers))
	lock, err := l.TryAcquire(t.Context(), "r", long)
	require.NoError(t, err)
	require.NoError(t, servers[2].Restart())
	becomes(t, func() bool {
		return lock.Extend(t.Context(), long) == nil && all(servers, "r", lock.Owner())
	}, "it has the key, too")
	require.NoError(t, lock.Release(t.Context()))
	requireNoOrphans(t, servers)
}

func TestExtendLeavesAForeignKeyAlone(t *testing.T) {
	t.Parallel()
	g := newRig(t, 3)
	l := g.open()
	lock, err := l.TryAcquire(t.Context(), "r", long)
	require.NoError(t, err)
	becomes(t, func() bool { return all(g.servers, "r", lock.Owner()) }, "all have granted")
	g.servers[2].MustDo(t, "SET", "r", "somebody else", "PX", "30000")
	for range 5 {
		require.NoError(t, lock.Extend(t.Context(), long))
	}
	require.NoError(t, lock.Release(t.Context()))
	becomes(t, func() bool { return !anyHas(g.servers[:2], "r") && strings.HasSuffix(g.letters(2), "d") }, "released everywhere")
	require.True(t, all(g.servers[2:], "r", "somebody else"))
	left, ok := g.servers[2].MustDo(t, "PTTL", "r").(int64)
	require.True(t, ok)
	require.LessOrEqual(t, left, int64(30_000))
	require.NotContains(t, g.of(2, lock.Owner()), "h")
}

// Nothing is created unless a majority confirmed the extend.
func TestNothingIsHealedWithoutAMajority(t *testing.T) {
	t.Parallel()
	g := newRig(t, 3)
	l := g.open(redlock.WithInstanceTimeout(patience))
	warm(t, l, g.servers)
	lock, err := l.TryAcquire(t.Context(), "r", long)
	require.NoError(t, err)
	becomes(t, func() bool { return all(g.servers, "r", lock.Owner()) }, "all have granted")
	remove(t, g.servers[2:], "r")
	g.proxies[1].SwallowRequests(true)
	for range 3 {
		err = lock.Extend(t.Context(), long)
		require.ErrorIs(t, err, redlock.ErrNoQuorum)
		require.NotErrorIs(t, err, redlock.ErrLost, "it may still be ours")
	}
	require.Positive(t, lock.Remaining())
	require.True(t, all(g.servers[2:], "r", ""))
	require.NotContains(t, g.of(2, lock.Owner()), "h")

	// The second instance is back, and with it the majority.
	g.proxies[1].SwallowRequests(false)
	becomes(t, func() bool { return lock.Extend(t.Context(), long) == nil }, "a majority confirms")
	becomes(t, func() bool { return all(g.servers, "r", lock.Owner()) }, "now it is healed")
	require.NoError(t, lock.Release(t.Context()))
	requireNoOrphans(t, g.servers)
}

// Fault: a lock whose validity is over, or nearly, is handed out as acquired.
func TestLockThatIsTooLateIsNotHandedOut(t *testing.T) {
	t.Parallel()
	const lease, delay = 400 * time.Millisecond, 200 * time.Millisecond
	g := newRig(t, 3)
	l := g.open(redlock.WithInstanceTimeout(time.Second))
	warm(t, l, g.servers)
	for _, p := range g.proxies {
		p.DelayReplies(delay)
	}
	lock, err := l.TryAcquire(t.Context(), "r0", lease, redlock.WithMinValidity(lease-delay))
	require.ErrorIs(t, err, redlock.ErrExpired)
	require.NotErrorIs(t, err, redlock.ErrNoQuorum)
	require.Nil(t, lock)
	becomes(t, func() bool { return !anyHas(g.servers, "r0") }, "the keys are gone")

	// The replies come around the end of the window: before it with a rest, or
	// not at all.
	for i := range 4 {
		for _, p := range g.proxies {
			p.DelayReplies(lease - time.Duration(i)*4*time.Millisecond)
		}
		resource := fmt.Sprint("r", i+1)
		begin := time.Now()
		lock, err := l.TryAcquire(t.Context(), resource, lease)
		if err == nil {
			require.Less(t, lock.Remaining(), lease-time.Since(begin))
			_ = lock.Release(t.Context())
			continue
		}
		require.True(t, errors.Is(err, redlock.ErrExpired) || errors.Is(err, redlock.ErrNoQuorum), err)
		require.Less(t, time.Since(begin), time.Second+fast) // the instance time-out
	}
}

// Validity counts from before the first byte was sent, also where a second round
// trip was needed.
func TestValidityCountsFromBeforeTheFirstByte(t *testing.T) {
	t.Parallel()
	const delay = 50 * time.Millisecond
	g := newRig(t, 3)
	l := g.open()
	warm(t, l, g.servers)
	for i, s := range g.servers {
		g.proxies[i].DelayReplies(delay)
		s.MustDo(t, "SET", fenceOf("uneven"), strconv.FormatUint(4_000_000_000_000_000+uint64(i), 10))
	}
	full := long - long/100 - 2*time.Millisecond
	even, err := l.TryAcquire(t.Context(), "even", long)
	require.NoError(t, err)
	require.Less(t, even.Remaining(), full-delay)
	uneven, err := l.TryAcquire(t.Context(), "uneven", long)
	require.NoError(t, err)
	require.Less(t, uneven.Remaining(), full-2*delay, "raised in a second round trip")
	require.Less(t, time.Until(uneven.ValidUntil()), full-2*delay)
	require.NoError(t, even.Extend(t.Context(), 2*long))
	require.Less(t, even.Remaining(), 2*full+2*time.Millisecond-delay)
	require.NoError(t, even.Release(t.Context()))
	require.NoError(t, uneven.Release(t.Context()))
}

// A server never expires a key before the holder's window is over.
func TestServersKeepTheKeyUntilTheWindowIsOver(t *testing.T) {
	t.Parallel()
	g := newRig(t, 3)
	// The windows are to end on time, the votes need not.
	votes := redlock.WithInstanceTimeout(2 * time.Second)
	l, exact := g.open(votes), g.open(votes, redlock.WithDrift(0, 0))
	warm(t, l, g.servers)
	warm(t, exact, g.servers)
	for _, p := range g.proxies {
		p.DelayReplies(15 * time.Millisecond)
	}
	var clients []*redis.Client
	for _, s := range g.servers {
		c := redis.NewClient(&redis.Options{Addr: s.Addr()})
		t.Cleanup(func() { _ = c.Close() })
		clients = append(clients, c)
	}
	ctx := t.Context()
	check := func(lock *redlock.Lock) error {
		kept := 0
		var left []time.Duration
		for _, c := range clients {
			pttl, err := c.PTTL(ctx, lock.Resource()).Result()
			if err != nil {
				return err
			}
			left = append(left, pttl)
			// The server's clock has a resolution of a millisecond.
			if lock.Remaining() <= pttl+time.Millisecond {
				kept++
			}
		}
		if kept < 2 {
			return fmt.Errorf("%v remain, and on the servers %v", lock.Remaining(), left)
		}
		return nil
	}
	var wg sync.WaitGroup
	errs := make(chan error, 50)
	for w := range 50 {
		wg.Go(func() {
			l := []*redlock.Locker{l, exact}[w%2]
			errs <- func() error {
				for i := range 5 {
					// A fraction of a millisecond is the servers', not ours.
					lock, err := l.TryAcquire(ctx, fmt.Sprint("r", w, "-", i), 3*time.Second+300*time.Microsecond)
					if err != nil {
						return err
					}
					if err := check(lock); err != nil {
						return fmt.Errorf("acquired: %w", err)
					}
					if err := lock.Extend(ctx, 5*time.Second+time.Duration(i)*100*time.Microsecond); err != nil {
						return err
					}
					if err := check(lock); err != nil {
						return fmt.Errorf("extended: %w", err)
					}
					if err := lock.Release(ctx); err != nil {
						return err
					}
				}
				return nil
			}()
		})
	}
	wg.Wait()
	for range 50 {
		require.NoError(t, <-errs)
	}
}

// Fault: the keys that a lost round got block the next try.
func TestKeysOfALostRoundDoNotBlockTheNext(t *testing.T) {
	t.Parallel()
	g := newRig(t, 3)
	l := g.open(redlock.WithRetryDelay(time.Millisecond, 5*time.Millisecond))
	// One is ours, one is somebody else's for a while, one does not answer: it
	// takes the first two to win.
	g.proxies[2].Refuse(true)
	occupy(t, g.servers[1:2], "r", "somebody else")
	freed := make(chan struct{})
	lost := sync.OnceFunc(func() {
		go func() {
			defer close(freed)
			_, _ = g.servers[1].Do("DEL", "r")
		}()
	})
	g.onRequest(func(i int, q request) {
		if i == 0 && q.letter == "d" && strings.Contains(g.letters(0), "a") {
			lost()
		}
	})
	ctx, cancel := context.WithTimeout(t.Context(), soon)
	defer cancel()
	lock, err := l.Acquire(ctx, "r", long)
	require.NoError(t, err)
	<-freed
	require.NotContains(t, g.letters(2), "a")
	require.Regexp(t, "a.*d.*a", g.letters(0), "more than one round was needed")
	require.NoError(t, lock.Release(t.Context()))
	requireNoOrphans(t, g.servers)
}

// Fault: a release that failed was the last word.
func TestFailedReleaseCanBeTriedAgain(t *testing.T) {
	t.Parallel()
	g := newRig(t, 3)
	l := g.open(redlock.WithInstanceTimeout(patience))
	warm(t, l, g.servers)
	lock, err := l.TryAcquire(t.Context(), "r", long)
	require.NoError(t, err)
	becomes(t, func() bool { return all(g.servers, "r", lock.Owner()) }, "all have granted")
	for _, p := range g.proxies[1:] {
		p.SwallowRequests(true)
	}
	for range 2 {
		begin := time.Now()
		err = lock.Release(t.Context())
		require.Less(t, time.Since(begin), patience+grace)
		require.ErrorIs(t, err, redlock.ErrNoQuorum)
		require.NotErrorIs(t, err, redlock.ErrLost)
	}
	require.LessOrEqual(t, lock.Remaining(), time.Duration(0), "given up all the same")
	requireLost(t, lock.Extend(t.Context(), long), redlock.LostReleased)
	require.True(t, all(g.servers[1:], "r", lock.Owner()))

	for _, p := range g.proxies[1:] {
		p.SwallowRequests(false)
	}
	becomes(t, func() bool { return lock.Release(t.Context()) == nil }, "the next try succeeds")
	require.NoError(t, lock.Release(t.Context()))
	requireNoOrphans(t, g.servers)
}

// Also without another try, what a release did not reach is cleaned up.
func TestFailedReleaseIsCleanedUp(t *testing.T) {
	t.Parallel()
	g := newRig(t, 3)
	l := g.open(redlock.WithInstanceTimeout(patience))
	warm(t, l, g.servers)
	lock, err := l.TryAcquire(t.Context(), "r", long)
	require.NoError(t, err)
	becomes(t, func() bool { return all(g.servers, "r", lock.Owner()) }, "all have granted")
	for _, p := range g.proxies {
		p.SwallowRequests(true)
	}
	require.ErrorIs(t, lock.Release(t.Context()), redlock.ErrNoQuorum)
	for _, p := range g.proxies {
		p.SwallowRequests(false)
	}
	requireNoOrphans(t, g.servers)
}

// Fault: whoever comes late deletes or extends what is somebody else's by now.
func TestNothingOfANewerOwnerIsTouched(t *testing.T) {
	t.Parallel()
	g := newRig(t, 3)
	ours, others := g.open(redlock.WithInstanceTimeout(patience)), g.open()
	warm(t, ours, g.servers)
	for name, late := range map[string]func(*redlock.Lock) error{
		"Release": func(k *redlock.Lock) error { return k.Release(t.Context()) },
		"Extend":  func(k *redlock.Lock) error { return k.Extend(t.Context(), 2*long) },
	} {
		// Ours is lost to somebody else, without our knowing.
		lock, err := ours.TryAcquire(t.Context(), name, long)
		require.NoError(t, err)
		becomes(t, func() bool { return all(g.servers, name, lock.Owner()) }, "all have granted")
		remove(t, g.servers, name)
		newer, err := others.TryAcquire(t.Context(), name, long)
		require.NoError(t, err)
		becomes(t, func() bool { return all(g.servers, name, newer.Owner()) }, "all have granted")
		begin := time.Now()
		requireLost(t, late(lock), redlock.LostTakenOver)
		require.Less(t, time.Since(begin), fast, "no retry window")
		requireLost(t, lock.Release(t.Context()), redlock.LostTakenOver)
		requireLost(t, lock.Extend(t.Context(), 2*long), redlock.LostTakenOver)
		requireUntouched(t, g, newer)

		// Ours expired, and we know.
		resource := name + " expired"
		expired, err := ours.Acquire(t.Context(), resource, 2*patience)
		require.NoError(t, err)
		becomes(t, func() bool { return expired.Remaining() <= 0 && !anyHas(g.servers, resource) }, "it expires")
		newer, err = others.TryAcquire(t.Context(), resource, long)
		require.NoError(t, err)
		becomes(t, func() bool { return all(g.servers, resource, newer.Owner()) }, "all have granted")
		require.ErrorIs(t, late(expired), redlock.ErrLost)
		require.ErrorIs(t, expired.Release(t.Context()), redlock.ErrLost)
		requireUntouched(t, g, newer)
	}
}

// requireUntouched requires that lock is as it was acquired, everywhere, and
// stays so when everything that was sent before has arrived.
func requireUntouched(t testing.TB, g *rig, lock *redlock.Lock) {
	t.Helper()
	require.NoError(t, lock.Extend(t.Context(), long))
	for i, s := range g.servers {
		becomes(t, func() bool { return g.of(i, lock.Owner()) == "ae" && answered(s) }, "the extend arrives")
		require.True(t, all(g.servers[i:i+1], lock.Resource(), lock.Owner()))
		left, ok := s.MustDo(t, "PTTL", lock.Resource()).(int64)
		require.True(t, ok)
		require.LessOrEqual(t, left, long.Milliseconds())
	}
	require.NoError(t, lock.Release(t.Context()))
	for i := range g.servers {
		becomes(t, func() bool { return g.of(i, lock.Owner()) == "aed" }, "there was nothing to heal")
	}
}

// Fault: the renewal goes on after the lock was given up.
func TestNothingButReleasesIsSentAfterRelease(t *testing.T) {
	t.Parallel()
	g := newRig(t, 3)
	l := g.open(redlock.OneFlight())
	warm(t, l, g.servers)
	// On the straggler the acquire is out while the extend and the release queue up.
	g.proxies[2].DelayReplies(200 * time.Millisecond)
	before := len(g.letters(2))
	lock, err := l.TryAcquire(t.Context(), "r", long)
	require.NoError(t, err)
	becomes(t, func() bool { return g.letters(2)[before:] == "a" }, "it is out")
	require.NoError(t, lock.Extend(t.Context(), long))
	require.NoError(t, lock.Release(t.Context()))
	requireNoOrphans(t, g.servers)
	require.Equal(t, "ad", g.letters(2)[before:])

	// Nor is an acquire sent whose round was lost.
	occupy(t, g.servers[:2], "taken", "somebody else")
	before = len(g.letters(2))
	busy, err := l.TryAcquire(t.Context(), "busy", long)
	require.NoError(t, err)
	becomes(t, func() bool { return g.letters(2)[before:] == "a" }, "it is out")
	_, err = l.TryAcquire(t.Context(), "taken", long)
	require.ErrorIs(t, err, redlock.ErrTaken)
	require.NoError(t, busy.Release(t.Context()))
	becomes(t, func() bool { return !anyHas(g.servers, "busy") }, "released")
	require.Equal(t, "a"+"dd", g.letters(2)[before:])
}

// A lock that its holder forgot blocks nobody longer than its ttl: an instance
// that was busy all that time is not asked for it any more.
func TestForgottenLockIsNotGrantedAfterItsEnd(t *testing.T) {
	t.Parallel()
	g := newRig(t, 3)
	l := g.open(redlock.WithInstanceTimeout(patience), redlock.OneFlight())
	warm(t, l, g.servers)
	g.proxies[2].DelayReplies(800 * time.Millisecond)
	busy, err := l.TryAcquire(t.Context(), "busy", long)
	require.NoError(t, err)
	becomes(t, func() bool { return g.of(2, busy.Owner()) == "a" }, "it is out")
	forgotten, err := l.TryAcquire(t.Context(), "r", 200*time.Millisecond)
	require.NoError(t, err)
	becomes(t, func() bool { return forgotten.Remaining() <= 0 }, "its window ends")
	require.NoError(t, busy.Release(t.Context()))
	becomes(t, func() bool { return strings.HasSuffix(g.of(2, busy.Owner()), "d") }, "what was queued before has been sent")
	require.Empty(t, g.of(2, forgotten.Owner()))
}

// Fault: a 10 s lease is given up after a blip of less than a second.
func TestBlipDoesNotEndALease(t *testing.T) {
	t.Parallel()
	g := newRig(t, 3)
	l := g.open(redlock.WithInstanceTimeout(patience))
	warm(t, l, g.servers)
	lock, err := l.TryAcquire(t.Context(), "r", long)
	require.NoError(t, err)
	before := lock.ValidUntil()
	for _, p := range g.proxies {
		p.HoldRequests(true)
	}
	err = lock.Extend(t.Context(), long)
	require.ErrorIs(t, err, redlock.ErrNoQuorum)
	require.NotErrorIs(t, err, redlock.ErrLost)
	require.Equal(t, before, lock.ValidUntil(), "the old window stands")
	for _, p := range g.proxies {
		p.HoldRequests(false)
	}
	becomes(t, func() bool { return lock.Extend(t.Context(), long) == nil }, "it goes on")
	require.True(t, lock.ValidUntil().After(before))
	require.NoError(t, lock.Release(t.Context()))
}

// An extend with a shorter ttl that fails may have been obeyed: the window ends
// with the keys.
func TestFailedExtendWithAShorterTTLShortensTheWindow(t *testing.T) {
	t.Parallel()
	g := newRig(t, 3)
	l := g.open(redlock.WithInstanceTimeout(patience))
	warm(t, l, g.servers)
	lock, err := l.TryAcquire(t.Context(), "r", long)
	require.NoError(t, err)
	becomes(t, func() bool { return all(g.servers, "r", lock.Owner()) }, "all have granted")
	for _, p := range g.proxies[1:] {
		p.SwallowReplies(true)
	}
	const shorter = 2 * time.Second
	err = lock.Extend(t.Context(), shorter)
	require.ErrorIs(t, err, redlock.ErrNoQuorum)
	require.NotErrorIs(t, err, redlock.ErrLost)
	require.Less(t, lock.Remaining(), shorter)
	require.Less(t, time.Until(lock.ValidUntil()), shorter)
	// A longer one that fails changes nothing.
	before := lock.ValidUntil()
	require.Error(t, lock.Extend(t.Context(), 10*shorter))
	require.Equal(t, before, lock.ValidUntil())
}

// An extend that is still under way when a longer one follows on another
// connection arrives after it. Either that does not end the key before the
// window, or the longer one was not confirmed.
func TestLateExtendDoesNotShortenANewerOne(t *testing.T) {
	t.Parallel()
	g := newRig(t, 1)
	dialer, _, reroute := g.reroute(nil)
	l := g.open(redlock.WithInstanceTimeout(patience), redlock.WithClientOptions(func(o *redis.Options) { o.Dialer = dialer }))
	lock, err := l.TryAcquire(t.Context(), "r", long)
	require.NoError(t, err)
	arrived := func(ttl time.Duration) bool {
		return slices.ContainsFunc(g.sent(0), func(q request) bool {
			return q.letter == "e" && q.ttl == strconv.FormatInt(ttl.Milliseconds(), 10)
		})
	}
	const shorter = 10 * time.Second
	g.proxies[0].HoldRequests(true)
	reroute()
	require.ErrorIs(t, lock.Extend(t.Context(), shorter), redlock.ErrNoQuorum)
	becomes(t, func() bool {
		return lock.Extend(t.Context(), 2*long) == nil || arrived(2*long)
	}, "the longer one arrives, on a new connection")
	g.proxies[0].HoldRequests(false)
	becomes(t, func() bool { return arrived(shorter) }, "and then the first one")
	becomes(t, func() bool { return answered(g.servers[0]) }, "which has run by now")
	left, ok := g.servers[0].MustDo(t, "PTTL", "r").(int64)
	require.True(t, ok)
	require.GreaterOrEqual(t, left+1, lock.Remaining().Milliseconds(), "the server keeps the key for the holder's window")
	require.NoError(t, lock.Release(t.Context()))
}

// An instance that is slower than the majority keeps its vote after an extend to a
// shorter ttl: the next one may need it.
func TestShorterExtendCostsNoVote(t *testing.T) {
	t.Parallel()
	g := newRig(t, 3)
	extends := newEvents("extend")
	l := g.open(redlock.WithObserver(extends.observer()))
	lock, err := l.TryAcquire(t.Context(), "r", 2*long)
	require.NoError(t, err)
	becomes(t, func() bool { return all(g.servers, "r", lock.Owner()) }, "all have granted")
	g.proxies[2].DelayReplies(50 * time.Millisecond)
	require.NoError(t, lock.Extend(t.Context(), long))
	for _, v := range extends.next(t).Votes {
		require.Equal(t, "granted", v.Vote)
	}
	g.proxies[0].Refuse(true)
	g.proxies[0].Break()
	require.NoError(t, lock.Extend(t.Context(), long))
	require.NoError(t, lock.Release(t.Context()))
}

// Fault: max(INCR) over a majority gives the tokens 101, then 2.
func TestTokensGrowWhateverMajorityCounts(t *testing.T) {
	t.Parallel()
	g := newRig(t, 3)
	const ahead = uint64(4_000_000_000_000_000)
	g.servers[0].MustDo(t, "SET", fenceOf("r"), strconv.FormatUint(ahead, 10))
	l := g.open()
	var last uint64
	for _, down := range []int{2, 0, 1, 2, 1, 0} {
		g.proxies[down].Refuse(true)
		g.proxies[down].Break()
		var lock *redlock.Lock
		becomes(t, func() bool {
			var err error
			lock, err = l.TryAcquire(t.Context(), "r", long)
			return err == nil
		}, "two of three grant, when they are connected to again")
		require.Greater(t, lock.FencingToken(), last)
		require.Greater(t, lock.FencingToken(), ahead)
		last = lock.FencingToken()
		require.NoError(t, lock.Release(t.Context()))
		g.proxies[down].Refuse(false)
	}
	requireNoOrphans(t, g.servers)
}

// Fault: a node that restarted empty votes twice, and a second holder has a
// token that is no larger. (That there is a second one at all is for the
// quarantine to prevent.)
func TestSecondHolderAfterARestartHasALargerToken(t *testing.T) {
	t.Parallel()
	g := newRig(t, 3)
	ours, others := g.open(), g.open(redlock.WithRetryDelay(time.Millisecond, 10*time.Millisecond))
	g.proxies[2].Refuse(true)
	lock, err := ours.TryAcquire(t.Context(), "r", long)
	require.NoError(t, err)
	g.proxies[2].Refuse(false)
	require.NoError(t, g.servers[1].Restart())
	ctx, cancel := context.WithTimeout(t.Context(), soon)
	defer cancel()
	second, err := others.Acquire(ctx, "r", long)
	require.NoError(t, err)
	require.Greater(t, second.FencingToken(), lock.FencingToken())

	var extend error
	becomes(t, func() bool {
		extend = lock.Extend(t.Context(), long)
		require.Error(t, extend)
		return errors.Is(extend, redlock.ErrLost)
	}, "ours is lost")
	requireLost(t, extend, redlock.LostTakenOver)
	require.NoError(t, second.Extend(ctx, long))
	require.NoError(t, second.Release(ctx))
}

// Fault: a waiter spins on a lock that is held.
func TestWaitingForAHeldLockDoesNotSpin(t *testing.T) {
	t.Parallel()
	g := newRig(t, 3)
	l := g.open()
	for _, s := range g.servers {
		s.MustDo(t, "ACL", "SETUSER", "default", "-subscribe") // who hears of releases soon only looks
	}
	occupy(t, g.servers, "r", "somebody else")
	ctx, cancel := context.WithTimeout(t.Context(), time.Second)
	defer cancel()
	_, err := l.Acquire(ctx, "r", long)
	require.ErrorIs(t, err, redlock.ErrTaken)
	require.ErrorIs(t, err, context.DeadlineExceeded)
	require.Less(t, strings.Count(g.letters(0), "a"), 50)
	require.GreaterOrEqual(t, strings.Count(g.letters(0), "a"), 2)
}

// Fault: taken, unreachable and cancelled look the same.
func TestTakenUnreachableAndCancelledAreThreeErrors(t *testing.T) {
	t.Parallel()
	g := newRig(t, 3)
	l := g.open(redlock.WithInstanceTimeout(patience))
	warm(t, l, g.servers)
	occupy(t, g.servers, "r", "somebody else")

	_, taken := l.TryAcquire(t.Context(), "r", long)
	g.proxies[2].HoldReplies(true)
	_, early := l.TryAcquire(t.Context(), "r", long)
	require.ErrorContains(t, early, "2 refused")
	require.ErrorContains(t, early, "not waited for: it was decided", "nobody is to look for a fault there")
	g.proxies[2].HoldReplies(false)
	ctx, cancel := context.WithCancel(t.Context())
	g.onRequest(func(int, request) { cancel() })
	for _, p := range g.proxies {
		p.DelayRequests(30 * time.Millisecond)
		p.DelayReplies(30 * time.Millisecond)
	}
	_, cancelled := l.TryAcquire(ctx, "free", long)
	for _, p := range g.proxies {
		p.Refuse(true)
		p.Break()
	}
	var unreachable error
	becomes(t, func() bool {
		_, unreachable = l.TryAcquire(t.Context(), "r", long)
		return strings.Count(fmt.Sprint(unreachable), "EOF")+strings.Count(fmt.Sprint(unreachable), "reset") == 3
	}, "none of them answers")

	require.ErrorIs(t, taken, redlock.ErrTaken)
	require.NotErrorIs(t, taken, redlock.ErrNoQuorum)
	require.NotErrorIs(t, taken, context.Canceled)
	require.NotErrorIs(t, unreachable, redlock.ErrTaken)
	require.ErrorIs(t, unreachable, redlock.ErrNoQuorum)
	require.NotErrorIs(t, unreachable, context.Canceled)
	require.NotErrorIs(t, unreachable, context.DeadlineExceeded)
	require.NotErrorIs(t, cancelled, redlock.ErrTaken)
	require.ErrorIs(t, cancelled, context.Canceled)
	for _, err := range []error{taken, early, unreachable, cancelled} {
		require.NotErrorIs(t, err, redlock.ErrExpired)
		require.NotErrorIs(t, err, redlock.ErrLost)
		require.NotContains(t, err.Error(), "\n")
	}
}

// Fault: one node that is down fails the constructor.
func TestConstructorNeedsNoServer(t *testing.T) {
	t.Parallel()
	servers := start(t, 2)
	nobody, err := redistest.FreeAddr()
	require.NoError(t, err)
	begin := time.Now()
	l := openAt(t, append(redistest.Addrs(servers), nobody))
	all := openAt(t, []string{nobody, "does-not-exist.invalid:6379"})
	require.Less(t, time.Since(begin), fast)
	require.NoError(t, cycle(l, "r", nil))
	_, err = all.TryAcquire(t.Context(), "r", time.Second)
	require.ErrorIs(t, err, redlock.ErrNoQuorum)
}

// Clients of other Redlock libraries and ours exclude each other on one resource.
func TestOtherLibrariesAreExcludedAndExclude(t *testing.T) {
	t.Parallel()
	servers := start(t, 3)
	l := openAt(t, redistest.Addrs(servers))
	theirs := func(s *redistest.Server) any { return s.MustDo(t, "SET", "r", "theirs", "NX", "PX", "60000") }
	lock, err := l.TryAcquire(t.Context(), "r", long)
	require.NoError(t, err)
	becomes(t, func() bool { return all(servers, "r", lock.Owner()) }, "the key is the resource, its value the owner")
	for _, s := range servers {
		require.Nil(t, theirs(s))
	}
	require.NoError(t, lock.Release(t.Context()))
	becomes(t, func() bool { return !anyHas(servers, "r") }, "released")

	for _, s := range servers[:2] {
		require.Equal(t, "OK", theirs(s))
	}
	_, err = l.TryAcquire(t.Context(), "r", long)
	require.ErrorIs(t, err, redlock.ErrTaken)
	becomes(t, func() bool { return !anyHas(servers[2:], "r") }, "ours is gone")
	require.True(t, all(servers[:2], "r", "theirs"))
}

// Fault: a ttl of 0 makes a key for ever, one below a millisecond is truncated.
func TestTTLThatRedisCannotKeepIsRefusedBeforeAnyIO(t *testing.T) {
	t.Parallel()
	g := newRig(t, 1)
	l := g.open()
	for _, ttl := range []time.Duration{-time.Second, -1, 0, 1, 999 * time.Microsecond, 10*time.Millisecond - 1} {
		_, err := l.TryAcquire(t.Context(), "r", ttl)
		require.ErrorContains(t, err, "ttl")
		_, err = l.Acquire(t.Context(), "r", ttl)
		require.ErrorContains(t, err, "ttl")
	}
	require.Zero(t, g.proxies[0].Accepted())

	const fraction = 3*time.Second + 300*time.Microsecond
	lock, err := l.TryAcquire(t.Context(), "r", fraction)
	require.NoError(t, err)
	require.Equal(t, "3001", g.sent(0)[0].ttl, "rounded up for the server")
	require.Less(t, lock.Remaining(), 3*time.Second-30*time.Millisecond, "and down for the holder")
	before := lock.ValidUntil()
	require.ErrorContains(t, lock.Extend(t.Context(), 0), "ttl")
	require.ErrorContains(t, lock.Extend(t.Context(), 999*time.Microsecond), "ttl")
	require.Equal(t, before, lock.ValidUntil())
	require.Equal(t, strings.Repeat("a", len(g.letters(0))), g.letters(0), "no extend was sent")
	require.NoError(t, lock.Release(t.Context()))
}

// Fault: 29 of 60 waiters give up at a fixed number of tries.
func TestEveryWaiterGetsItsTurn(t *testing.T) {
	t.Parallel()
	servers := start(t, 3)
	l := openAt(t, redistest.Addrs(servers))
	ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second)
	defer cancel()
	const waiters = 60
	errs := make(chan error, waiters)
	var inside, most atomic.Int32
	for range waiters {
		go func() {
			lock, err := l.Acquire(ctx, "r", long)
			if err == nil {
				most.Store(max(most.Load(), inside.Add(1)))
				inside.Add(-1)
				err = lock.Release(ctx)
			}
			errs <- err
		}()
	}
	for range waiters {
		require.NoError(t, <-errs)
	}
	require.EqualValues(t, 1, most.Load())
	requireNoOrphans(t, servers)
}

func TestFlushedScriptsLoseNothing(t *testing.T) {
	t.Parallel()
	servers := start(t, 3)
	l := openAt(t, redistest.Addrs(servers))
	stop := make(chan struct{})
	var flushing sync.WaitGroup
	var flushes atomic.Int32
	for _, s := range servers {
		flushing.Go(func() {
			for {
				select {
				case <-stop:
					return
				default:
					if _, err := s.Do("SCRIPT", "FLUSH"); err == nil {
						flushes.Add(1)
					}
				}
			}
		})
	}
	const workers, locks = 16, 125
	errs := make(chan error, workers)
	for w := range workers {
		go func() {
			errs <- func() error {
				for i := range locks {
					if err := cycle(l, fmt.Sprint("r", w, "-", i), nil); err != nil {
						return err
					}
				}
				return nil
			}()
		}()
	}
	for range workers {
		require.NoError(t, <-errs)
	}
	close(stop)
	flushing.Wait()
	t.Logf("%d flushes during %d locks", flushes.Load(), workers*locks)
	require.Greater(t, flushes.Load(), int32(30))
	requireNoOrphans(t, servers)
}

// leastPrivilege is what README.md and the field notes ask administrators for.
var leastPrivilege = []string{"~lock:*", "+set", "+get", "+del", "+pttl", "+pexpire", "+eval", "+evalsha"}

// as returns endpoints of servers for a user with rights.
func as(t testing.TB, servers []*redistest.Server, rights ...string) []string {
	t.Helper()
	for _, s := range servers {
		s.MustDo(t, append([]string{"ACL", "SETUSER", "app", "on", ">s3cret"}, rights...)...)
	}
	return sequence(len(servers), func(i int) string { return "redis://app:s3cret@" + servers[i].Addr() })
}

func TestLeastPrivilegeIsEnough(t *testing.T) {
	t.Parallel()
	servers := start(t, 3)
	heals := newEvents("heal")
	l := openAt(t, as(t, servers, leastPrivilege...), redlock.WithKeyPrefix("lock:"), redlock.WithObserver(heals.observer()))
	for i, s := range servers { // a raise is needed
		s.MustDo(t, "SET", "lock:{lock:uneven}:fence", strconv.FormatUint(4_000_000_000_000_000+uint64(i), 10))
	}
	lock, err := l.TryAcquire(t.Context(), "uneven", long)
	require.NoError(t, err)
	require.Greater(t, lock.FencingToken(), uint64(4_000_000_000_000_000))
	require.NoError(t, lock.Release(t.Context()))

	lock, err = l.TryAcquire(t.Context(), "r", long)
	require.NoError(t, err)
	becomes(t, func() bool { return all(servers, "lock:r", lock.Owner()) }, "all have granted")
	_, err = l.TryAcquire(t.Context(), "r", long)
	require.ErrorIs(t, err, redlock.ErrTaken)
	require.NoError(t, lock.Extend(t.Context(), long))
	remove(t, servers[:1], "lock:r")
	require.NoError(t, lock.Extend(t.Context(), long))
	require.True(t, heals.next(t).Won)
	require.NoError(t, lock.Release(t.Context()))
	becomes(t, func() bool { return !anyHas(servers, "lock:r") }, "released")
	for _, s := range servers {
		require.NotContains(t, fmt.Sprint(s.MustDo(t, "ACL", "LOG")), "lua", "no script was refused anything")
	}
}

func TestClientThatMayNotRunScriptsFailsBeforeAKeyExists(t *testing.T) {
	t.Parallel()
	servers := start(t, 3)
	for name, rights := range map[string][]string{
		"no scripts":   {"~lock:*", "+set", "+get", "+del", "+pttl", "+pexpire"},
		"EVALSHA only": {"~lock:*", "+set", "+get", "+del", "+pttl", "+pexpire", "+evalsha"},
		"other keys":   {"~work:*", "+@all"},
	} {
		endpoints := as(t, servers, append([]string{"reset", "on", ">s3cret"}, rights...)...)
		for _, s := range servers {
			s.MustDo(t, "SCRIPT", "FLUSH") // a user before may have brought it
		}
		l := openAt(t, endpoints, redlock.WithKeyPrefix("lock:"), redlock.WithInstanceTimeout(patience))
		_, err := l.TryAcquire(t.Context(), "r", long)
		require.ErrorIs(t, err, redlock.ErrNoQuorum, name)
		quorum, ok := errors.AsType[*redlock.QuorumError](err)
		require.True(t, ok)
		// Two of three decide: the third may not have been heard.
		noPerm := slices.DeleteFunc(slices.Clone(quorum.Errs.Errors), func(e error) bool { return !says("NOPERM")(e) })
		require.GreaterOrEqual(t, len(noPerm), 2, "%s: %v", name, err)
		for _, s := range servers {
			keys, err := keysOn(s, true)
			require.NoError(t, err)
			require.Empty(t, keys, name)
		}
	}
}
