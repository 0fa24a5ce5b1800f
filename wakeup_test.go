package redlock

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"math/bits"
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
		return len(l.instances) == bits.OnesCount64(l.waitlists.hears) && knows && !n.free && !n.woken && n.first() != nil && !n.first().asking
	}, "it listens")
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
// in its log.
func TestWhatMayNotPublishIsToldOnce(t *testing.T) {
	t.Parallel()
	servers := redistest.StartN(t, 3)
	var endpoints []string
	for _, s := range servers {
		s.MustDo(t, "ACL", "SETUSER", "app", "on", ">s3cret", "~*", "+set", "+get", "+del", "+pttl", "+pexpire", "+eval", "+evalsha")
		endpoints = append(endpoints, "redis://app:s3cret@"+s.Addr())
	}
	quick := WithRetryDelay(time.Millisecond, 10*time.Millisecond)
	ours, theirs := opened(t, endpoints, quick), opened(t, redistest.Addrs(servers), quick)
	for i := range 20 {
		k, err := ours.Acquire(t.Context(), "r", time.Minute)
		require.NoError(t, err)
		c := queueUp(t.Context(), t, theirs, time.Minute)
		inQueue(t, servers, "r", theirs)
		if i == 0 {
			servers[0].MustDo(t, "DEL", "r") // where a lock is gone, others are told, too
		}
		if err := k.Release(t.Context()); i > 0 {
			require.NoError(t, err)
		}
		quiet(t, ours) // the slowest has said so, too
		require.NoError(t, c.gets().Release(t.Context()))
	}
	for _, s := range servers {
		log := fmt.Sprint(s.MustDo(t, "ACL", "LOG"))
		require.Contains(t, log, "count 1 reason command context lua object publish")
		require.Equal(t, 1, strings.Count(log, "object publish"), log)
	}
}

// inQueue waits until these are in the queue for resource everywhere, in this order.
func inQueue(t *testing.T, servers []*redistest.Server, resource string, lockers ...*Locker) {
	t.Helper()
	for _, s := range servers {
		eventually(t, func() bool {
			q, _ := s.MustDo(t, "GET", resource+waitSuffix).(string)
			if len(q) != 26*len(lockers) {
				return false
			}
			for i, l := range lockers {
				if q[26*i+16:26*(i+1)] != " "+l.name+"\n" {
					return false
				}
			}
			return true
		}, "they are in the queue")
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
		eventually(t, func() bool { return subscribers(t, s, theirs.channel()) == 1 }, "it listens again")
	}
	listensTo(t, theirs, "r")
	inQueue(t, servers, "r", theirs)
	// Our own connections are new, too.
	eventually(t, func() bool { _, err := ours.TryAcquire(t.Context(), "other", time.Minute); return err == nil }, "they are there")
	start := time.Now()
	require.NoError(t, k.Release(t.Context()))
	require.NoError(t, c.gets().Release(t.Context()))
	require.Less(t, time.Since(start), atOnce)
}

// Of those that wait in other processes, a release wakes the one that has waited
// longest, by their clocks, and leaves the others alone.
func TestAReleaseWakesWhoHasWaitedLongest(t *testing.T) {
	t.Parallel()
	servers := redistest.StartN(t, 3)
	endpoints := redistest.Addrs(servers)
	ours := opened(t, endpoints, patient)
	var clock shiftedClock
	clock.set(-time.Minute)
	second, third, first := opened(t, endpoints, patient), opened(t, endpoints, patient), opened(t, endpoints, patient, clock.option)
	var messages [3][]string // to each
	var pubsubs []*redis.PubSub
	for _, l := range []*Locker{first, second, third} {
		client := redis.NewClient(&redis.Options{Addr: servers[0].Addr()})
		defer client.Close()
		p := client.Subscribe(t.Context(), l.channel())
		defer p.Close()
		_, err := p.Receive(t.Context())
		require.NoError(t, err)
		pubsubs = append(pubsubs, p)
	}
	k, err := ours.Acquire(t.Context(), "r", time.Minute)
	require.NoError(t, err)
	var calls []*call
	for _, l := range []*Locker{second, third, first} {
		calls = append(calls, queueUp(t.Context(), t, l, time.Minute))
		listensTo(t, l, "r")
	}
	inQueue(t, servers, "r", first, second, third)
	for _, c := range []*call{calls[2], calls[0], calls[1]} {
		start := time.Now()
		require.NoError(t, k.Release(t.Context()))
		k = c.gets()
		require.Less(t, time.Since(start), atOnce)
	}
	require.NoError(t, k.Release(t.Context()))
	for _, l := range []*Locker{ours, first, second, third} {
		eventually(t, l.instances[0].resting, "a majority may have been enough so far: it has told all that it has to")
	}
	for i, p := range pubsubs {
		servers[0].MustDo(t, "PUBLISH", []*Locker{first, second, third}[i].channel(), "end")
		for {
			m, err := p.ReceiveMessage(t.Context())
			require.NoError(t, err)
			if m.Payload == "end" {
				break
			}
			kind, _, key := readMessage(m.Payload)
			require.Equal(t, "r", key)
			messages[i] = append(messages[i], kind)
		}
		now := slices.DeleteFunc(messages[i], func(kind string) bool { return kind == askLater })
		require.Len(t, now, 1, "%v", messages)
	}
}

