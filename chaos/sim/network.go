package sim

import (
	"cmp"
	"context"
	"fmt"
	"net"
	"os"
	"slices"
	"sync"
	"syscall"
	"time"
)

// A direction of a link.
type direction int

const (
	up   direction = iota // to the instance
	down                  // to the client
)

// grid parts the instants: on each step of it every connection of a link has one of its
// own in each direction; so no two messages arrive at one instant.
const (
	grid  = 32768
	slot  = lanes // of a connection and direction
	conns = 16    // of a link, then it begins anew
)

// Each goroutine of a client has a lane: what it does after it was woken, it does at an
// instant that leaves this remainder when it is divided by lanes, and that is no other
// goroutine's. So it makes no difference which of those that are woken at one instant the
// scheduler picks first, nor whether they run at one time. Messages arrive in lane 0.
const (
	lanes         = 32
	mostInstances = 5
	readLanes     = 1                         // of who reads a connection for batches, by instance
	earLanes      = readLanes + mostInstances // of who reads one for subscriptions
	workerLanes   = earLanes + mostInstances  // of the worker of an instance
	keeperLane    = workerLanes + mostInstances
	callerLanes   = keeperLane + 1
	mostCallers   = 3
	watchLanes    = callerLanes + mostCallers // of who hears that a lock is lost, by caller and lock
	mostWatches   = 4                         // of a caller, then it begins anew
)

// keep waits for the next instant of a lane.
func (n *network) keep(lane time.Duration) {
	now := n.now()
	wait := (lane - now%lanes + lanes) % lanes
	if wait == 0 {
		wait = lanes
	}
	time.Sleep(wait)
}

// A link is what a client and an instance have between them.
type link struct {
	client, instance int
	dials            int
	taken            [2]map[time.Duration]bool // instants at which something arrives
}

// network carries the messages of a world, and has its lock.
type network struct {
	*Schedule
	dice  dice
	begin time.Time
	quiet bool // everything has healed

	mu      sync.Mutex
	links   [][]*link // of each client
	conns   []*conn
	servers []*server
	hits    map[Kind]int // how often each kind of fault has touched something
	events  []event      // that are to come, the next one last
	next    *time.Timer  // until then
	ended   chan struct{}
}

// An event is what happens at an instant.
type event struct {
	at  time.Duration
	run func()
}

// now returns how long the world has existed.
func (n *network) now() time.Duration { return time.Since(n.begin) }

// begins starts the goroutine in which everything happens. A goroutine for each event
// would spend more time on growing its stack than on the event.
func (n *network) begins() {
	n.next, n.ended = time.NewTimer(time.Hour), make(chan struct{})
	go func() {
		for {
			select {
			case <-n.next.C:
				n.happen()
			case <-n.ended:
				return
			}
		}
	}()
}

// ends ends that goroutine.
func (n *network) ends() { close(n.ended) }

// happen runs the events whose time has come.
func (n *network) happen() {
	n.mu.Lock()
	defer n.mu.Unlock()
	for len(n.events) > 0 {
		e := n.events[len(n.events)-1]
		if wait := e.at - n.now(); wait > 0 {
			n.next.Reset(wait)
			return
		}
		n.events[len(n.events)-1] = event{}
		n.events = n.events[:len(n.events)-1]
		e.run()
	}
}

// at has f run at t, under the lock, which is held now.
func (n *network) at(t time.Duration, f func()) {
	i, _ := slices.BinarySearchFunc(n.events, t, func(e event, t time.Duration) int { return cmp.Compare(t, e.at) })
	n.events = slices.Insert(n.events, i, event{t, f})
	if i == len(n.events)-1 {
		n.next.Reset(t - n.now())
	}
}

// instant returns the first instant at or after t that is the connection's, and not
// taken.
func (c *conn) instant(d direction, t time.Duration) time.Duration {
	l := c.link
	link := 2*(l.client*c.n.Instances+l.instance) + int(d)
	at := t - t%grid + time.Duration(link*conns+c.serial%conns)*slot
	for at < t || l.taken[d][at] {
		at += grid
	}
	if l.taken[d] == nil {
		l.taken[d] = map[time.Duration]bool{}
	}
	l.taken[d][at] = true
	return at
}

// A journey is what becomes of a message.
type journey struct {
	arrival time.Duration
	dead    bool          // nor anything behind it
	again   time.Duration // when a copy of it runs; zero: never
}

