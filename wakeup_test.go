package redlock

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"

	"github.com/quorumlock/redlock/internal/redistest"
)

// Two Lockers are as good as two processes: they share nothing but the instances.

// subscribers returns how many listen on channel at s.
func subscribers(t *testing.T, s *redistest.Server, channel string) int {
	t.Helper()
	reply, _ := s.MustDo(t, "PUBSUB", "NUMSUB", channel).([]any)
	require.Len(t, reply, 2)
	n, _ := reply[1].(int64)
	return int(n)
}

// listensTo waits until l hears of releases of resource, and only asks now and then.
func listensTo(t *testing.T, l *Locker, resource string) {
	t.Helper()
	eventually(t, func() bool {
		l.waitlists.mu.Lock()
		defer l.waitlists.mu.Unlock()
		n := l.waitlists.of[resource]
		if n == nil {
			return false
		}
		// Where a bare majority holds the lock, the others grant it, which might be a split
		// vote: one that waits goes on asking then.
		votes, _ := errors.AsType[*QuorumError](n.reason)
		knows := n.settled || n.lost >= settledAfter || votes != nil && votes.Granted > 0
		return len(l.instances) == heardOf(n) && knows && !n.free && !n.woken && n.first() != nil && !n.first().asking
	}, "it listens")
}

// heardOf returns from how many instances messages come.
func heardOf(n *waitlist) (count int) {
	for i := range 64 {
		count += int(n.hears >> i & 1)
	}
	return count
}

func TestAReleaseWakesWhoWaitsElsewhere(t *testing.T) {
	t.Parallel()
	for _, n := range []int{1, 3, 5} {
		t.Run(fmt.Sprint(n), func(t *testing.T) {
			t.Parallel()
			endpoints := redistest.Addrs(redistest.StartN(t, n))
			ours, theirs := opened(t, endpoints, patient), opened(t, endpoints, patient)
			var took []time.Duration
			for range 10 {
				k, err := ours.Acquire(t.Context(), "r", time.Minute)
				require.NoError(t, err)
				c := queueUp(t.Context(), t, theirs, time.Minute)
				listensTo(t, theirs, "r")
				start := time.Now()
				require.NoError(t, k.Release(t.Context()))
				k = c.gets()
				took = append(took, time.Since(start))
				require.NoError(t, k.Release(t.Context()))
			}
			slices.Sort(took)
			t.Log(took)
			require.Less(t, took[len(took)-1], atOnce, "the poll is a minute away")
		})
	}
}

// A channel is any string of bytes, as a resource is, with the prefix before it.
func TestAMessageNamesAnyResource(t *testing.T) {
	t.Parallel()
	servers := redistest.StartN(t, 3)
	for _, s := range servers {
		s.MustDo(t, "ACL", "SETUSER", "app", "on", ">s3cret", "+set", "+get", "+del", "+pttl", "+pexpire", "+eval", "+evalsha",
			"+publish", "+subscribe", "+unsubscribe", "~lock:*", "&lock:*")
	}
	var endpoints []string
	for _, s := range servers {
		endpoints = append(endpoints, "redis://app:s3cret@"+s.Addr())
	}
	ours := opened(t, endpoints, patient, WithKeyPrefix("lock:"))
	theirs := opened(t, endpoints, patient, WithKeyPrefix("lock:"))
	for _, resource := range []string{"r", "\x00\xff\r\n*1", "lock:lock:", "{a}b", " 3 x", strings.Repeat("long", 10_000)} {
		k, err := ours.Acquire(t.Context(), resource, time.Minute)
		require.NoError(t, err)
		got := make(chan error, 1)
		go func() {
			k, err := theirs.Acquire(t.Context(), resource, time.Minute)
			if err == nil {
				err = k.Release(t.Context())
			}
			got <- err
		}()
		listensTo(t, theirs, resource)
		start := time.Now()
		require.NoError(t, k.Release(t.Context()))
		require.NoError(t, <-got)
		require.Less(t, time.Since(start), atOnce)
	}
}

