package redistest

import (
	"bufio"
	"fmt"
	"io"
	"net"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"
)

// childEnv makes the test binary the program of TestServerDiesWithItsParent.
const childEnv = "REDISTEST_CHILD"

func TestMain(m *testing.M) {
	if os.Getenv(childEnv) != "" {
		child()
		return
	}
	goleak.VerifyTestMain(m)
}

// child starts a server, says where, and waits to be killed.
func child() {
	s, err := Launch()
	if err != nil {
		fmt.Println(err)
		os.Exit(1)
	}
	fmt.Println(s.Addr())
	_, _ = io.Copy(io.Discard, os.Stdin)
}

const (
	patience = 5 * time.Second       // for what must happen
	silence  = 60 * time.Millisecond // for what must not
)

// peer is a raw connection of a test, to a server or through a proxy.
type peer struct {
	t    *testing.T
	conn *net.TCPConn
	in   *bufio.Reader
}

func connect(t *testing.T, addr string) *peer {
	t.Helper()
	conn, err := net.DialTimeout("tcp", addr, patience)
	require.NoError(t, err)
	t.Cleanup(func() { _ = conn.Close() })
	require.NoError(t, conn.SetDeadline(time.Now().Add(patience)))
	return &peer{t: t, conn: conn.(*net.TCPConn), in: bufio.NewReader(conn)}
}

// send sends an inline command, or a line to an echo server.
func (c *peer) send(line string) {
	c.t.Helper()
	_, err := io.WriteString(c.conn, line+"\r\n")
	require.NoError(c.t, err)
}

// reply requires that this is the next reply.
func (c *peer) reply(want any) {
	c.t.Helper()
	got, err := readReply(c.in)
	require.NoError(c.t, err)
	require.Equal(c.t, want, got)
}

// line requires that this is the next line.
func (c *peer) line(want string) {
	c.t.Helper()
	got, err := c.in.ReadString('\n')
	require.NoError(c.t, err)
	require.Equal(c.t, want, strings.TrimSpace(got))
}

// silent requires that nothing arrives for a while.
func (c *peer) silent() {
	c.t.Helper()
	require.NoError(c.t, c.conn.SetReadDeadline(time.Now().Add(silence)))
	_, err := c.in.Peek(1)
	require.ErrorIs(c.t, err, os.ErrDeadlineExceeded)
	require.NoError(c.t, c.conn.SetReadDeadline(time.Now().Add(patience)))
}

// ended requires that the other side ends the connection without another byte,
// and, if how is given, in this way.
func (c *peer) ended(how ...error) {
	c.t.Helper()
	n, err := c.in.Read(make([]byte, 1))
	require.Zero(c.t, n)
	require.Error(c.t, err)
	require.NotErrorIs(c.t, err, os.ErrDeadlineExceeded)
	for _, want := range how {
		require.ErrorIs(c.t, err, want)
	}
}

func eventually(t *testing.T, condition func() bool, message string) {
	t.Helper()
	require.Eventually(t, condition, patience, 2*time.Millisecond, message)
}
