package redistest

import (
	"bytes"
	"context"
	"io"
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
	target   string
	listener net.Listener
	ctx      context.Context // ends with the proxy; bounds dials
	cancel   context.CancelFunc
	running  sync.WaitGroup // every goroutine of the proxy

	mu        sync.Mutex
	requests  faults
	replies   faults
	duplicate bool
	refuse    bool
	observe   func(chunk []byte)
	match     []byte        // what CutReplies waits for, nil if nothing
	cut       chan struct{} // closed when the last CutReplies has struck
	links     map[*link]struct{}
	accepted  int
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
	queueLen   = 1024 // chunks; a full queue stops the reading, as a full socket buffer does
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
		l.stopLocked(true)
	}
}

// Refuse closes connections as soon as they are accepted, while it is on.
func (p *Proxy) Refuse(on bool) {
	p.set(func() { p.refuse = on })
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
		p.mu.Unlock()
		if refuse {
			_ = client.Close()
			continue
		}
		server, err := p.dial()
		if err != nil {
			_ = client.Close()
			continue
		}
		p.join(client.(*net.TCPConn), server)
	}
}

func (p *Proxy) dial() (*net.TCPConn, error) {
	dialer := net.Dialer{Timeout: dialBudget}
	conn, err := dialer.DialContext(p.ctx, "tcp", p.target)
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

// link is one client connection with its connection to the server. Two
// goroutines serve each direction, one reads and one delivers, because a chunk
// on its way must not keep the next one from being read.
type link struct {
	proxy          *Proxy
	client, server *net.TCPConn
	gone           chan struct{} // closed by stopLocked; ends every wait

	// Guarded by proxy.mu.
	open      bool          // the client has not closed its connection
	stopped   bool          // stopLocked was called
	duplicate *net.TCPConn  // where duplicates go, nil before the first
	cutNext   chan struct{} // the next reply is to be cut, and this closed
}

// chunk is what one read returned.
type chunk struct {
	data []byte
	due  time.Time     // not to be delivered before
	cut  chan struct{} // in place of data: close the link, then this
}

// run serves the link until the server has closed its side and all its replies
// are delivered, or until the link is stopped. The end of the client alone does
// not end it: that is passed on to the server, behind the requests.
func (l *link) run() {
	requests, replies := make(chan chunk, queueLen), make(chan chunk, queueLen)
	var wg sync.WaitGroup
	wg.Go(func() { l.readRequests(requests) })
	wg.Go(func() {
		l.deliver(requests, &l.proxy.requests, l.sendRequest)
		l.endRequests()
	})
	wg.Go(func() { l.readReplies(replies) })
	l.deliver(replies, &l.proxy.replies, l.sendReply)
	l.proxy.set(func() { l.stopLocked(false) })
	wg.Wait()
	l.proxy.set(func() { delete(l.proxy.links, l) })
}

func (l *link) readRequests(queue chan<- chunk) {
	defer close(queue)
	defer l.proxy.set(func() { l.open = false })
	buf := make([]byte, chunkSize)
	for {
		n, err := l.client.Read(buf)
		if n > 0 {
			l.enqueue(queue, &l.proxy.requests, buf[:n])
		}
		if err != nil {
			return
		}
	}
}

func (l *link) readReplies(queue chan<- chunk) {
	defer close(queue)
	buf := make([]byte, chunkSize)
	for {
		n, err := l.server.Read(buf)
		if n > 0 && l.enqueueCut(queue) {
			return
		}
		if n > 0 {
			l.enqueue(queue, &l.proxy.replies, buf[:n])
		}
		if err != nil {
			return
		}
	}
}

func (l *link) enqueue(queue chan<- chunk, f *faults, data []byte) {
	l.proxy.mu.Lock()
	now := *f
	l.proxy.mu.Unlock()
	if now.swallow {
		return
	}
	select {
	case queue <- chunk{data: bytes.Clone(data), due: time.Now().Add(now.delay)}:
	case <-l.gone:
	}
}

// enqueueCut puts the end of the connection where the reply would have been, and
// reports whether this was the reply to cut. The replies before it still arrive.
func (l *link) enqueueCut(queue chan<- chunk) bool {
	l.proxy.mu.Lock()
	cut, delay := l.cutNext, l.proxy.replies.delay
	l.proxy.mu.Unlock()
	if cut == nil {
		return false
	}
	select {
	case queue <- chunk{cut: cut, due: time.Now().Add(delay)}:
	case <-l.gone:
	}
	return true
}

// deliver passes the queue's chunks to send, each when it is due and not held,
// until the queue ends or the link is stopped.
func (l *link) deliver(queue <-chan chunk, f *faults, send func(chunk)) {
	for {
		select {
		case c, ok := <-queue:
			if !ok || !l.await(c.due, f) {
				return
			}
			send(c)
		case <-l.gone:
			return
		}
	}
}

// await returns when it is due and nothing is held, and reports whether the link
// has lived to see it.
func (l *link) await(due time.Time, f *faults) bool {
	if wait := time.Until(due); wait > 0 {
		timer := time.NewTimer(wait)
		defer timer.Stop()
		select {
		case <-timer.C:
		case <-l.gone:
			return false
		}
	}
	for {
		l.proxy.mu.Lock()
		hold, stopped := f.hold, l.stopped
		l.proxy.mu.Unlock()
		if hold == nil || stopped {
			return !stopped
		}
		select {
		case <-hold: // look again: a new hold may have begun
		case <-l.gone:
			return false
		}
	}
}

// sendRequest delivers one chunk to the server. Write errors are ignored, as in
// sendReply: a side that is gone is noticed by whoever reads from it, and the
// other direction may still have something to deliver.
func (l *link) sendRequest(c chunk) {
	p := l.proxy
	p.mu.Lock()
	observe := p.observe
	p.mu.Unlock()
	if observe != nil {
		observe(c.data) // without the mutex: it may use the switches
	}
	p.mu.Lock()
	duplicate := p.duplicate
	// Marked before the write: the reply must not be faster.
	if p.match != nil && bytes.Contains(c.data, p.match) {
		l.cutNext, p.match = p.cut, nil
	}
	p.mu.Unlock()
	_, _ = l.server.Write(c.data)
	if !duplicate {
		return
	}
	if conn := l.duplicateConn(); conn != nil {
		_, _ = conn.Write(c.data)
	}
}

// endRequests tells the server that nothing more will come, instead of closing:
// it shall execute everything first, and a close with unread replies would be a
// reset.
func (l *link) endRequests() {
	l.proxy.mu.Lock()
	defer l.proxy.mu.Unlock()
	_ = l.server.CloseWrite()
	if l.duplicate != nil {
		_ = l.duplicate.CloseWrite()
	}
}

// duplicateConn returns the link's second connection to the server, or nil if
// there is none to be had. Only sendRequest calls it.
func (l *link) duplicateConn() *net.TCPConn {
	p := l.proxy
	p.mu.Lock()
	conn := l.duplicate
	p.mu.Unlock()
	if conn != nil {
		return conn
	}
	conn, err := p.dial()
	if err != nil {
		return nil
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	if l.stopped {
		_ = conn.Close()
		return nil
	}
	l.duplicate = conn
	p.running.Go(func() {
		_, _ = io.Copy(io.Discard, conn)
	})
	return conn
}

func (l *link) sendReply(c chunk) {
	if c.cut == nil {
		_, _ = l.client.Write(c.data)
		return
	}
	l.proxy.set(func() { l.stopLocked(false) })
	close(c.cut)
}

// stopLocked closes the link's connections, with a reset if so wished, and ends
// its goroutines without waiting for them: OnRequest's function may be the
// caller.
func (l *link) stopLocked(reset bool) {
	if l.stopped {
		return
	}
	l.stopped, l.open = true, false
	close(l.gone)
	for _, conn := range []*net.TCPConn{l.client, l.server, l.duplicate} {
		if conn == nil {
			continue
		}
		if reset {
			_ = conn.SetLinger(0)
		}
		_ = conn.Close()
	}
}
