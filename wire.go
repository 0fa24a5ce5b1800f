package redlock

import (
	"bytes"
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"net"
	"strconv"
	"sync"
	"time"
)

// maxReply bounds an instance's answer: that of a full batch is a tenth of it.
const maxReply = 4 << 20

// A wire is the connection on which the batches of an instance travel, if Open
// built its client. The client makes it and greets the server, with all that its
// settings ask for, and proves who that is; then it is taken over. What this
// gains: whoever queues an operation writes it, several batches may be out, and
// an answer wakes one goroutine, where a call of the client keeps one waiting for
// each batch, peeks at the socket, and wakes another to begin with.
//
// The order of batches is that of the bytes on it. One goroutine writes at a time,
// and one reads.
type wire struct {
	conn   net.Conn
	prompt bool   // writing a little never waits: the kernel takes it
	in     []byte // what has been read and not yet been taken
	buf    []byte
	wrote  time.Time // until when a write may take
	looker *looker   // nil: there is no looking without waiting
}

// newWire returns nil if the client has closed conn.
func newWire(conn net.Conn) *wire {
	if conn.SetDeadline(time.Time{}) != nil { // undoes what the client has set
		return nil
	}
	inner := carrier(conn)
	_, tcp := inner.(*net.TCPConn)
	_, unix := inner.(*net.UnixConn)
	return &wire{conn: conn, prompt: tcp || unix, looker: newLooker(conn), buf: make([]byte, 16<<10)}
}

// carrier returns the connection below TLS.
func carrier(conn net.Conn) net.Conn {
	if t, ok := conn.(*tls.Conn); ok {
		return t.NetConn()
	}
	return conn
}

// cut closes a connection at once. TLS would say farewell first, and wait up to five
// seconds for a peer that reads nothing.
func cut(conn net.Conn) { _ = carrier(conn).Close() }

// write writes one command, within limit or a little more: the deadline is moved
// once in a while, not each time.
func (w *wire) write(command []byte, now time.Time, limit time.Duration) error {
	if w.wrote.Sub(now) < limit {
		w.wrote = now.Add(limit + limit/2)
		if err := w.conn.SetWriteDeadline(w.wrote); err != nil {
			return err
		}
	}
	_, err := w.conn.Write(command)
	return err
}

// fill waits for more bytes.
func (w *wire) fill() error {
	room, err := w.room()
	if err != nil {
		return err
	}
	n, err := w.conn.Read(room)
	w.in = w.in[:len(w.in)+n]
	if n > 0 {
		return nil // an error comes again
	}
	return err
}

// look takes the bytes that have come, and reports whether there were any.
func (w *wire) look() (some bool, err error) {
	room, err := w.room()
	if err != nil {
		return false, err
	}
	n, err := w.looker.look(room)
	w.in = w.in[:len(w.in)+n]
	return n > 0, err
}

// room returns where to read to.
func (w *wire) room() ([]byte, error) {
	if len(w.in) == 0 {
		w.in = w.buf[:0]
	}
	if len(w.in) == cap(w.in) {
		size := 2*len(w.in) + len(w.buf)
		if size > maxReply {
			return nil, fmt.Errorf("%w: more than %d bytes", errNoReply, maxReply)
		}
		w.in = append(make([]byte, 0, size), w.in...)
	}
	return w.in[len(w.in):cap(w.in)], nil
}

var errNoReply = errors.New("not an answer of Redis to a script")

// An answerText is one answer of the script, or a refusal to run it.
type answerText struct {
	whole   bool   // all of it has been read
	number  uint64 // of the batch
	lines   string
	refusal error
}

// next takes one answer of what has been read. It fails if that is none.
func (w *wire) next() (answerText, error) {
	end := bytes.Index(w.in, crlf)
	switch {
	case len(w.in) == 0, end < 0 && (w.in[0] == '$' || w.in[0] == '-'):
		return answerText{}, nil
	case end > 0 && w.in[0] == '-':
		refusal := serverError(w.in[1:end])
		w.take(end + len(crlf))
		return answerText{whole: true, refusal: refusal}, nil
	case end > 0 && w.in[0] == '$':
		n, err := strconv.Atoi(string(w.in[1:end]))
		if err != nil || n < 0 || n > maxReply {
			break
		}
		begin := end + len(crlf)
		if len(w.in) < begin+n+len(crlf) {
			return answerText{}, nil
		}
		number, lines, err := cutNumber(string(w.in[begin : begin+n]))
		if err != nil {
			return answerText{}, err
		}
		w.take(begin + n + len(crlf))
		return answerText{true, number, lines, nil}, nil
	}
	return answerText{}, fmt.Errorf("%w: %.40q", errNoReply, w.in)
}