// A deafened dialer makes connections on which no message arrives: they hear that
// they are subscribed, and nothing after that.
func deafened(o *redis.Options) {
	o.Dialer = func(ctx context.Context, network, addr string) (net.Conn, error) {
		conn, err := new(net.Dialer).DialContext(ctx, network, addr)
		return &deafConn{Conn: conn}, err
	}
}

type deafConn struct{ net.Conn }

func (c *deafConn) Read(b []byte) (int, error) {
	for {
		n, err := c.Conn.Read(b)
		if err != nil || !bytes.Contains(b[:n], []byte("\r\nmessage\r\n")) {
			return n, err
		}
	}
}

// Messages are hints: without them it takes as long as the poll.
func TestLostMessagesCostTimeOnly(t *testing.T) {
	t.Parallel()
	rights := []string{"on", ">s3cret", "~*", "+set", "+get", "+del", "+pttl", "+pexpire", "+eval", "+evalsha"}
	quick := WithRetryDelay(10*time.Millisecond, 50*time.Millisecond) // a slow poll takes 100 to 300 ms
	for _, c := range []struct {
		name   string
		rights []string
		opts   []Option
		kill   bool
	}{
		{name: "nobody may publish", rights: []string{"+subscribe", "&*"}},
		{name: "nobody may subscribe", rights: []string{"+publish", "&*"}},
		{name: "no channel", rights: []string{"+publish", "+subscribe", "resetchannels"}},
		{name: "lost on the way", rights: []string{"+publish", "+subscribe", "&*"}, opts: []Option{WithClientOptions(deafened)}},
		{name: "connections that break", rights: []string{"+publish", "+subscribe", "&*"}, kill: true},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			servers := redistest.StartN(t, 3)
			var endpoints []string
			for _, s := range servers {
				s.MustDo(t, append(append([]string{"ACL", "SETUSER", "app"}, rights...), c.rights...)...)
				endpoints = append(endpoints, "redis://app:s3cret@"+s.Addr())
			}
			opts := append([]Option{quick}, c.opts...)
			ours, theirs := opened(t, endpoints, opts...), opened(t, endpoints, opts...)
			var took []time.Duration
			for range 5 {
				k, err := ours.Acquire(t.Context(), "r", time.Minute)
				require.NoError(t, err)
				call := queueUp(t.Context(), t, theirs, time.Minute)
				if c.kill {
					listensTo(t, theirs, "r")
					for _, s := range servers {
						s.MustDo(t, "CLIENT", "KILL", "TYPE", "pubsub")
					}
				}
				eventually(t, func() bool { return lostRounds(theirs) >= settledAfter }, "it has asked")
				start := time.Now()
				require.NoError(t, k.Release(t.Context()))
				k = call.gets()
				took = append(took, time.Since(start))
				require.NoError(t, k.Release(t.Context()))
			}
			slices.Sort(took)
			t.Log(took)
			require.Less(t, took[len(took)-1], 300*time.Millisecond+atOnce)
		})
	}
}

// lostRounds returns how many rounds l has lost for "r" since the last release.
func lostRounds(l *Locker) int {
	l.waitlists.mu.Lock()
	defer l.waitlists.mu.Unlock()
	if n := l.waitlists.of["r"]; n != nil {
		return n.lost
	}
	return 0
}

