package redistest

import (
	"bytes"
	"crypto/rand"
	"fmt"
	"io"
	"net"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"
)

func TestProxyForwardsBothWays(t *testing.T) {
	t.Parallel()
	p := NewProxy(t, echo(t))
	c := connect(t, p.Addr())
	sent := make([]byte, 1<<20)
	_, _ = rand.Read(sent)
	var wg sync.WaitGroup
	wg.Go(func() {
		_, _ = c.conn.Write(sent)
		_ = c.conn.CloseWrite() // passed on, or the echo would not end
	})
	got, err := io.ReadAll(c.in)
	wg.Wait()
	require.NoError(t, err)
	require.True(t, bytes.Equal(sent, got))
	eventually(t, func() bool { return p.Conns() == 0 }, "the connection is forgotten")
	require.Equal(t, 1, p.Accepted())
}

// The second line is sent while the first is under way. One after the other they
// would take 2d.
func TestDelayIsAPipeline(t *testing.T) {
	t.Parallel()
	const d = 6 * silence
	for name, set := range map[string]func(*Proxy){
		"requests": func(p *Proxy) { p.DelayRequests(d) },
		"replies":  func(p *Proxy) { p.DelayReplies(d) },
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			p := NewProxy(t, echo(t))
			c := connect(t, p.Addr())
			c.send("before")
			c.line("before")
			set(p) // on a connection that exists
			start := time.Now()
			c.send("first")
			c.silent()
			c.send("second")
			c.line("first")
			require.GreaterOrEqual(t, time.Since(start), d)
			c.line("second")
			require.GreaterOrEqual(t, time.Since(start), d+silence)
			require.Less(t, time.Since(start), 2*d-silence/2)
		})
	}
}

func TestDelayWorksBothWaysUntilItIsSwitchedOff(t *testing.T) {
	t.Parallel()
	p := NewProxy(t, echo(t))
	c := connect(t, p.Addr())
	roundTrip := func() time.Duration {
		start := time.Now()
		c.send("a")
		c.line("a")
		return time.Since(start)
	}
	p.Delay(2 * silence)
	require.GreaterOrEqual(t, roundTrip(), 4*silence)
	p.Delay(0)
	require.Less(t, roundTrip(), 4*silence)
}

// What is sent after the delay was shortened must not overtake.
func TestDelayKeepsTheOrder(t *testing.T) {
	t.Parallel()
	p := NewProxy(t, echo(t))
	c := connect(t, p.Addr())
	p.DelayReplies(5 * silence)
	c.send("slow")
	c.silent() // the reply is under way
	p.DelayReplies(0)
	c.send("fast")
	c.line("slow")
	c.line("fast")
}

func TestSwallowedRequestIsNeverExecuted(t *testing.T) {
	t.Parallel()
	s := Start(t)
	p := NewProxy(t, s.Addr())
	c := connect(t, p.Addr())
	p.SwallowRequests(true)
	c.send("INCR k")
	c.silent()
	p.SwallowRequests(false)
	c.send("ECHO after")
	c.reply("after")
	require.Nil(t, s.MustDo(t, "GET", "k"))
}

func TestSwallowedReplyIsLostAfterExecution(t *testing.T) {
	t.Parallel()
	s := Start(t)
	p := NewProxy(t, s.Addr())
	c := connect(t, p.Addr())
	p.SwallowReplies(true)
	c.send("INCR k")
	c.silent()
	require.Equal(t, "1", s.MustDo(t, "GET", "k"))
	p.SwallowReplies(false)
	c.send("ECHO after")
	c.reply("after")
}

func TestHeldRequestsAreExecutedLaterInOrder(t *testing.T) {
	t.Parallel()
	for name, leave := range map[string]func(c *peer){
		"client stays":  func(*peer) {},
		"client closes": func(c *peer) { require.NoError(c.t, c.conn.Close()) },
		"client resets": func(c *peer) {
			require.NoError(c.t, c.conn.SetLinger(0))
			require.NoError(c.t, c.conn.Close())
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := Start(t)
			p := NewProxy(t, s.Addr())
			c := connect(t, p.Addr())
			c.send("PING")
			c.reply("PONG")
			p.HoldRequests(true)
			c.send("APPEND k a")
			c.send("APPEND k b")
			c.silent()
			leave(c)
			if name != "client stays" {
				eventually(t, func() bool { return p.Conns() == 0 }, "the client's end is seen")
			}
			require.Nil(t, s.MustDo(t, "GET", "k"))
			require.Equal(t, 2, clients(t, s), "the server still has the connection")

			p.HoldRequests(false)
			eventually(t, func() bool { return s.MustDo(t, "GET", "k") == "ab" }, "both are executed")
			if name == "client stays" {
				c.reply(int64(1))
				c.reply(int64(2))
				return
			}
			eventually(t, func() bool { return clients(t, s) == 1 }, "the server is told that the client left")
		})
	}
}

