package redlock

import (
	"io"
	"net"
	"syscall"
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

// Who looks for too long is followed by others that do not look, by more each time; who
// finds something in time by half as many as it was.
func TestWhoLooksForLongIsFollowedByOthersThatDoNot(t *testing.T) {
	t.Parallel()
	conn, peer := socket(t)
	in := newInstance(&Locker{}, 0, "a")
	in.wire, in.single = newWire(conn), true
	looked := func(until time.Time, some bool) {
		t.Helper()
		got, err := in.look(in.wire, until)
		require.NoError(t, err)
		require.Equal(t, some, got)
	}
	says := func(text string) {
		t.Helper()
		_, err := peer.Write([]byte(text))
		require.NoError(t, err)
	}
	for _, want := range []int{15, 75, 315, 1023, 1023} {
		require.True(t, in.looks())
		looked(time.Now(), false)
		for range want {
			require.False(t, in.looks())
		}
	}
	for want := 511; want > 0; want /= 2 {
		require.True(t, in.looks())
		says("x")
		looked(time.Now().Add(inTime), true)
		for range want {
			require.False(t, in.looks())
		}
	}
	require.True(t, in.looks())
	says("x")
	require.NoError(t, peer.Close())
	eventually(t, func() bool { some, _ := in.look(in.wire, time.Now().Add(-time.Millisecond)); return some }, "it is there, too late")
	require.GreaterOrEqual(t, in.blind, 15)
	in.blind = 0

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

// The error that a look takes from the socket is the only one there is: who read the
// socket after it would find its end.
func TestALookTellsWhatItMeets(t *testing.T) {
	t.Parallel()
	conn, peer := socket(t)
	in := newInstance(&Locker{}, 0, "a")
	in.wire = newWire(conn)
	require.NoError(t, peer.(*net.TCPConn).SetLinger(0))
	require.NoError(t, peer.Close())
	_, err := in.look(in.wire, time.Now().Add(inTime))
	require.ErrorIs(t, err, syscall.ECONNRESET)
	_, err = in.look(in.wire, time.Now().Add(inTime))
	require.ErrorIs(t, err, io.EOF)
}