// An instance that refused to publish is not asked to again: each refusal is an entry
// in its log. It may be a release that finds it out, or one who was woken.
func TestWhatMayNotPublishIsToldOnce(t *testing.T) {
	t.Parallel()
	servers := redistest.StartN(t, 3)
	var endpoints []string
	for _, s := range servers {
		s.MustDo(t, "ACL", "SETUSER", "app", "on", ">s3cret", "~*", "+set", "+get", "+del", "+pttl", "+pexpire", "+eval", "+evalsha")
		endpoints = append(endpoints, "redis://app:s3cret@"+s.Addr())
	}
	occupier := opened(t, redistest.Addrs(servers), patient)
	l := opened(t, endpoints, WithRetryDelay(time.Millisecond, 10*time.Millisecond))
	k, err := occupier.Acquire(t.Context(), "r", time.Minute)
	require.NoError(t, err)
	c := queueUp(t.Context(), t, l, time.Minute)
	require.NoError(t, k.Release(t.Context()))
	require.NoError(t, c.gets().Release(t.Context())) // it waited, and so it has a message for those that were woken with it
	for range 20 {
		k, err := l.Acquire(t.Context(), "r", time.Minute)
		require.NoError(t, err)
		c := queueUp(t.Context(), t, l, time.Minute)
		require.NoError(t, k.Release(t.Context()))
		require.NoError(t, c.gets().Release(t.Context()))
	}
	for _, s := range servers {
		log := fmt.Sprint(s.MustDo(t, "ACL", "LOG"))
		require.Contains(t, log, "count 1 reason command context lua object publish")
		require.Equal(t, 1, strings.Count(log, "object publish"), log)
	}
}

// What a restart broke is made again, while somebody waits.
func TestSubscriptionsAreMadeAgainAfterARestart(t *testing.T) {
	t.Parallel()
	servers := redistest.StartN(t, 3)
	ours, theirs := opened(t, redistest.Addrs(servers), patient), opened(t, redistest.Addrs(servers), patient)
	k, err := ours.Acquire(t.Context(), "r", time.Minute)
	require.NoError(t, err)
	c := queueUp(t.Context(), t, theirs, time.Minute)
	listensTo(t, theirs, "r")
	for i, s := range servers {
		require.NoError(t, s.Restart())
		s.MustDo(t, "SET", "r", k.Owner(), "PX", "60000")
		if i == 0 {
			s.MustDo(t, "SET", fenceKey("", "r"), strconv.FormatUint(k.FencingToken(), 10))
		}
	}
	for _, s := range servers {
		eventually(t, func() bool { return subscribers(t, s, "r") == 1 }, "it listens again")
	}
	listensTo(t, theirs, "r")
	// Our own connections are new, too.
	eventually(t, func() bool { _, err := ours.TryAcquire(t.Context(), "other", time.Minute); return err == nil }, "they are there")
	start := time.Now()
	require.NoError(t, k.Release(t.Context()))
	require.NoError(t, c.gets().Release(t.Context()))
	require.Less(t, time.Since(start), atOnce)
}

// Nobody listens for what nobody has waited for in a while; the next one that waits
// soon need not subscribe again.
func TestIdleSubscriptionsEnd(t *testing.T) {
	t.Parallel()
	servers := redistest.StartN(t, 3)
	var clock shiftedClock
	ours, theirs := opened(t, redistest.Addrs(servers), patient), opened(t, redistest.Addrs(servers), patient, clock.option)
	look := func() {
		for _, in := range theirs.instances {
			in.ear.signal()
		}
	}
	wait := func() {
		k, err := ours.Acquire(t.Context(), "r", time.Minute)
		require.NoError(t, err)
		c := queueUp(t.Context(), t, theirs, time.Minute)
		listensTo(t, theirs, "r")
		look()
		require.NoError(t, k.Release(t.Context()))
		require.NoError(t, c.gets().Release(t.Context()))
	}
	wait()
	clock.set(listenOn - time.Second)
	look()
	wait() // which counts anew
	clock.set(listenOn + time.Second)
	look()
	warmUp(t, theirs)
	for i := range servers {
		eventually(t, func() bool { return len(theirs.instances[i].ear.wake) == 0 }, "it has looked")
		require.True(t, theirs.instances[i].ear.listens("r"))
	}
	before := subscribers(t, servers[0], "r") // ours may, too
	clock.set(3 * listenOn)
	look()
	for i, s := range servers {
		eventually(t, func() bool { return subscribers(t, s, "r") == before-1 }, "it listens no more")
		require.False(t, theirs.instances[i].ear.listens("r"))
	}
	wait()
}

