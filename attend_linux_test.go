package redlock

import (
	"io"
	"net"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/quorumlock/redlock/internal/redistest"
)

// attending sends a release of nothing to three instances until its caller is to read
// all answers itself, after ready was called, which undo undoes where that is not so.
func attending(t *testing.T, l *Locker, ready, undo func()) *round {
	t.Helper()
	var r *round
	eventually(t, func() bool {
		warmUp(t, l)
		ready()
		r = ofNobody(t, l)
		r.attended = true
		r.send(r.start)
		if r.inline == 1<<len(l.instances)-1 {
			return true
		}
		undo()
		require.NoError(t, r.wait(t.Context(), inTime, all))
		return false
	}, "the workers rest, and the caller sends and is to read")
	return r
}

// all is the goal of who waits for every answer.
func all(t tally) bool { return t.pending() == 0 }

// ofNobody returns a round that releases a lock which nobody has.
func ofNobody(t *testing.T, l *Locker) *round {
	t.Helper()
	r := l.newRound(t.Context(), opRelease, &Lock{locker: l, resource: "r", key: "r", owner: "nobody"})
	t.Cleanup(r.leave)
	r.start = l.now()
	return r
}

func (in *instance) turnNow() turn {
	in.mu.Lock()
	defer in.mu.Unlock()
	return in.turn
}

func (r *round) voteOf(i int) vote {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.votes[i]
}

// Three instances, of which the last one can be stopped.
func threeOfWhichOneStops(t *testing.T) (l *Locker, stop, resume func()) {
	t.Helper()
	servers := redistest.StartN(t, 3)
	l = opened(t, redistest.Addrs(servers), WithInstanceTimeout(inTime))
	stop = func() { require.NoError(t, servers[2].Pause()) }
	resume = func() { require.NoError(t, servers[2].Resume()) }
	return l, stop, resume
}

// A caller sends its operation to all that are near, and reads their answers: no worker
// is woken for it.
func TestACallerReadsTheAnswersOfAllThatAreNear(t *testing.T) {
	t.Parallel()
	l, _, _ := threeOfWhichOneStops(t)
	none := func() {}
	eventually(t, func() bool {
		r := attending(t, l, none, none)
		for _, in := range l.instances {
			require.Equal(t, callers, in.turnNow())
		}
		r.attend(settled)
		got := 0
		for i, in := range l.instances {
			if in.turnNow() == nobodys && r.voteOf(i) == refused {
				got++
			}
		}
		return got >= 2
	}, "two answers in time, and their turns passed on")
}

// An answer that the caller did not need is read by the next caller, before its own.
func TestTheNextCallerReadsWhatTheLastOneLeft(t *testing.T) {
	t.Parallel()
	l, stop, resume := threeOfWhichOneStops(t)
	in := l.instances[2]
	eventually(t, func() bool {
		first := attending(t, l, stop, resume)
		require.NoError(t, first.wait(t.Context(), inTime, explained))
		second := ofNobody(t, l)
		second.attended = true
		left := in.turnNow() == unread
		second.send(second.start)
		taken := left && second.inline>>2 == 1
		if taken {
			require.Equal(t, callers, in.turnNow())
			require.Equal(t, pending, first.voteOf(2))
		}
		resume()
		require.NoError(t, second.wait(t.Context(), inTime, all))
		require.NotEqual(t, pending, first.voteOf(2), "they are answered in the order in which they were sent")
		return taken
	}, "the second one comes before the worker takes it")
}

// Where no caller comes, the worker reads it soon.
func TestTheWorkerReadsWhatNoCallerCameFor(t *testing.T) {
	t.Parallel()
	l, stop, resume := threeOfWhichOneStops(t)
	in := l.instances[2]
	for _, how := range []string{"nobody comes", "one comes who does not read"} {
		eventually(t, func() bool {
			r := attending(t, l, stop, resume)
			require.NoError(t, r.wait(t.Context(), inTime, explained))
			left := in.turnNow() == unread
			var other *round
			if how != "nobody comes" {
				other = ofNobody(t, l)
				other.send(other.start)
			}
			resume()
			eventually(t, func() bool { return r.voteOf(2) == refused }, "it is read")
			if other != nil {
				require.NoError(t, other.wait(t.Context(), inTime, all))
			}
			return left
		}, how)
	}
}

// Who looks in vain is followed by some who do not look: twice as many each time.
func TestWhoLooksInVainIsFollowedByOthersThatDoNot(t *testing.T) {
	t.Parallel()
	near, far := net.Pipe()
	defer near.Close()
	defer far.Close()
	in := newInstance(&Locker{instances: make([]*instance, 3)}, 0, "a")
	in.wire = newWire(near)
	require.False(t, in.looks(), "it can't look")
	in.wire.looker, in.single, in.flights = &looker{}, true, make([]flight, 1)
	require.True(t, in.looks())
	for _, want := range []int{1, 3, 7, 15, 31, 63, 63} {
		in.turn = callers
		in.leave(&round{}, false)
		require.Equal(t, workers, in.turn)
		for range want {
			require.False(t, in.looks())
		}
		require.True(t, in.looks())
	}
	in.distance = time.Millisecond
	require.False(t, in.looks(), "it is far away")
	in.distance, in.single = 0, false
	require.False(t, in.looks(), "there are others")
}

// Only a socket is looked at: what is wrapped around one may read something else.
func TestOnlyASocketIsLookedAt(t *testing.T) {
	t.Parallel()
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	defer listener.Close()
	conn, err := net.Dial("tcp", listener.Addr().String())
	require.NoError(t, err)
	defer conn.Close()
	peer, err := listener.Accept()
	require.NoError(t, err)
	require.Nil(t, newLooker(struct{ *net.TCPConn }{conn.(*net.TCPConn)}))

	w := newWire(conn)
	some, err := w.look()
	require.NoError(t, err)
	require.False(t, some, "nothing has come")
	_, err = peer.Write([]byte("$1\r\n7\r\n"))
	require.NoError(t, err)
	eventually(t, func() bool { some, err = w.look(); return some || err != nil }, "it comes")
	require.NoError(t, err)
	answer, err := w.next()
	require.NoError(t, err)
	require.Equal(t, answerText{whole: true, number: 7}, answer)
	require.NoError(t, peer.Close())
	eventually(t, func() bool { some, err = w.look(); return err != nil }, "the end comes")
	require.ErrorIs(t, err, io.EOF)
	require.NoError(t, conn.Close())
	_, err = w.look()
	require.ErrorIs(t, err, net.ErrClosed)
}