func TestHeldRepliesArriveLater(t *testing.T) {
	t.Parallel()
	s := Start(t)
	p := NewProxy(t, s.Addr())
	c := connect(t, p.Addr())
	p.HoldReplies(true)
	p.HoldReplies(true)
	c.send("INCR k")
	c.send("INCR k")
	c.silent()
	require.Equal(t, "2", s.MustDo(t, "GET", "k"))
	p.HoldReplies(false)
	c.reply(int64(1))
	c.reply(int64(2))
}

func TestDuplicateIsExecutedAndItsReplyDropped(t *testing.T) {
	t.Parallel()
	s := Start(t)
	p := NewProxy(t, s.Addr())
	c := connect(t, p.Addr())
	p.DuplicateRequests(true)
	for i := range 3 { // each waits for the one before
		c.send("RPUSH k " + fmt.Sprint(i))
		_, err := readReply(c.in)
		require.NoError(t, err)
		eventually(t, func() bool { return s.MustDo(t, "LLEN", "k") == int64(2*i+2) }, "it comes twice")
	}
	require.Equal(t, []any{"0", "0", "1", "1", "2", "2"}, s.MustDo(t, "LRANGE", "k", "0", "-1"))
	require.Equal(t, 3, clients(t, s), "one connection for all duplicates")
	c.silent()

	p.DuplicateRequests(false)
	c.send("RPUSH k 3")
	c.reply(int64(7))
	require.NoError(t, c.conn.Close())
	eventually(t, func() bool { return clients(t, s) == 1 }, "both connections end with the client's")
}

// The client is gone before the first copy is delivered.
func TestDuplicateOfAHeldRequestIsExecuted(t *testing.T) {
	t.Parallel()
	s := Start(t)
	p := NewProxy(t, s.Addr())
	c := connect(t, p.Addr())
	p.DuplicateRequests(true)
	p.HoldRequests(true)
	c.send("INCR k")
	require.NoError(t, c.conn.Close())
	eventually(t, func() bool { return p.Accepted() == 1 && p.Conns() == 0 }, "the client's end is seen")
	p.HoldRequests(false)
	eventually(t, func() bool { return s.MustDo(t, "GET", "k") == "2" }, "both copies are executed")
}

func TestCutLosesOneReplyAfterExecution(t *testing.T) {
	t.Parallel()
	s := Start(t)
	p := NewProxy(t, s.Addr())
	bystander, c := connect(t, p.Addr()), connect(t, p.Addr())
	p.DelayReplies(20 * time.Millisecond)
	p.CutReplies("INCR")
	cut := p.Cut()
	bystander.send("ECHO other")
	bystander.reply("other")
	c.send("ECHO first")
	c.reply("first")
	select {
	case <-cut:
		require.Fail(t, "cut without a match")
	default:
	}

	c.send("INCR k")
	c.ended(io.EOF)
	<-cut
	require.Equal(t, "1", s.MustDo(t, "GET", "k"))

	bystander.send("INCR k") // one-shot
	bystander.reply(int64(2))
	p.CutReplies("INCR")
	bystander.send("INCR k")
	bystander.ended()
	<-p.Cut()
}

// No reply, no cut: the channel says that the request was executed.
func TestCutWaitsForTheReply(t *testing.T) {
	t.Parallel()
	s := Start(t)
	p := NewProxy(t, s.Addr())
	c := connect(t, p.Addr())
	c.send("PING")
	c.reply("PONG")
	p.CutReplies("INCR")
	require.NoError(t, s.Pause())
	c.send("INCR k")
	c.silent()
	require.NoError(t, s.Kill())
	c.ended()
	select {
	case <-p.Cut():
		require.Fail(t, "cut without a reply")
	default:
	}
}