// The lock of a holder that crashed is taken when its leases have run out, however
// seldom one asks otherwise.
func TestTheLockOfACrashedHolderIsTakenWhenItsLeaseEnds(t *testing.T) {
	t.Parallel()
	const ttl = 400 * time.Millisecond
	servers := redistest.StartN(t, 3)
	ours, theirs := opened(t, redistest.Addrs(servers), patient), opened(t, redistest.Addrs(servers), patient)
	warmUp(t, ours)
	warmUp(t, theirs)
	var took []time.Duration
	for range 5 {
		start := time.Now()
		_, err := ours.Acquire(t.Context(), "r", ttl)
		require.NoError(t, err)
		next, err := theirs.Acquire(t.Context(), "r", time.Minute)
		took = append(took, time.Since(start)-ttl)
		require.NoError(t, err)
		require.NoError(t, next.Release(t.Context()))
	}
	slices.Sort(took)
	t.Log(took)
	require.Positive(t, took[0])
	require.Less(t, took[len(took)/2], 100*time.Millisecond)
}

// A hand-over whose taker has gone in the meantime ends with a release that nobody
// here is left for: others are told.
func TestATurnThatIsNotTakenIsOfferedElsewhere(t *testing.T) {
	t.Parallel()
	servers := redistest.StartN(t, 3)
	var endpoints []string
	var proxies []*redistest.Proxy
	var onHandOver atomic.Pointer[context.CancelFunc]
	for _, s := range servers {
		p := redistest.NewProxy(t, s.Addr())
		p.OnRequest(func(chunk []byte) {
			if f := onHandOver.Load(); f != nil && handedOver.Match(chunk) {
				(*f)()
			}
		})
		proxies = append(proxies, p)
		endpoints = append(endpoints, p.Addr())
	}
	ours, theirs := opened(t, endpoints, patient), opened(t, redistest.Addrs(servers), patient)
	k, err := ours.Acquire(t.Context(), "r", time.Minute)
	require.NoError(t, err)
	other := queueUp(t.Context(), t, theirs, time.Minute)
	listensTo(t, theirs, "r")
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	c := queueUp(ctx, t, ours, time.Minute)
	listensTo(t, ours, "r")
	for _, p := range proxies {
		p.DelayReplies(20 * time.Millisecond)
	}
	onHandOver.Store(&cancel)
	start := time.Now()
	require.NoError(t, k.Release(t.Context()))
	require.ErrorIs(t, c.fails(), context.Canceled)
	require.NoError(t, other.gets().Release(t.Context()))
	require.Less(t, time.Since(start), atOnce)
}

// After Close nobody listens, whatever the instances do.
func TestNobodyListensAfterClose(t *testing.T) {
	for _, hung := range []bool{false, true} {
		t.Run(fmt.Sprintf("hung: %v", hung), func(t *testing.T) {
			var endpoints []string
			var proxies []*redistest.Proxy
			servers := redistest.StartN(t, 3)
			for _, s := range servers {
				p := redistest.NewProxy(t, s.Addr())
				proxies = append(proxies, p)
				endpoints = append(endpoints, p.Addr())
			}
			occupier := opened(t, redistest.Addrs(servers))
			k, err := occupier.Acquire(t.Context(), "r", time.Minute)
			require.NoError(t, err)
			before := goleak.IgnoreCurrent()
			l, err := Open(endpoints, fresh([]Option{patient})...)
			require.NoError(t, err)
			c := queueUp(t.Context(), t, l, time.Minute)
			listensTo(t, l, "r")
			for _, p := range proxies {
				require.Equal(t, 2, p.Conns(), "one for locking, one for messages")
			}
			if hung {
				for _, p := range proxies {
					p.SwallowReplies(true)
					p.SwallowRequests(true)
				}
				// It is about to subscribe to one more, on connections that say nothing.
				_, err := l.Acquire(t.Context(), "other", time.Minute, WithMaxWait(20*time.Millisecond))
				require.Error(t, err)
			}
			start := time.Now()
			_ = l.Close()
			t.Log("closed after", time.Since(start))
			require.ErrorIs(t, c.fails(), ErrClosed)
			for _, p := range proxies {
				eventually(t, func() bool { return p.Conns() == 0 }, "no connection is left")
				p.Close()
			}
			require.NoError(t, goleak.Find(before, goleak.IgnoreAnyFunction("github.com/quorumlock/redlock/internal/redistest.(*Proxy).accept")))
			require.NoError(t, k.Release(t.Context()))
		})
	}
}

