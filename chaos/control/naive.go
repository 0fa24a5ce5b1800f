package control

import (
	"bufio"
	"fmt"
	"net"
	"strconv"
	"strings"
	"time"
)

// A Client is one connection to a server, on which a story sends what a client that
// somebody else wrote would send, when that would, and reads the replies when it
// likes. Held replies are where they are in real life, in the buffers of a socket.
type Client struct {
	x    *Stage
	conn net.Conn
	in   *bufio.Reader
}

// Dial connects to a server.
func (x *Stage) Dial(addr string) *Client {
	conn, err := net.DialTimeout("tcp", addr, patience)
	x.must(err)
	x.Cleanup(func() { _ = conn.Close() })
	x.must(conn.SetDeadline(time.Now().Add(2 * patience)))
	return &Client{x, conn, bufio.NewReader(conn)}
}

// Send sends a command.
func (c *Client) Send(format string, args ...any) {
	_, err := fmt.Fprintf(c.conn, format+"\r\n", args...)
	c.x.must(err)
}

// Reply reads the next reply: a text, a number, or nothing.
func (c *Client) Reply() string {
	line, err := c.in.ReadString('\n')
	c.x.must(err)
	line = strings.TrimSpace(line)
	switch {
	case line == "$-1":
		return ""
	case line[0] == '-':
		c.x.Fatal(line)
	case line[0] == '$':
		line, err = c.in.ReadString('\n')
		c.x.must(err)
		return strings.TrimSpace(line)
	}
	return line[1:]
}

// Do sends a command and reads its reply.
func (c *Client) Do(format string, args ...any) string {
	c.Send(format, args...)
	return c.Reply()
}

// grant is SET NX PX and a fence that counts as that of the library, so that the
// tokens of both are in one order. It answers the token, 0 if it is refused.
const grant = `EVAL "` +
	`if not redis.call('SET', KEYS[1], ARGV[1], 'PX', ARGV[2], 'NX') then return 0 end ` +
	`local f = math.max(tonumber(redis.call('GET', KEYS[2]) or '0') + 1, tonumber(ARGV[3])) ` +
	`redis.call('SET', KEYS[2], string.format('%%.0f', f), 'PX', 600000) ` +
	`return f" 2 r {r}:fence %s %d %d`

// release deletes the key if it is the owner's.
const release = `EVAL "` +
	`if redis.call('GET', KEYS[1]) == ARGV[1] then return redis.call('DEL', KEYS[1]) end ` +
	`return 0" 1 r %s`

// Asker is somebody who is about to ask for a naive lock. Holders are in the order in
// which they ask.
func (x *Stage) Asker(owner string) *Holder {
	h := x.holder(0)
	h.owner = owner
	return h
}

// Ask sends a grant.
func (c *Client) Ask(h *Holder, ttl time.Duration) {
	c.Send(grant, h.owner, ttl.Milliseconds(), time.Now().UnixMicro())
}

// Await waits until a reply has come, and does not read it.
func (c *Client) Await() {
	_, err := c.in.Peek(1)
	c.x.must(err)
}

// Granted reads the reply to a grant: now h believes that it has the lock for ttl. The
// story ends where it is refused, and says nothing where that is the first one.
func (c *Client) Granted(h *Holder, ttl time.Duration) {
	h.granted(c.Reply(), ttl)
}

func (h *Holder) granted(token string, ttl time.Duration) {
	n, err := strconv.ParseUint(token, 10, 64)
	h.x.must(err)
	switch {
	case n > 0:
	case h.n > 1:
		h.x.Refuse(errRefused)
	default:
		h.x.Fatal(errRefused)
	}
	h.token, h.until = n, time.Now().Add(ttl)
}

// Lock asks for a grant, and reads its reply.
func (c *Client) Lock(owner string, ttl time.Duration) *Holder {
	h := c.x.Asker(owner)
	c.Ask(h, ttl)
	c.Granted(h, ttl)
	return h
}