// A Locker is told on one channel, whatever it waits for.
func TestOneSubscriptionServesAllResources(t *testing.T) {
	t.Parallel()
	servers := redistest.StartN(t, 3)
	ours, theirs := opened(t, redistest.Addrs(servers), patient), opened(t, redistest.Addrs(servers), patient)
	var got []<-chan *Lock
	var held []*Lock
	for i := range 5 {
		k, err := ours.Acquire(t.Context(), fmt.Sprint(i), time.Minute)
		require.NoError(t, err)
		held = append(held, k)
		got = append(got, waiterOn(t, theirs, fmt.Sprint(i)))
		inQueue(t, servers, fmt.Sprint(i), theirs)
	}
	for _, s := range servers {
		require.Equal(t, []any{theirs.channel()}, s.MustDo(t, "PUBSUB", "CHANNELS"))
	}
	start := time.Now()
	for i, k := range held {
		require.NoError(t, k.Release(t.Context()))
		requireAcquired(t, got[i])
	}
	require.Less(t, time.Since(start), 2*atOnce)
}

// Those in the queue that are not there any more cost the next one little: a process
// that has gone, one whose caller has given up, and one that does not go on, for which
// the next one looks a little later.
func TestWhoDoesNotTakeItIsPassedOver(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		count int // that are before it in the queue
		stop  func(lockers []*Locker, cancel func(), proxies []*redistest.Proxy)
		most  time.Duration
	}{
		"closed": {3, func(lockers []*Locker, _ func(), _ []*redistest.Proxy) {
			for _, l := range lockers {
				_ = l.Close()
			}
		}, atOnce},
		"given up": {3, func(_ []*Locker, cancel func(), _ []*redistest.Proxy) { cancel() }, atOnce},
		"hung": {1, func(_ []*Locker, _ func(), proxies []*redistest.Proxy) {
			for _, p := range proxies {
				p.SwallowRequests(true)
			}
		}, hedgeTime + atOnce},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			servers := redistest.StartN(t, 3)
			proxies, endpoints := redistest.NewProxies(t, servers)
			ours, second := opened(t, redistest.Addrs(servers), patient), opened(t, redistest.Addrs(servers), patient)
			var first []*Locker
			for range c.count {
				to := endpoints
				if name == "closed" {
					to = redistest.Addrs(servers)
				}
				first = append(first, opened(t, to, patient))
			}
			k, err := ours.Acquire(t.Context(), "r", time.Minute)
			require.NoError(t, err)
			ctx, cancel := context.WithCancel(t.Context())
			defer cancel()
			gone := make(chan error, c.count)
			for _, l := range first {
				go func() {
					_, err := l.Acquire(ctx, "r", time.Minute)
					gone <- err
				}()
				listensTo(t, l, "r")
			}
			got := waiterOn(t, second, "r")
			listensTo(t, second, "r")
			inQueue(t, servers, "r", append(first, second)...)
			c.stop(first, cancel, proxies)
			if name != "hung" {
				for range first {
					require.Error(t, <-gone)
				}
			}
			if name == "closed" {
				for _, s := range servers {
					for _, l := range first {
						eventually(t, func() bool { return subscribers(t, s, l.channel()) == 0 }, "it listens no more")
					}
				}
			}
			start := time.Now()
			require.NoError(t, k.Release(t.Context()))
			next := <-got
			require.Less(t, time.Since(start), c.most)
			require.NoError(t, next.Release(t.Context()))
			if name == "hung" {
				cancel()
				require.Error(t, <-gone)
				for _, p := range proxies {
					p.SwallowRequests(false)
				}
			}
		})
	}
}

// Who is told of releases only looks now and then: it asks for nothing that would have
// to be released.
func TestWhoIsToldOfReleasesOnlyLooks(t *testing.T) {
	t.Parallel()
	servers := redistest.StartN(t, 3)
	var rounds atomic.Int32
	observer := WithObserver(Observer{Round: func(e RoundEvent) {
		if e.Op != "acquire" {
			rounds.Add(1)
		}
	}})
	ours := opened(t, redistest.Addrs(servers))
	theirs := opened(t, redistest.Addrs(servers), observer, WithRetryDelay(time.Millisecond, 4*time.Millisecond))
	k, err := ours.Acquire(t.Context(), "r", time.Minute)
	require.NoError(t, err)
	got := waiterOn(t, theirs, "r")
	listensTo(t, theirs, "r")
	inQueue(t, servers, "r", theirs)
	before := rounds.Load()
	for _, s := range servers {
		s.MustDo(t, "DEL", "r"+waitSuffix)
	}
	inQueue(t, servers, "r", theirs) // it has looked
	require.Equal(t, before, rounds.Load(), "nothing was released")
	for _, s := range servers {
		s.MustDo(t, "DEL", "r") // and nobody says so
	}
	requireAcquired(t, got)
	require.ErrorIs(t, k.Extend(t.Context(), time.Minute), ErrLost)
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
			servers := redistest.StartN(t, 3)
			proxies, endpoints := redistest.NewProxies(t, servers)
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
