package redistest

import (
	"context"
	"net"
	"sync"
	"testing"
	"time"
)

// Proxy forwards TCP connections to one target and misbehaves on request, in one
// direction or both, on connections that exist and on those to come. All its
// methods may be called at any moment from any goroutine, and all but Close from
// OnRequest's function.
//
// A byte passes three stations: it is read (and swallowed here, if it must be),
// it waits in a queue until its delay is over and nothing is held, and it is
// delivered. A switch governs what reaches its station from then on; a chunk
// that has just passed is not called back. Nothing overtakes in a queue.
//
// A request is recognised within one chunk, that is what one read returns: fine
// for a client's commands on loopback, not for megabytes.
type Proxy struct {
	listener net.Listener
	ctx      context.Context // ends with the proxy; bounds dials
	cancel   context.CancelFunc
	running  sync.WaitGroup // every goroutine of the proxy

	mu        sync.Mutex
	target    string
	requests  faults
	replies   faults
	duplicate bool
	refuse    bool
	observe   func(chunk []byte)
	match     []byte        // what CutReplies waits for, nil if nothing
	cut       chan struct{} // closed when the last CutReplies has struck
	links     map[*link]struct{}
	accepted  int
	read      int // chunks of requests
	struck    int // see Struck
	closed    bool
}

// faults is what one direction suffers.
type faults struct {
	delay   time.Duration
	swallow bool
	hold    chan struct{} // nil unless bytes are held; closed when they may go
}

const (
	chunkSize  = 32 << 10
	queueLen   = 256 // chunks; a full queue stops the reading, as a full socket buffer does
	dialBudget = 2 * time.Second
)

// NewProxy is [LaunchProxy] for a test; the proxy is closed with it.
func NewProxy(tb testing.TB, target string) *Proxy {
	tb.Helper()
	p, err := LaunchProxy(target)
	if err != nil {
		tb.Fatal(err)
	}
	tb.Cleanup(p.Close)
	return p
}

// NewProxies returns a proxy in front of each server, and their addresses.
func NewProxies(tb testing.TB, servers []*Server) (proxies []*Proxy, addrs []string) {
	tb.Helper()
	for _, s := range servers {
		p := NewProxy(tb, s.Addr())
		proxies, addrs = append(proxies, p), append(addrs, p.Addr())
	}
	return proxies, addrs
}

// LaunchProxy starts a proxy to target ("host:port") on a free loopback port.
// The target is dialed once for every accepted connection; when that fails the
// client's connection is closed. Stop the proxy with Close.
func LaunchProxy(target string) (*Proxy, error) {
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return nil, err
	}
	p := &Proxy{
		target:   target,
		listener: listener,
		cut:      make(chan struct{}),
		links:    make(map[*link]struct{}),
	}
	p.ctx, p.cancel = context.WithCancel(context.Background())
	p.running.Go(p.accept)
	return p, nil
}

// Addr returns the address to connect to instead of the target's.
func (p *Proxy) Addr() string { return p.listener.Addr().String() }

// Close breaks all connections, drops what is held, and returns when no
// goroutine of the proxy is left.
func (p *Proxy) Close() {
	p.mu.Lock()
	p.closed = true
	p.mu.Unlock()
	p.cancel()
	_ = p.listener.Close()
	p.Break()
	p.running.Wait()
}

// Delay makes each direction d slower: a round trip takes 2d longer. It is the
// latency of a long line, not a narrow one: any number of chunks are under way.
func (p *Proxy) Delay(d time.Duration) {
	p.DelayRequests(d)
	p.DelayReplies(d)
}

// DelayRequests makes what is read from clients from now on arrive d later.
func (p *Proxy) DelayRequests(d time.Duration) {
	p.set(func() { p.requests.delay = d })
}

// DelayReplies makes what is read from the server from now on arrive d later.
func (p *Proxy) DelayReplies(d time.Duration) {
	p.set(func() { p.replies.delay = d })
}

// SwallowRequests drops what clients send while it is on.
func (p *Proxy) SwallowRequests(on bool) {
	p.set(func() { p.requests.swallow = on })
}

// SwallowReplies drops what the server sends while it is on.
func (p *Proxy) SwallowReplies(on bool) {
	p.set(func() { p.replies.swallow = on })
}

// HoldRequests keeps back what clients send until it is switched off, and then
// delivers it in order, even if the client has gone meanwhile: the request that
// sat in a socket buffer and is executed long after its caller gave up. Only
// Break, Close and the server's end of the connection discard held bytes.
func (p *Proxy) HoldRequests(on bool) {
	p.set(func() { p.requests.setHold(on) })
}

