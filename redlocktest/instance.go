package redlocktest

import (
	"crypto/rand"
	"fmt"
	"io"
	"net"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/alicebob/miniredis/v2"
	"github.com/alicebob/miniredis/v2/server"
)

// upFor is how long an instance has been up when its cluster starts: longer than
// any quarantine.
const upFor = 366 * 24 * time.Hour

// An instance is one server, and the network to it.
type instance struct {
	addr string

	mu      sync.Mutex
	process *process
	down    bool
	delay   time.Duration
	changed chan struct{} // closed when delay changes
	links   map[*link]struct{}
	running sync.WaitGroup // of links
}

// A process is a server from its start to its end.
type process struct {
	*miniredis.Miniredis
	runID   string
	started time.Time
}

func startProcess(started time.Time) *process {
	p := &process{miniredis.NewMiniRedis(), rand.Text(), started}
	p.ClockTTL(true) // keys expire by themselves, as on a server
	return p
}

// answer answers what miniredis does not know, and on which the quarantine rests:
// who the server is, and how long it has been up.
func (p *process) answer(peer *server.Peer, cmd string, args ...string) bool {
	if cmd != "INFO" || len(args) != 1 || !strings.EqualFold(args[0], "server") {
		return false
	}
	uptime := time.Since(p.started) / time.Second
	peer.WriteBulk(fmt.Sprintf("# Server\r\nrun_id:%s\r\nuptime_in_seconds:%d\r\n", p.runID, uptime))
	return true
}

func newInstance(i int) *instance {
	return &instance{
		// Where nobody listens, if somebody dials it in earnest; and a number, so
		// that no bubble asks a name server.
		addr:    fmt.Sprintf("127.0.0.1:%d", i+1),
		process: startProcess(time.Now().Add(-upFor)),
		changed: make(chan struct{}),
		links:   map[*link]struct{}{},
	}
}

// dial connects to the process.
func (in *instance) dial() (net.Conn, error) {
	in.mu.Lock()
	defer in.mu.Unlock()
	if in.down {
		return nil, &net.OpError{Op: "dial", Net: "tcp", Err: syscall.ECONNREFUSED}
	}
	conn, err := in.process.Dial()
	if err != nil {
		return nil, err
	}
	in.process.Server().SetPreHook(in.process.answer)
	near, far := net.Pipe()
	l := &link{in: in, client: far, server: conn, packets: make(chan packet, maxPackets), broken: make(chan struct{})}
	in.links[l] = struct{}{}
	in.running.Go(l.receive)
	in.running.Go(l.deliver)
	in.running.Go(l.reply)
	return near, nil
}

func (in *instance) set(down bool, delay time.Duration) {
	in.mu.Lock()
	defer in.mu.Unlock()
	in.down, in.delay = down, delay
	close(in.changed)
	in.changed = make(chan struct{})
	if down {
		in.breakLinksLocked()
	}
}

// restart ends the process, and starts an empty one.
func (in *instance) restart() {
	in.mu.Lock()
	old := in.process
	in.breakLinksLocked()
	in.process = startProcess(time.Now())
	in.mu.Unlock()
	old.Close()
}

func (in *instance) close() {
	in.set(true, 0)
	in.running.Wait()
	in.mu.Lock()
	defer in.mu.Unlock()
	in.process.Close()
}

func (in *instance) breakLinksLocked() {
	for l := range in.links {
		l.cutLocked()
	}
}

func (in *instance) owner(key string) string {
	in.mu.Lock()
	defer in.mu.Unlock()
	owner, err := in.process.Get(key)
	if err != nil { // there is none, or it is no string: not a lock
		return ""
	}
	return owner
}

func (in *instance) remove(key string) bool {
	in.mu.Lock()
	defer in.mu.Unlock()
	return in.process.Del(key)
}

// A link is one connection to the process, as the network has it: what the client
// has written arrives, also if the client does not wait for it.
type link struct {
	in      *instance
	client  net.Conn // our end of the client's
	server  net.Conn
	packets chan packet   // on their way
	broken  chan struct{} // closed by cutLocked
}

type packet struct {
	sent time.Time
	data []byte
}

const (
	maxPackets = 64
	maxPacket  = 64 << 10
)

// receive takes what the client writes, until it closes.
func (l *link) receive() {
	defer close(l.packets)
	buf := make([]byte, maxPacket)
	for {
		n, err := l.client.Read(buf)
		if err != nil {
			return
		}
		select {
		case l.packets <- packet{time.Now(), append([]byte(nil), buf[:n]...)}:
		case <-l.broken:
			return
		}
	}
}

// deliver gives the process what is due, in its order. Without a client it ends the
// connection after the last.
func (l *link) deliver() {
	defer l.cut()
	for p := range l.packets {
		if !l.waitFor(p.sent) {
			return
		}
		if _, err := l.server.Write(p.data); err != nil {
			return
		}
	}
}

// waitFor waits until what was sent then has arrived; it reports false if the
// connection breaks before.
func (l *link) waitFor(sent time.Time) bool {
	for {
		l.in.mu.Lock()
		delay, changed := l.in.delay, l.in.changed
		l.in.mu.Unlock()
		left := time.Until(sent.Add(delay))
		if left <= 0 {
			return true
		}
		timer := time.NewTimer(left)
		select {
		case <-timer.C:
		case <-changed:
		case <-l.broken:
		}
		timer.Stop()
		select {
		case <-l.broken:
			return false
		default:
		}
	}
}

// reply takes the answers to the client, or to nobody, if it has gone: a process
// that can't get rid of its answers would do nothing more.
func (l *link) reply() {
	_, _ = io.Copy(l.client, l.server)
	_, _ = io.Copy(io.Discard, l.server)
	_ = l.client.Close() // as the process has
}

func (l *link) cut() {
	l.in.mu.Lock()
	defer l.in.mu.Unlock()
	l.cutLocked()
}

// cutLocked breaks the connection.
func (l *link) cutLocked() {
	if _, ok := l.in.links[l]; !ok {
		return
	}
	delete(l.in.links, l)
	close(l.broken)
	_ = l.client.Close()
	_ = l.server.Close()
}
