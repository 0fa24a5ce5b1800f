package redlock

import (
	"errors"
	"fmt"
	"net"
	"strings"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/quorumlock/redlock/internal/redistest"
)

// withClock gives a Locker a clock that is d ahead.
func withClock(d time.Duration) Option {
	return func(c *config) error {
		c.now = func() time.Time { return time.Now().Add(d) }
		return nil
	}
}

// instanceEvents returns an observer, and the changes that it is told of.
func instanceEvents() (Option, <-chan InstanceEvent) {
	events := make(chan InstanceEvent, 100)
	return WithObserver(Observer{Instance: func(e InstanceEvent) { events <- e }}), events
}

func TestAnInstanceWithAWrongClockDoesNotVote(t *testing.T) {
	endpoints := redistest.Addrs(redistest.StartN(t, 3))
	for _, ahead := range []time.Duration{-6 * time.Minute, 6 * time.Minute} {
		observer, events := instanceEvents()
		l, err := Open(endpoints, withClock(ahead), observer, WithQuarantine(0))
		require.NoError(t, err)
		_, err = l.TryAcquire(t.Context(), "r", time.Minute)
		require.ErrorIs(t, err, ErrNoQuorum)
		var clock *clockError
		require.ErrorAs(t, err, &clock)
		require.InDelta(t, -ahead.Seconds(), clock.offset.Seconds(), 1)
		require.Equal(t, ClockOff, (<-events).Change)
		require.NoError(t, l.Close())
	}

	// Within half of the retention, and without a fence to protect, it votes.
	for _, opts := range [][]Option{
		{withClock(4 * time.Minute)},
		{withClock(time.Hour), WithFenceRetention(3 * time.Hour)},
		{withClock(time.Hour), WithoutFencing()},
	} {
		l, err := Open(endpoints, fresh(opts)...)
		require.NoError(t, err)
		k, err := l.TryAcquire(t.Context(), "r", time.Minute)
		require.NoError(t, err)
		require.NoError(t, k.Release(t.Context()))
		require.NoError(t, l.Close())
	}
}

// The clock is asked once for a connection, whoever built the client and however
// many Lockers use it.
func TestTheClockIsAskedOncePerConnection(t *testing.T) {
	s := redistest.Start(t)
	c := redis.NewClient(&redis.Options{Addr: s.Addr(), PoolSize: 1})
	defer c.Close()
	asked := func() any {
		stats, _ := s.MustDo(t, "INFO", "commandstats").(string)
		return calls(stats, "time")
	}
	for n := range 2 {
		l, err := New([]Instance{{Client: c}}, WithQuarantine(0))
		require.NoError(t, err)
		for range 50 {
			k, err := l.TryAcquire(t.Context(), "r", time.Minute)
			require.NoError(t, err)
			require.NoError(t, k.Release(t.Context()))
		}
		require.NoError(t, l.Close())
		require.Equal(t, n+1, asked(), "once by each Locker")
	}
	require.Same(t, countDials(c), countDials(c))
}

// A user without the right to ask for the time locks all the same, and the
// observer is told.
func TestAClockThatMayNotBeAskedIsUnknown(t *testing.T) {
	s := redistest.Start(t)
	s.MustDo(t, "ACL", "SETUSER", "worker", "on", ">secret", "~*", "+set", "+get", "+del", "+pttl", "+pexpire", "+eval", "+evalsha")
	observer, events := instanceEvents()
	l, err := Open([]string{"redis://worker:secret@" + s.Addr()}, observer, WithQuarantine(0))
	require.NoError(t, err)
	defer l.Close()
	for range 3 {
		k, err := l.TryAcquire(t.Context(), "r", time.Minute)
		require.NoError(t, err)
		require.NoError(t, k.Release(t.Context()))
	}
	e := <-events
	require.Equal(t, ClockUnknown, e.Change)
	require.ErrorContains(t, e.Err, "NOPERM")
	require.Empty(t, events, "it is told once")
}

func TestTheClocksOffsetIsFromTheMiddleOfTheQuestion(t *testing.T) {
	before := time.Now()
	after := before.Add(100 * time.Millisecond)
	require.Equal(t, 3*time.Second, clockOffset(before.Round(0).Add(50*time.Millisecond+3*time.Second), before, after))
	const retention = 10 * time.Second
	require.NoError(t, checkClock(5*time.Second, 0, retention))
	require.NoError(t, checkClock(-5*time.Second, 0, retention))
	require.NoError(t, checkClock(5*time.Second+50*time.Millisecond, 100*time.Millisecond, retention), "an answer that took its time is uncertain")
	var clock *clockError
	require.True(t, errors.As(checkClock(5*time.Second+1, 0, retention), &clock))
	require.True(t, errors.As(checkClock(-5*time.Second-1, 0, retention), &clock))
}

// calls returns how often a server has run command, of its INFO commandstats.
func calls(stats, command string) int {
	var n int
	_, rest, _ := strings.Cut(stats, "cmdstat_"+command+":calls=")
	_, _ = fmt.Sscanf(rest, "%d", &n)
	return n
}

// Two names of one server are one vote, and the error says so.
func TestOneServerUnderTwoNamesVotesOnce(t *testing.T) {
	servers := redistest.StartN(t, 2)
	_, port, err := net.SplitHostPort(servers[0].Addr())
	require.NoError(t, err)
	observer, events := instanceEvents()
	l, err := Open([]string{servers[0].Addr(), "localhost:" + port, servers[1].Addr()}, observer, WithQuarantine(0))
	require.NoError(t, err)
	defer l.Close()
	k, err := l.TryAcquire(t.Context(), "r", time.Minute)
	require.NoError(t, err, "two servers are two of three")
	require.NoError(t, k.Release(t.Context()))
	select {
	case e := <-events:
		require.Equal(t, InstanceDuplicate, e.Change)
	case <-time.After(5 * time.Second):
		require.Fail(t, "no event")
	}

	require.NoError(t, servers[1].Kill())
	require.Eventually(t, func() bool { // when all connections are known
		_, err = l.TryAcquire(t.Context(), "r", time.Minute)
		return errors.Is(err, ErrNoQuorum)
	}, 5*time.Second, 10*time.Millisecond, "one server is no quorum")
	require.ErrorContains(t, err, "it is the same server as")
}