// HoldReplies keeps back what the server sends until it is switched off.
func (p *Proxy) HoldReplies(on bool) {
	p.set(func() { p.replies.setHold(on) })
}

func (f *faults) setHold(on bool) {
	switch {
	case on && f.hold == nil:
		f.hold = make(chan struct{})
	case !on && f.hold != nil:
		close(f.hold)
		f.hold = nil
	}
}

// DuplicateRequests sends each chunk that is delivered to the server a second
// time, on another connection to it (one per client connection, opened with the
// first duplicate), and drops the replies to that.
func (p *Proxy) DuplicateRequests(on bool) {
	p.set(func() { p.duplicate = on })
}

// CutReplies loses one reply after its request was executed: the next request
// that contains match is delivered, and when the reply to it comes the
// connection is closed instead. The next reply counts as the one to it, so
// requests must not be pipelined on that connection. A second call replaces a
// match that has not been seen yet.
func (p *Proxy) CutReplies(match string) {
	p.set(func() { p.match, p.cut = []byte(match), make(chan struct{}) })
}

// Cut returns a channel that is closed when the last CutReplies before this call
// has struck.
func (p *Proxy) Cut() <-chan struct{} {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.cut
}

// Break closes all connections now, on both sides and with a reset, and drops
// what was on its way. New connections are accepted.
func (p *Proxy) Break() {
	p.mu.Lock()
	defer p.mu.Unlock()
	for l := range p.links {
		if l.open && !p.closed {
			p.struck++
		}
		l.stopLocked(true)
	}
}

// Refuse closes connections as soon as they are accepted, while it is on.
func (p *Proxy) Refuse(on bool) {
	p.set(func() { p.refuse = on })
}

// Retarget leads new connections to target, as a failover does behind a name that
// stays. Those that are open still lead where they did.
func (p *Proxy) Retarget(target string) {
	p.set(func() { p.target = target })
}

// OnRequest calls f with each chunk just before it is delivered to the server,
// in order on each connection, concurrently for several. A duplicate is not
// shown again. f may keep the chunk but not change it, and nil removes f.
func (p *Proxy) OnRequest(f func(chunk []byte)) {
	p.set(func() { p.observe = f })
}

// Conns returns the number of client connections that are open now. One whose
// client has closed it does not count, even if its requests are still held.
func (p *Proxy) Conns() int {
	p.mu.Lock()
	defer p.mu.Unlock()
	n := 0
	for l := range p.links {
		if l.open {
			n++
		}
	}
	return n
}

// Accepted returns how many connections were accepted so far, refused ones too.
func (p *Proxy) Accepted() int {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.accepted
}

// Requests returns how many chunks of requests were read from clients so far, those
// that were swallowed, too.
func (p *Proxy) Requests() int {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.read
}

// Struck returns how often so far one of the proxy's faults met something: chunks that
// were swallowed, delayed, held back or sent twice, replies that were cut off, and
// connections that were broken or refused, or not to be had of the target.
func (p *Proxy) Struck() int {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.struck
}

func (p *Proxy) set(f func()) {
	p.mu.Lock()
	defer p.mu.Unlock()
	f()
}

func (p *Proxy) accept() {
	for {
		client, err := p.listener.Accept()
		if err != nil {
			return
		}
		p.mu.Lock()
		p.accepted++
		refuse := p.refuse
		if refuse {
			p.struck++
		}
		p.mu.Unlock()
		if refuse {
			_ = client.Close()
			continue
		}
		server, err := p.dial()
		if err != nil {
			p.set(func() { p.struck++ })
			_ = client.Close()
			continue
		}
		p.join(client.(*net.TCPConn), server)
	}
}

func (p *Proxy) dial() (*net.TCPConn, error) {
	p.mu.Lock()
	target := p.target
	p.mu.Unlock()
	dialer := net.Dialer{Timeout: dialBudget}
	conn, err := dialer.DialContext(p.ctx, "tcp", target)
	if err != nil {
		return nil, err
	}
	return conn.(*net.TCPConn), nil
}

// join makes a link of two connections, unless Close was faster.
func (p *Proxy) join(client, server *net.TCPConn) {
	l := &link{
		proxy: p, client: client, server: server,
		gone: make(chan struct{}),
		open: true,
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	p.links[l] = struct{}{}
	if p.closed {
		l.stopLocked(true)
	}
	p.running.Go(l.run)
}