func TestBreakResetsBothSides(t *testing.T) {
	t.Parallel()
	s := Start(t)
	p := NewProxy(t, s.Addr())
	var all []*peer
	for range 3 {
		c := connect(t, p.Addr())
		c.send("PING")
		c.reply("PONG")
		all = append(all, c)
	}
	require.Equal(t, 3, p.Conns())
	p.HoldRequests(true)
	all[0].send("INCR k")
	all[0].silent()

	p.Break()
	require.Zero(t, p.Conns())
	for _, c := range all {
		c.ended(syscall.ECONNRESET)
	}
	eventually(t, func() bool { return clients(t, s) == 1 }, "the server's side is closed")
	p.HoldRequests(false)

	c := connect(t, p.Addr())
	c.send("EXISTS k")
	c.reply(int64(0)) // what was held is lost
	require.Equal(t, 1, p.Conns())
	require.Equal(t, 4, p.Accepted())
}

func TestRefuseSparesOpenConnections(t *testing.T) {
	t.Parallel()
	p := NewProxy(t, echo(t))
	before := connect(t, p.Addr())
	before.send("a")
	before.line("a")
	p.Refuse(true)
	connect(t, p.Addr()).ended()
	before.send("b")
	before.line("b")
	require.Equal(t, 1, p.Conns())
	require.Equal(t, 2, p.Accepted())
	p.Refuse(false)
	after := connect(t, p.Addr())
	after.send("c")
	after.line("c")
}

func TestRetargetLeadsNewConnectionsElsewhere(t *testing.T) {
	t.Parallel()
	servers := StartN(t, 2)
	servers[0].MustDo(t, "SET", "name", "first")
	servers[1].MustDo(t, "SET", "name", "second")
	p := NewProxy(t, servers[0].Addr())
	before := connect(t, p.Addr())
	before.send("GET name")
	before.reply("first")
	p.Retarget(servers[1].Addr())
	after := connect(t, p.Addr())
	after.send("GET name")
	after.reply("second")
	before.send("GET name")
	before.reply("first")
}

func TestOnRequestSeesWhatIsDelivered(t *testing.T) {
	t.Parallel()
	p := NewProxy(t, echo(t))
	c := connect(t, p.Addr())
	var mu sync.Mutex
	var seen strings.Builder
	p.OnRequest(func(chunk []byte) {
		mu.Lock()
		defer mu.Unlock()
		seen.Write(chunk)
	})
	p.DuplicateRequests(true)
	for _, line := range []string{"a", "b", "c"} {
		c.send(line)
		c.line(line)
	}
	p.SwallowRequests(true)
	c.send("swallowed")
	c.silent()
	p.SwallowRequests(false)
	p.OnRequest(nil)
	c.send("unobserved")
	c.line("unobserved")
	mu.Lock()
	defer mu.Unlock()
	require.Equal(t, "a\r\nb\r\nc\r\n", seen.String())
}

// The switches may be used from within, and reach the reply of this request.
func TestOnRequestMayUseTheSwitches(t *testing.T) {
	t.Parallel()
	p := NewProxy(t, echo(t))
	c := connect(t, p.Addr())
	p.OnRequest(func([]byte) { p.SwallowReplies(true) })
	c.send("a")
	c.silent()
	p.OnRequest(func([]byte) { p.Break() })
	c.send("b")
	c.ended()
}

func TestEndOfTheServerReachesTheClient(t *testing.T) {
	t.Parallel()
	s := Start(t)
	p := NewProxy(t, s.Addr())
	c := connect(t, p.Addr())
	c.send("PING")
	c.reply("PONG")
	require.NoError(t, s.Kill())
	c.ended()
	connect(t, p.Addr()).ended() // the target refuses now
	eventually(t, func() bool { return p.Conns() == 0 }, "no connection is left")
	require.NoError(t, s.Restart())
	again := connect(t, p.Addr())
	again.send("PING")
	again.reply("PONG")
}

// Every wait of the proxy must end with it: a full queue, a long delay, a hold
// with the client gone, a server that does not read, one that says nothing. Not
// parallel: another test's goroutines would count.
func TestCloseLeavesNoGoroutine(t *testing.T) {
	redis, mute := Start(t).Addr(), Mute(t)
	before := goleak.IgnoreCurrent()
	var proxies []*Proxy
	var peers []*peer
	for _, test := range []struct {
		target string
		use    func(p *Proxy, c *peer)
	}{
		{redis, func(*Proxy, *peer) {}},
		{redis, func(p *Proxy, c *peer) { p.Delay(time.Hour); c.send("PING") }},
		{redis, func(p *Proxy, c *peer) { p.HoldRequests(true); c.send("PING"); _ = c.conn.Close() }},
		{redis, func(p *Proxy, c *peer) { p.HoldReplies(true); c.send("PING") }},
		{redis, func(p *Proxy, c *peer) { p.DuplicateRequests(true); c.send("PING"); c.reply("PONG") }},
		{mute, func(_ *Proxy, c *peer) { c.send("PING"); _ = c.conn.Close() }},
		{mute, func(p *Proxy, c *peer) { p.DuplicateRequests(true); c.send("PING") }},
		{mute, func(_ *Proxy, c *peer) { c.flood() }},
		{mute, func(p *Proxy, c *peer) { p.HoldRequests(true); c.flood() }},
	} {
		p, err := LaunchProxy(test.target)
		require.NoError(t, err)
		c := connect(t, p.Addr())
		eventually(t, func() bool { return p.Conns() == 1 }, "connected")
		test.use(p, c)
		proxies, peers = append(proxies, p), append(peers, c)
	}
	peers[0].silent() // until each is where it should be
	for i, p := range proxies {
		p.Close()
		p.Close()
		require.Zero(t, p.Conns())
		_ = peers[i].conn.Close()
	}
	goleak.VerifyNone(t, before)
}