// call writes a command, the batch with that number, and waits for its answer until
// the deadline of a read.
func (w *wire) call(args []any, number uint64, limit time.Duration) (lines string, err error) {
	if err := w.write(appendCommand(nil, args), time.Now(), limit); err != nil {
		return "", err
	}
	for {
		reply, err := w.next()
		switch {
		case err != nil:
			return "", err
		case reply.refusal != nil, reply.whole && reply.number == number:
			return reply.lines, reply.refusal
		case reply.whole: // of an earlier one, a second time
			continue
		}
		if err := w.fill(); err != nil {
			return "", err
		}
	}
}

// take drops the first n bytes of what has been read.
func (w *wire) take(n int) {
	w.in = w.in[n:]
	if len(w.in) == 0 && cap(w.in) < cap(w.buf)/2 {
		w.in = nil
	}
}

var crlf = []byte("\r\n")

// appendCommand appends the form of a command on the wire: an array of bulk strings
// (https://redis.io/docs/latest/develop/reference/protocol-spec/).
func appendCommand(b []byte, args []any) []byte {
	b = append(b, '*')
	b = strconv.AppendInt(b, int64(len(args)), 10)
	b = append(b, crlf...)
	var digits [20]byte
	for _, a := range args {
		switch a := a.(type) {
		case *string:
			b = appendHead(b, len(*a))
			b = append(b, *a...)
		case string:
			b = appendHead(b, len(a))
			b = append(b, a...)
		case *int64:
			d := strconv.AppendInt(digits[:0], *a, 10)
			b = append(appendHead(b, len(d)), d...)
		case *uint64:
			d := strconv.AppendUint(digits[:0], *a, 10)
			b = append(appendHead(b, len(d)), d...)
		case *int:
			d := strconv.AppendInt(digits[:0], int64(*a), 10)
			b = append(appendHead(b, len(d)), d...)
		case int:
			d := strconv.AppendInt(digits[:0], int64(a), 10)
			b = append(appendHead(b, len(d)), d...)
		case *scriptArg:
			a.written++
			b = appendHead(b, len(a.text))
			b = append(b, a.text...)
		}
		b = append(b, crlf...)
	}
	return b
}

func appendHead(b []byte, n int) []byte {
	b = append(b, '$')
	if n < 10 {
		b = append(b, '0'+byte(n))
	} else {
		b = strconv.AppendInt(b, int64(n), 10)
	}
	return append(b, crlf...)
}

// A tap keeps hold of the connection that a client has dialed last.
type tap struct {
	dials dialCount

	mu     sync.Mutex
	conn   net.Conn
	used   bool
	closed bool
}

type dialer = func(ctx context.Context, network, addr string) (net.Conn, error)

// wrap returns dial with the tap in between.
func (t *tap) wrap(dial dialer) dialer {
	return func(ctx context.Context, network, addr string) (net.Conn, error) {
		defer t.dials.n.Add(1) // when it is there, see DialHook
		conn, err := dial(ctx, network, addr)
		t.mu.Lock()
		defer t.mu.Unlock()
		t.conn, t.used = nil, true
		if _, none := conn.(noConn); err != nil || none {
			return conn, err
		}
		if t.closed {
			_ = conn.Close()
			return noConn{&dialError{net.ErrClosed}}, nil
		}
		t.conn = conn
		return conn, nil
	}
}

// dialed reports whether there has been a connection.
func (t *tap) dialed() bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.used
}

// last returns the connection that was dialed last; nil if there is none.
func (t *tap) last() net.Conn {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.conn
}

// close closes the connection, and those that are dialed later: who reads from it
// comes back.
func (t *tap) close() {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.closed = true
	if t.conn != nil {
		cut(t.conn)
	}
}
