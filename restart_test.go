package redlock

import (
	"context"
	"errors"
	"fmt"
	"net"
	"strconv"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/quorumlock/redlock/internal/redistest"
)

func TestAServersStartIsTheBeginningOfItsSecond(t *testing.T) {
	now := time.Now()
	for text, want := range map[string]serverInfo{
		"uptime_in_seconds:7\r\nrun_id:a\r\n":                                      {"a", now.Add(-7 * time.Second), true},
		"run_id:a\r\nuptime_in_seconds:7\r\nserver_time_usec:1700000000250000\r\n": {"a", now.Add(-7250 * time.Millisecond), true},
		"# Server\r\nuptime_in_seconds:0\r\nrun_id:a":                              {"a", now, true},
		"uptime_in_seconds:7\n":                                                    {"", now.Add(-7 * time.Second), true},
		// The server's clock was set back since its start.
		"uptime_in_seconds:-7\r\nrun_id:a\r\nserver_time_usec:250000\r\n": {"a", now, true},
		"uptime_in_seconds:7\r\nserver_time_usec:-250000\r\n":             {"", now.Add(-7 * time.Second), true},
		"uptime_in_seconds:2147483647\r\n":                                {"", now.Add(-(1<<31 - 1) * time.Second), true},
		// What is no uptime.
		"uptime_in_seconds:2147483648\r\nrun_id:a\r\n": {runID: "a"},
		"uptime_in_seconds:1e3\r\n":                    {},
		"uptime_in_seconds:\r\n":                       {},
		"uptime_in_seconds 7\r\n":                      {},
		"run_id:a\r\n":                                 {runID: "a"},
		"":                                             {},
		"\r\n:\r\n::7\r\n":                             {},
	} {
		require.Equal(t, want, newServerInfo(parseInfo(text), now), "%q", text)
	}
}

// What a new connection leads to, and from when on its memory counts. The times are
// seconds; a server's start is known to a second.
func TestWhenAMemoryBegins(t *testing.T) {
	const tells, silent = true, false
	origin := time.Now()
	at := func(seconds float64) time.Time { return origin.Add(time.Duration(seconds * float64(time.Second))) }
	info := func(id string, started float64, tells bool) serverInfo {
		if !tells {
			return serverInfo{runID: id}
		}
		return serverInfo{id, at(started), true}
	}
	known := memory{runID: "a", since: at(-1000), answered: at(100)}
	for name, c := range map[string]struct {
		before memory
		meets  serverInfo
		since  float64 // at 200 s; off: there is no quarantine
		runID  string
	}{
		"first contact":                       {memory{}, info("a", -50, tells), -50, "a"},
		"first contact, does not tell":        {memory{}, info("a", 0, silent), off, "a"},
		"first contact, tells nothing at all": {memory{}, info("", 0, silent), off, ""},
		"the same process":                    {known, info("a", -1000, tells), -1000, "a"},
		"the same, its clock was set back":    {known, info("a", 190, tells), -1000, "a"},
		"the same, its clock was set forward": {known, info("a", -90_000, tells), -1000, "a"},
		"the same, tells its uptime no more":  {known, info("a", 0, silent), -1000, "a"},
		"a restart":                           {known, info("b", 150, tells), 150, "b"},
		"a restart at the last answer":        {known, info("b", 99.5, tells), 99.5, "b"},
		"a failover to one that was up":       {known, info("b", 98.9, tells), 200, "b"},
		"a failover to one that is old":       {known, info("b", -5000, tells), 200, "b"},
		"another one that does not tell":      {known, info("b", 0, silent), 200, "b"},
		"it tells nothing any more":           {known, info("", 0, silent), -1000, "a"},
		"no run_id, up for as long":           {memory{since: at(-1000), answered: at(100)}, info("", -1000, tells), -1000, ""},
		"no run_id, its uptime has fallen":    {memory{since: at(-1000), answered: at(100)}, info("", 150, tells), 150, ""},
		// What it may have missed until a failover, a restart does not bring back.
		"a start before the last failover": {memory{runID: "b", since: at(120), answered: at(100)}, info("c", 110, tells), 120, "c"},
	} {
		m := c.before
		m.meet(c.meets, at(200))
		if c.since == off {
			require.True(t, m.since.IsZero(), name)
		} else {
			require.True(t, m.since.Equal(at(c.since)), "%s: since %v", name, m.since.Sub(origin))
		}
		require.Equal(t, c.runID, m.runID, name)
		require.Equal(t, at(200), m.answered, "an answer to INFO is one, too: %s", name)
	}

	m := known
	m.follows(at(150))
	require.Equal(t, at(150), m.since, "a replica, that may miss what comes")
	m = memory{}
	m.follows(at(150))
	require.True(t, m.since.IsZero(), "it does not tell")
}

const off = -1e9