// Switches flip with every message; nothing is lost, nothing changes places.
func TestSwitchesUnderTraffic(t *testing.T) {
	t.Parallel()
	p := NewProxy(t, echo(t))
	flip := make(chan int)
	var wg sync.WaitGroup
	for i := range 4 {
		c := connect(t, p.Addr())
		wg.Go(func() {
			for n := range 100 {
				want := fmt.Sprintf("%d-%d\n", i, n)
				if _, err := io.WriteString(c.conn, want); err != nil {
					t.Errorf("write: %v", err)
					return
				}
				flip <- n
				if got, err := c.in.ReadString('\n'); got != want {
					t.Errorf("got %q, %v, want %q", got, err, want)
					return
				}
			}
		})
	}
	go func() {
		wg.Wait()
		close(flip)
	}()
	for n := range flip {
		p.HoldRequests(true)
		p.HoldReplies(true)
		p.Delay(time.Duration(n%5) * 100 * time.Microsecond)
		p.OnRequest(func([]byte) { p.Conns() })
		p.HoldReplies(false)
		p.HoldRequests(false)
	}
}

// flood sends until nobody takes any more.
func (c *peer) flood() {
	block := make([]byte, 1<<20)
	for {
		_ = c.conn.SetWriteDeadline(time.Now().Add(silence))
		if n, _ := c.conn.Write(block); n == 0 {
			return
		}
	}
}

// echo returns the address of a server that sends everything back.
func echo(t *testing.T) string {
	t.Helper()
	addr, _ := serve(t, "127.0.0.1:0", func(conn net.Conn) { _, _ = io.Copy(conn, conn) })
	return addr
}

// clients returns how many connections s has, this question's included.
func clients(t *testing.T, s *Server) int {
	t.Helper()
	return strings.Count(s.MustDo(t, "CLIENT", "LIST").(string), "id=")
}

// A fault that met nothing is told from one that did.
func TestAProxyCountsWhatItsFaultsMeet(t *testing.T) {
	t.Parallel()
	p := NewProxy(t, echo(t))
	c := connect(t, p.Addr())
	c.send("nothing")
	c.line("nothing")
	require.Zero(t, p.Struck())
	require.Equal(t, 1, p.Requests())
	struck := 0
	met := func(what string, want int) {
		t.Helper()
		struck += want
		eventually(t, func() bool { return p.Struck() == struck }, what)
	}

	p.Delay(time.Millisecond)
	c.send("delayed")
	c.line("delayed")
	p.Delay(0)
	met("both directions", 2)
	p.HoldReplies(true)
	c.send("held")
	met("a chunk that waits", 1)
	p.HoldReplies(false)
	c.line("held")
	p.DuplicateRequests(true)
	c.send("doubled")
	c.line("doubled")
	p.DuplicateRequests(false)
	met("a copy", 1)
	p.SwallowRequests(true)
	c.send("swallowed")
	met("a chunk that is gone", 1)
	p.SwallowRequests(false)
	p.CutReplies("cut")
	c.send("cut")
	met("a reply", 1)

	connect(t, p.Addr())
	eventually(t, func() bool { return p.Conns() == 1 }, "the connection is there")
	p.Break()
	met("a connection", 1)
	p.Refuse(true)
	connect(t, p.Addr())
	met("a connection that is not taken", 1)
	p.Refuse(false)
	dead, err := FreeAddr()
	require.NoError(t, err)
	p.Retarget(dead)
	connect(t, p.Addr())
	met("a connection that leads nowhere", 1)
	require.Equal(t, 6, p.Requests())
}
