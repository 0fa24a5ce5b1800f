package redlock

import (
	"io"
	"net"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// socket returns the two ends of a connection.
func socket(t *testing.T) (conn, peer net.Conn) {
	t.Helper()
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	defer listener.Close()
	conn, err = net.Dial("tcp", listener.Addr().String())
	require.NoError(t, err)
	t.Cleanup(func() { _ = conn.Close() })
	peer, err = listener.Accept()
	require.NoError(t, err)
	t.Cleanup(func() { _ = peer.Close() })
	return conn, peer
}

// Who looks in vain is followed by others that do not look: by twice as many each time,
// until one finds something.
func TestWhoLooksInVainIsFollowedByOthersThatDoNot(t *testing.T) {
	t.Parallel()
	conn, peer := socket(t)
	in := newInstance(&Locker{}, 0, "a")
	in.wire, in.single = newWire(conn), true
	for _, want := range []int{1, 3, 7, 15, 31, 63, 63} {
		require.True(t, in.looks())
		require.False(t, in.look(in.wire, time.Now()))
		for range want {
			require.False(t, in.looks())
		}
	}
	_, err := peer.Write([]byte("$1\r\n7\r\n"))
	require.NoError(t, err)
	require.True(t, in.looks())
	require.True(t, in.look(in.wire, time.Now().Add(inTime)))
	answer, err := in.wire.next()
	require.NoError(t, err)
	require.Equal(t, answerText{whole: true, number: 7}, answer)
	require.True(t, in.looks())
	require.False(t, in.look(in.wire, time.Now()))
	require.False(t, in.looks())
	require.True(t, in.looks(), "it begins anew with one")

	in.distance = time.Millisecond
	require.False(t, in.looks(), "it is far away")
	in.distance, in.single = 0, false
	require.False(t, in.looks(), "there are others")
}

// Only a socket is looked at: what is wrapped around one may read something else.
func TestOnlyASocketIsLookedAt(t *testing.T) {
	t.Parallel()
	conn, peer := socket(t)
	require.Nil(t, newLooker(struct{ *net.TCPConn }{conn.(*net.TCPConn)}))
	w := newWire(conn)
	some, err := w.look()
	require.NoError(t, err)
	require.False(t, some, "nothing has come")
	require.NoError(t, peer.Close())
	eventually(t, func() bool { some, err = w.look(); return err != nil }, "the end comes")
	require.ErrorIs(t, err, io.EOF)
	require.False(t, some)
	require.NoError(t, conn.Close())
	_, err = w.look()
	require.ErrorIs(t, err, net.ErrClosed)
}