func TestAQuarantineCountsOnTheMonotonicClock(t *testing.T) {
	now := time.Now()
	m := memory{since: now.Add(-3 * time.Second)}
	require.Equal(t, 7*time.Second, m.left(10*time.Second, now))
	require.Equal(t, -time.Second, m.left(2*time.Second, now))
	require.Zero(t, m.left(0, now), "it is off")
	require.Zero(t, (&memory{}).left(10*time.Second, now), "the server does not tell")
	// A start that is computed keeps the monotonic clock: an instant of the wall clock
	// alone would end a quarantine when the clock is set forward.
	require.NotEqual(t, m.since, m.since.Round(0))
	started := newServerInfo(map[string]string{"uptime_in_seconds": "7"}, now).started
	require.NotEqual(t, started, started.Round(0))
}

func TestTheQuarantineIsByTheLargestTTL(t *testing.T) {
	l := opened(t, []string{"127.0.0.1:1"})
	l.quarantined = quarantineByTTL
	require.Equal(t, 2*time.Second, l.quarantine(), "of nothing")
	for _, c := range []struct{ ttl, want time.Duration }{
		{5 * time.Second, 7 * time.Second},
		{time.Second, 7 * time.Second},
		{6 * time.Second, 8 * time.Second},
		{time.Hour, time.Hour + 2*time.Second},
		{24 * time.Hour, time.Hour + 2*time.Second},
	} {
		l.asksFor(c.ttl)
		require.Equal(t, c.want, l.quarantine())
	}
	l.quarantined = 3 * time.Second
	require.Equal(t, 3*time.Second, l.quarantine(), "as was asked for")
}

func TestNothingOfAnInstanceInQuarantineIsAVote(t *testing.T) {
	l := opened(t, []string{"127.0.0.1:1"}, WithQuarantine(10*time.Second))
	in := &instance{locker: l}
	now := time.Now()
	for _, o := range []op{opAcquire, opRaise, opExtend} {
		r := &round{op: o}
		for _, a := range []answer{
			{vote: granted, fence: 5},
			{vote: refused, fence: 6, lease: 60_000, err: errForeign},
			{vote: refused, lease: -1, err: errForeign},
			{vote: refused, lease: -1, err: errAbsent},
		} {
			in.memory = memory{since: now.Add(-4 * time.Second)}
			got := in.weigh(r, a, now)
			require.Equal(t, failed, got.vote)
			require.ErrorIs(t, got.err, ErrQuarantined)
			quarantine, ok := errors.AsType[*QuarantineError](got.err)
			require.True(t, ok)
			require.Equal(t, 6*time.Second, quarantine.Left)
			require.ErrorContains(t, got.err, "quarantined for 6s more")
			require.Equal(t, errors.Is(a.err, errAbsent), errors.Is(got.err, errAbsent), "it gets the key back")
			require.NotErrorIs(t, got.err, errForeign, "nothing it says is a loss")
			require.Equal(t, max(a.lease, 6001), got.lease, "when to ask again")
			require.Equal(t, a.fence, got.fence)

			in.memory.since = now.Add(-10 * time.Second)
			require.Equal(t, a, in.weigh(r, a, now), "it is over")
			in.unfit = errNoDials
			if a.vote == granted {
				require.Equal(t, answer{vote: failed, err: errNoDials}, in.weigh(r, a, now))
			} else {
				require.Equal(t, a, in.weigh(r, a, now))
			}
			in.unfit = nil
		}
	}
	in.memory = memory{since: now}
	for _, o := range []op{opRelease, opHeal} {
		a := answer{vote: granted}
		require.Equal(t, a, in.weigh(&round{op: o}, a, now))
	}
	a := answer{vote: failed, err: errThin}
	require.Equal(t, a, in.weigh(&round{op: opExtend}, a, now))
}

// The observer is told once, and once more when a larger ttl prolongs a quarantine
// after its end.
func TestAQuarantineIsToldOnce(t *testing.T) {
	observer, events := instanceEvents()
	l, err := Open([]string{"127.0.0.1:1"}, observer, WithQuarantine(10*time.Second))
	require.NoError(t, err)
	now := time.Now()
	in := &instance{locker: l, name: "a", memory: memory{since: now}}
	for _, after := range []time.Duration{0, time.Second, 10 * time.Second} {
		in.weigh(&round{op: opAcquire}, answer{vote: granted}, now.Add(after))
	}
	l.quarantined = 20 * time.Second
	in.weigh(&round{op: opAcquire}, answer{vote: granted}, now.Add(11*time.Second))
	require.NoError(t, l.Close())
	var left []string
	for len(events) > 0 {
		if e := <-events; e.Change == InstanceQuarantined {
			quarantine, ok := errors.AsType[*QuarantineError](e.Err)
			require.True(t, ok)
			left = append(left, e.Instance, quarantine.Left.String())
		}
	}
	require.Equal(t, []string{"a", "10s", "a", "9s"}, left)
}

// A replica that is promoted has missed what it has missed: whatever showed that it
// was one.
func TestAReplicasQuarantineBeginsWhenItLastSaidThatItIsOne(t *testing.T) {
	l := opened(t, []string{"127.0.0.1:1"}, WithQuarantine(10*time.Second))
	now := time.Now()
	for o := opAcquire; o <= opRelease; o++ {
		in := &instance{locker: l, memory: memory{since: now.Add(-time.Hour)}}
		readOnly := answer{vote: failed, err: serverError("READONLY You can't write against a read only replica.")}
		require.Equal(t, readOnly, in.weigh(&round{op: o}, readOnly, now), "its own cause is the better one")
		promoted := in.weigh(&round{op: opAcquire}, answer{vote: granted}, now.Add(9*time.Second))
		require.ErrorIs(t, promoted.err, ErrQuarantined, "after a %v", o)
		require.Equal(t, granted, in.weigh(&round{op: opAcquire}, answer{vote: granted}, now.Add(10*time.Second)).vote)
	}
}