// travel returns when a message that is sent now arrives.
func (n *network) travel(c *conn, d direction, dice dice, now time.Duration) journey {
	l := c.link
	delay := dice.between(n.Delay/2, n.Delay*3/2)
	if !n.quiet && dice.of(aboutTail).chance(0.01) {
		delay *= 20
	}
	j := journey{arrival: now + delay}
	for i := range n.Faults {
		f := &n.Faults[i]
		if !f.hits(now, l.client, l.instance) {
			continue
		}
		luck := dice.of(aboutFault, uint64(i))
		switch {
		case f.Kind == SlowLink:
			j.arrival += luck.between(0, f.Amount)
		case f.Kind == Loss && luck.chance(0.3):
			j.arrival = max(j.arrival, now+luck.of(1).between(f.Amount/4, 2*f.Amount))
			switch p := luck.of(2).share(); {
			case p < 0.2:
				j.dead = true
			case p < 0.3:
				// So long that the client has given the connection up, and not so long that
				// it has cleaned up twice.
				j.arrival = now + luck.of(3).between(time.Second, 1900*time.Millisecond)
			}
		case f.Kind == CutRequests && d == up, f.Kind == CutReplies && d == down:
			j.arrival = max(j.arrival, f.To+delay)
			j.dead = luck.chance(0.3)
		case f.stands():
			j.arrival = max(j.arrival, f.To+delay)
		case f.Kind == Duplicate && d == up && luck.chance(0.5):
			j.again = luck.of(1).between(0, f.Amount)
		default:
			continue
		}
		n.hits[f.Kind]++
	}
	if j.again > 0 {
		j.again = c.instant(d, j.arrival+j.again)
	}
	return j
}

var errRefused = fmt.Errorf("connect: %w", syscall.ECONNREFUSED)

// open returns a connection that is not there yet: what is written to it arrives when
// it is, and if the instance refuses it, the reader hears of that.
//
// It is for subscriptions. The client dials for them with a mutex locked, for which its
// reader waits meanwhile; and while a goroutine waits for a mutex, virtual time stands
// still. For the same reason it answers the client's introduction itself.
func (n *network) open(client, instance int) net.Conn {
	n.mu.Lock()
	defer n.mu.Unlock()
	c := n.newConn(client, instance)
	c.introduced, c.lane = false, earLanes+time.Duration(instance)
	c.send(up, n.now(), func() {
		if !c.session.server.down {
			c.session.join()
		} else {
			c.hangUp()
		}
	}, func() {})
	return c
}

// newConn returns the next connection of a link, without a session.
func (n *network) newConn(client, instance int) *conn {
	l := n.links[client][instance]
	c := &conn{
		n: n, link: l, serial: l.dials, introduced: true, wake: make(chan struct{}, 1),
		lane: readLanes + time.Duration(instance), dice: n.dice.of(aboutDial, uint64(client), uint64(instance), uint64(l.dials)),
	}
	c.session = &session{server: n.servers[instance], conn: c, gone: true}
	l.dials++
	n.conns = append(n.conns, c)
	return c
}

// dial returns a connection of a client to an instance.
func (n *network) dial(ctx context.Context, client, instance int) (net.Conn, error) {
	n.mu.Lock()
	c := n.newConn(client, instance)
	s := n.servers[instance]
	j := n.travel(c, up, c.dice.of(0), n.now())
	there := c.instant(up, j.arrival)
	n.mu.Unlock()
	if j.dead {
		<-ctx.Done()
		return nil, os.ErrDeadlineExceeded
	}
	if err := sleep(ctx, there-n.now()); err != nil {
		return nil, err
	}

	n.mu.Lock()
	back := n.travel(c, down, c.dice.of(1), there)
	at := c.instant(down, back.arrival)
	refused := s.down
	if !refused {
		c.session.join()
		c.last[down] = at
	}
	n.mu.Unlock()
	if err := sleep(ctx, at-n.now()); err != nil {
		return nil, err
	}
	if refused {
		return nil, errRefused
	}
	return c, nil
}

func sleep(ctx context.Context, d time.Duration) error {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
		return nil
	case <-ctx.Done():
		return os.ErrDeadlineExceeded
	}
}

// A conn is the client's end of a connection. What was written before it is closed
// arrives all the same, as with TCP.
type conn struct {
	n       *network
	link    *link
	serial  int
	lane    time.Duration
	dice    dice
	session *session
	wake    chan struct{} // of one place: for the reader,
	timer   *time.Timer   // which has this, too

	// Guarded by network.mu.
	sent       [2]uint64
	last       [2]time.Duration // arrivals
	dead       [2]bool
	introduced bool // the instance hears what the client says of itself
	buffer     []byte
	fault      error // what the reader gets when the buffer is empty
	closed     bool
	deadline   time.Time
}

var errReset = &net.OpError{Op: "read", Net: "tcp", Err: syscall.ECONNRESET}