// Of two processes whose waiters contend, none starves, however short they hold.
func TestProcessesShareALock(t *testing.T) {
	for _, hold := range []time.Duration{0, time.Millisecond, 20 * time.Millisecond} {
		t.Run(fmt.Sprint(hold), func(t *testing.T) {
			endpoints := redistest.Addrs(redistest.StartN(t, 3))
			const waiters = 8
			var counts [2]atomic.Int32
			var s shift
			var wg sync.WaitGroup
			lockers := [2]*Locker{opened(t, endpoints), opened(t, endpoints)}
			for _, l := range lockers {
				warmUp(t, l)
			}
			goOn := during(3 * time.Second)
			for i, l := range lockers {
				for range waiters {
					wg.Go(func() {
						counts[i].Add(int32(s.work(t.Context(), t, l, hold, goOn)))
					})
				}
			}
			wg.Wait()
			s.requireOrder(t)
			a, b := counts[0].Load(), counts[1].Load()
			slices.Sort(s.waits)
			t.Logf("%d and %d times; they waited for %v to %v", a, b, s.waits[len(s.waits)/2], s.waits[len(s.waits)-1])
			require.LessOrEqual(t, float64(max(a, b)), 2*float64(min(a, b)))
		})
	}
}

// otherProcess is the variable that tells another process of this program where to lock.
const otherProcess = "REDLOCK_TEST_LOCK_AT"

// lockElsewhere is another process: it locks "r" again and again, until its standard
// input ends, and says how often.
func lockElsewhere(endpoints string) int {
	l, err := Open(strings.Split(endpoints, ","), WithQuarantine(0))
	if err != nil {
		fmt.Println(err)
		return 1
	}
	defer l.Close()
	ctx, cancel := context.WithCancel(context.Background())
	go func() {
		_, _ = os.Stdin.Read(make([]byte, 1))
		cancel()
	}()
	var n atomic.Int32
	var wg sync.WaitGroup
	for range 8 {
		wg.Go(func() {
			for {
				k, err := l.Acquire(ctx, "r", 10*time.Second)
				if err != nil {
					return
				}
				if n.Add(1) == 1 {
					fmt.Println("locked")
				}
				time.Sleep(time.Millisecond)
				_ = k.Release(context.Background())
			}
		})
	}
	wg.Wait()
	fmt.Println(n.Load())
	return 0
}

func TestAnotherProcessHasItsShare(t *testing.T) {
	servers := redistest.StartN(t, 3)
	endpoints := redistest.Addrs(servers)
	other := exec.Command(os.Args[0])
	other.Env = append(os.Environ(), otherProcess+"="+strings.Join(endpoints, ","))
	stdin, err := other.StdinPipe()
	require.NoError(t, err)
	stdout, err := other.StdoutPipe()
	require.NoError(t, err)
	require.NoError(t, other.Start())
	defer func() { _ = other.Process.Kill() }()
	line := func() string {
		text := make([]byte, 100)
		n, err := stdout.Read(text)
		require.NoError(t, err)
		return strings.TrimSpace(string(text[:n]))
	}
	require.Equal(t, "locked", line())

	l := opened(t, endpoints)
	var s shift
	var wg sync.WaitGroup
	goOn := during(2 * time.Second)
	for range 8 {
		wg.Go(func() { s.work(t.Context(), t, l, time.Millisecond, goOn) })
	}
	wg.Wait()
	require.NoError(t, stdin.Close())
	theirs, err := strconv.Atoi(line())
	require.NoError(t, err)
	require.NoError(t, other.Wait())
	s.requireOrder(t)
	t.Logf("%d here, %d there", len(s.tokens), theirs)
	require.Positive(t, len(s.tokens))
	require.LessOrEqual(t, float64(max(theirs, len(s.tokens))), 2*float64(min(theirs, len(s.tokens))))
}