// A connection counts when it is there: whoever is asked while a dial hangs says
// nothing of who will answer on it.
func TestAConnectionCountsWhenItIsThere(t *testing.T) {
	var d dialCount
	dial := d.DialHook(func(context.Context, string, string) (net.Conn, error) {
		require.Zero(t, d.n.Load())
		return noConn{}, nil
	})
	_, err := dial(t.Context(), "tcp", "")
	require.NoError(t, err)
	require.EqualValues(t, 1, d.n.Load())
}

// says is a client whose answer to INFO is another one.
type says struct {
	redis.UniversalClient
	info string
	err  error
}

func (c says) Info(ctx context.Context, sections ...string) *redis.StringCmd {
	cmd := redis.NewStringCmd(ctx, "info", sections)
	cmd.SetVal(c.info)
	cmd.SetErr(c.err)
	return cmd
}

// An answer to INFO that tells nothing turns the guard off, and the observer hears
// of it once; one that says nothing of the server is asked for again.
func TestWhatDoesNotTellIsNotGuarded(t *testing.T) {
	t.Parallel()
	s := redistest.Start(t)
	for name, c := range map[string]struct {
		info  string
		err   error
		votes bool
		cause string // of the event; none: it is guarded
	}{
		"the truth":          {"run_id:a\r\nuptime_in_seconds:100000\r\n", nil, true, ""},
		"just started":       {"run_id:a\r\nuptime_in_seconds:0\r\n", nil, false, ""},
		"a negative uptime":  {"run_id:a\r\nuptime_in_seconds:-100000\r\n", nil, false, ""},
		"no run_id":          {"uptime_in_seconds:0\r\n", nil, false, ""},
		"no uptime":          {"run_id:a\r\n", nil, true, "no uptime_in_seconds"},
		"a huge uptime":      {"run_id:a\r\nuptime_in_seconds:99999999999999999999\r\n", nil, true, "no uptime_in_seconds"},
		"nothing":            {"", nil, true, "no uptime_in_seconds"},
		"no such command":    {"", serverError("ERR unknown command 'INFO'"), true, "unknown command"},
		"no right":           {"", serverError("NOPERM this user has no permissions"), true, "NOPERM"},
		"a script that runs": {"", serverError("BUSY Redis is busy running a script."), false, ""},
		"a broken line":      {"", net.ErrClosed, false, ""},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			observer, events := instanceEvents()
			l, err := Open([]string{s.Addr()}, observer, WithQuarantine(time.Hour))
			require.NoError(t, err)
			l.instances[0].client = says{l.instances[0].client, c.info, c.err}
			for i := range 3 {
				k, err := l.TryAcquire(t.Context(), name+strconv.Itoa(i), time.Minute)
				if !c.votes {
					require.ErrorIs(t, err, ErrNoQuorum)
					continue
				}
				require.NoError(t, err)
				require.NoError(t, k.Release(t.Context()))
			}
			require.NoError(t, l.Close())
			var told []string
			for len(events) > 0 {
				if e := <-events; e.Change == QuarantineOff {
					told = append(told, fmt.Sprint(e.Err))
				}
			}
			if c.cause == "" {
				require.Empty(t, told)
				return
			}
			require.Len(t, told, 1)
			require.Contains(t, told[0], c.cause)
		})
	}
}

// The guard costs a connection one INFO, and an operation nothing.
func TestTheUptimeIsAskedOncePerConnection(t *testing.T) {
	t.Parallel()
	s := redistest.Start(t)
	p := redistest.NewProxy(t, s.Addr())
	s.MustDo(t, "CONFIG", "RESETSTAT")
	l, err := Open([]string{p.Addr()}, WithQuarantine(time.Millisecond))
	require.NoError(t, err)
	locks := func(n int) {
		for range n {
			k, err := l.TryAcquire(t.Context(), "r", time.Minute)
			require.NoError(t, err)
			require.NoError(t, k.Release(t.Context()))
		}
	}
	eventually(t, func() bool { // a server's first second is in the quarantine
		k, err := l.TryAcquire(t.Context(), "r", time.Minute)
		return err == nil && k.Release(t.Context()) == nil
	}, "the quarantine is over")
	locks(500)
	p.Break()
	eventually(t, func() bool {
		k, err := l.TryAcquire(t.Context(), "r", time.Minute)
		return err == nil && k.Release(t.Context()) == nil
	}, "it is connected again")
	locks(500)
	stats, _ := s.MustDo(t, "INFO", "commandstats").(string)
	require.Less(t, p.Accepted(), 10)
	require.Equal(t, p.Accepted(), calls(stats, "info"))
	require.NoError(t, l.Close())
}
