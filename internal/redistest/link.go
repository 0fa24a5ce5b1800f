package redistest

import (
	"bytes"
	"io"
	"net"
	"sync"
	"time"
)

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
	p := l.proxy
	p.mu.Lock()
	now := *f
	if f == &p.requests {
		p.read++
	}
	if now.swallow || now.delay > 0 {
		p.struck++
	}
	p.mu.Unlock()
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
	for c := range queue { // ends with its reader, and that with the connection
		if !l.await(c.due, f) {
			return
		}
		send(c)
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
	for held := false; ; held = true {
		l.proxy.mu.Lock()
		hold, stopped := f.hold, l.stopped
		if hold != nil && !held {
			l.proxy.struck++
		}
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
		p.set(func() { p.struck++ })
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
	l.proxy.set(func() {
		l.proxy.struck++
		l.stopLocked(false)
	})
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