// Write sends a message.
func (c *conn) Write(p []byte) (int, error) {
	c.n.mu.Lock()
	defer c.n.mu.Unlock()
	size := len(p)
	switch {
	case c.closed:
		return 0, net.ErrClosed
	case c.fault != nil:
		return 0, c.fault
	}
	if !c.introduced {
		if p = c.introduce(p); len(p) == 0 {
			return size, nil
		}
	}
	sent := c.n.now()
	data := append([]byte(nil), p...)
	c.send(up, sent, func() { c.session.receive(data, sent, false) }, func() { c.session.receive(data, sent, true) })
	return size, nil
}

// introduce answers what the client says of itself, and returns the rest.
func (c *conn) introduce(p []byte) (rest []byte) {
	for {
		args, size := parseCommand(p)
		reply := introduction(args)
		if reply == nil {
			c.introduced = len(p) > 0
			return p
		}
		p = p[size:]
		c.buffer = append(c.buffer, reply...)
		c.signal()
	}
}

// send has f run when a message that is sent now arrives, and again when a copy of it
// does.
func (c *conn) send(d direction, now time.Duration, f, again func()) {
	if c.dead[d] {
		return
	}
	c.sent[d]++
	dice := c.dice.of(aboutMessage, uint64(d), c.sent[d])
	j := c.n.travel(c, d, dice, now)
	c.dead[d] = j.dead
	if j.dead {
		return
	}
	c.last[d] = c.instant(d, max(j.arrival, c.last[d]+1))
	c.n.at(c.last[d], f)
	if j.again > 0 {
		c.n.at(j.again, again)
	}
}

// reply sends p to the client.
func (c *conn) reply(p []byte) {
	c.send(down, c.n.now(), func() {
		c.buffer = append(c.buffer, p...)
		c.signal()
	}, nil)
}

// revive ends what a fault has done to the connection for good: it breaks, at both ends.
func (c *conn) revive() {
	if c.dead[up] || c.dead[down] {
		c.dead = [2]bool{}
		c.session.end()
		c.hangUp()
	}
}

// hangUp breaks the connection from the instance's side.
func (c *conn) hangUp() {
	c.send(down, c.n.now(), func() {
		c.fault = errReset
		c.signal()
	}, nil)
}

func (c *conn) signal() {
	select {
	case c.wake <- struct{}{}:
	default:
	}
}

// Read waits for a message, for an end of the connection, or for the deadline. That
// comes up to 20 us late, at each connection at another time: one round's deadlines
// at all instances would otherwise end at one instant.
func (c *conn) Read(p []byte) (int, error) {
	for {
		c.n.mu.Lock()
		switch {
		case c.closed:
			c.n.mu.Unlock()
			return 0, net.ErrClosed
		case len(c.buffer) > 0:
			size := copy(p, c.buffer)
			c.buffer = c.buffer[size:]
			c.n.mu.Unlock()
			return size, nil
		case c.fault != nil:
			defer c.n.mu.Unlock()
			return 0, c.fault
		}
		left := time.Hour
		if !c.deadline.IsZero() {
			left = time.Until(c.deadline)
			if left > 0 {
				left += c.dice.of(aboutDeadline, c.sent[up]).between(0, 20*time.Microsecond)
			}
		}
		c.n.mu.Unlock()
		if left <= 0 {
			return 0, os.ErrDeadlineExceeded
		}
		if c.timer == nil {
			c.timer = time.NewTimer(left)
		} else {
			c.timer.Reset(left)
		}
		select {
		case <-c.wake:
		case <-c.timer.C:
		}
		c.timer.Stop()
		c.n.keep(c.lane)
	}
}

// Close ends the connection. The instance hears of it after all that was sent before.
func (c *conn) Close() error {
	c.n.mu.Lock()
	defer c.n.mu.Unlock()
	if !c.closed {
		c.closed = true
		c.send(up, c.n.now(), c.session.close, func() {})
		c.signal()
	}
	return nil
}

func (c *conn) setDeadline(t time.Time) error {
	c.n.mu.Lock()
	defer c.n.mu.Unlock()
	c.deadline = t
	c.signal()
	return nil
}

// SetDeadline bounds reads; writes never wait.
func (c *conn) SetDeadline(t time.Time) error { return c.setDeadline(t) }

// SetReadDeadline bounds reads.
func (c *conn) SetReadDeadline(t time.Time) error { return c.setDeadline(t) }

// SetWriteDeadline has nothing to bound.
func (c *conn) SetWriteDeadline(time.Time) error { return nil }

// LocalAddr returns the client's address.
func (c *conn) LocalAddr() net.Addr { return address(c.link.client) }

// RemoteAddr returns the instance's.
func (c *conn) RemoteAddr() net.Addr { return address(c.link.instance) }

func address(i int) net.Addr { return &net.TCPAddr{IP: net.IPv4(127, 0, 0, 1), Port: i + 1} }
