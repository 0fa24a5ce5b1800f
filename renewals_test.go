package redlock_test

import (
	"bufio"
	"context"
	"fmt"
	"math/rand/v2"
	"net"
	"regexp"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/quorumlock/redlock"
	"github.com/quorumlock/redlock/internal/redistest"
)

// A monitor notes when scripts set the expiry of lock keys.
type monitor struct {
	server *redistest.Server
	ended  chan struct{}
	ran    map[string][]time.Time // by the server's clock, which is this machine's
}

// A line of MONITOR: the time, where it comes from, and the command.
var expirySet = regexp.MustCompile(`^\+(\d+)\.(\d{6}) \[0 lua\] "PEXPIRE" "(r\d+)"`)

const lastCommand = "that is all"

func watch(t *testing.T, s *redistest.Server) *monitor {
	t.Helper()
	conn, err := net.Dial("tcp", s.Addr())
	require.NoError(t, err)
	_, err = fmt.Fprint(conn, "MONITOR\r\n")
	require.NoError(t, err)
	lines := bufio.NewScanner(conn)
	lines.Buffer(nil, 1<<20) // the text of the script is in one line
	require.True(t, lines.Scan())
	require.Equal(t, "+OK", lines.Text())
	m := &monitor{server: s, ended: make(chan struct{}), ran: map[string][]time.Time{}}
	t.Cleanup(func() {
		_ = conn.Close()
		<-m.ended
	})
	go func() {
		defer close(m.ended)
		for lines.Scan() && !strings.Contains(lines.Text(), lastCommand) {
			if f := expirySet.FindStringSubmatch(lines.Text()); f != nil {
				seconds, _ := strconv.ParseInt(f[1], 10, 64)
				micros, _ := strconv.ParseInt(f[2], 10, 64)
				m.ran[f[3]] = append(m.ran[f[3]], time.Unix(seconds, micros*1000))
			}
		}
	}()
	return m
}

// renewals returns when the expiry of each key was set, until now.
func (m *monitor) renewals(t *testing.T) map[string][]time.Time {
	t.Helper()
	m.server.MustDo(t, "ECHO", lastCommand)
	<-m.ended
	return m.ran
}

// Renewals of an owner end with its Release: when that has returned, no server
// runs one any more. One server is a little slow, so that renewals are often on
// their way to it. Release waits for those for 10 ms; a server that takes longer
// runs what was sent before, and is reported.
func TestNoRenewalAfterReleaseHasReturned(t *testing.T) {
	t.Parallel()
	const longestWait = 10 * time.Millisecond
	shortest := paced(30*time.Millisecond, 120*time.Millisecond) // of those most would be lost
	servers := start(t, 3)
	slow := redistest.NewProxy(t, servers[2].Addr())
	slow.DelayRequests(2 * time.Millisecond)
	// Renewals that are given up soon are often two on their way.
	l := openAt(t, []string{servers[0].Addr(), servers[1].Addr(), slow.Addr()}, redlock.WithInstanceTimeout(20*time.Millisecond))
	var monitors []*monitor
	for _, s := range servers {
		monitors = append(monitors, watch(t, s))
	}

	var wg sync.WaitGroup
	var lost atomic.Int32
	type span struct{ called, returned time.Time }
	releases := make([]span, 2*losses(t))
	next := make(chan int)
	for range 20 {
		wg.Go(func() {
			for i := range next {
				ttl := shortest + rand.N(shortest)
				k, err := l.Acquire(t.Context(), fmt.Sprint("r", i), ttl)
				if err != nil {
					t.Errorf("acquire: %v", err)
					continue
				}
				ctx := k.KeepAlive(t.Context())
				select {
				case <-ctx.Done():
				case <-time.After(rand.N(2 * ttl)): // any point
				}
				called := time.Now()
				if k.Release(t.Context()) != nil {
					lost.Add(1)
					continue
				}
				releases[i] = span{called, time.Now()}
			}
		})
	}
	for i := range releases {
		next <- i
	}
	close(next)
	wg.Wait()
	requireNoOrphans(t, servers)

	renewals, silent := 0, 0
	for i, m := range monitors {
		for key, ran := range m.renewals(t) {
			n, err := strconv.Atoi(key[1:])
			require.NoError(t, err)
			r := releases[n]
			renewals += len(ran)
			for _, at := range ran {
				switch took := r.returned.Sub(r.called); {
				case r.returned.IsZero() || at.Before(r.returned):
				case took > longestWait:
					silent++
				default:
					t.Errorf("server %d renewed %s %v after Release had returned, which took %v", i, key, at.Sub(r.returned), took)
				}
			}
		}
	}
	t.Logf("%d releases, %d of locks that were lost; %d renewals, %d of them by a server that did not answer while Release waited for it", len(releases), lost.Load(), renewals, silent)
	require.Less(t, int(lost.Load()), len(releases))
	require.Greater(t, renewals, len(releases))
}

// One of nine servers' clocks was set back, and gives a key more time than it can
// have: its vote does not count in that round, and does in the next one. One that
// was set forward, or runs fast, cheats its own clients only. The observer hears of
// each of them, once.
func TestARenewalFindsClocksThatAreAstray(t *testing.T) {
	t.Parallel()
	const back, forward, fast, slow = 0, 1, 2, 3
	clocks, servers := startClocks(t, 4)
	endpoints := redistest.Addrs(append(servers, start(t, 5)...))

	rounds := make(chan redlock.RoundEvent, 100)
	events := make(chan redlock.InstanceEvent, 100)
	l := openAt(t, endpoints, redlock.WithObserver(redlock.Observer{
		Round: func(e redlock.RoundEvent) {
			if e.Op == "extend" {
				rounds <- e
			}
		},
		Instance: func(e redlock.InstanceEvent) { events <- e },
	}))
	k, err := l.TryAcquire(t.Context(), "r", 3*time.Second)
	require.NoError(t, err)
	ctx := k.KeepAlive(t.Context())
	for _, v := range (<-rounds).Votes {
		require.Equal(t, "granted", v.Vote, v.Err)
	}
	require.Empty(t, events)

	clocks[back].Jump(-8 * time.Second)
	clocks[forward].Jump(time.Second)
	clocks[fast].Rate(2)
	clocks[slow].Rate(0.5)
	for n := range 3 {
		e := <-rounds
		require.True(t, e.Won)
		for i, v := range e.Votes {
			if i == slow && n > 0 || i == back && n == 0 {
				require.Equal(t, "failed", v.Vote, "%s in round %d", v.Instance, n)
				require.ErrorContains(t, v.Err, "less than ours")
				continue
			}
			require.Equal(t, "granted", v.Vote, "%s in round %d: %v", v.Instance, n, v.Err)
		}
	}
	require.NoError(t, context.Cause(ctx))
	require.NoError(t, k.Release(t.Context()))

	heard := map[string]redlock.InstanceEvent{}
	for len(events) > 0 {
		e := <-events
		require.Equal(t, redlock.ClockAstray, e.Change)
		require.NotContains(t, heard, e.Instance, "a second time")
		heard[e.Instance] = e
	}
	require.Len(t, heard, len(clocks))
	for i, counted := range map[int]string{back: "less", slow: "less", forward: "more", fast: "more"} {
		require.ErrorContains(t, heard[endpoints[i]].Err, counted+" than ours")
	}
}

// A request that something on the way sends twice may be run by its copy first. The
// original then finds more time than the last renewal has left, and its vote counts.
func TestACopyThatRunsFirstIsNoClockAstray(t *testing.T) {
	t.Parallel()
	const ttl = 3 * time.Second
	server := start(t, 1)[0]
	line := redistest.NewProxy(t, server.Addr())
	events := make(chan redlock.InstanceEvent, 100)
	l := openAt(t, []string{line.Addr()}, redlock.WithObserver(redlock.Observer{
		Instance: func(e redlock.InstanceEvent) { events <- e },
	}))
	k, err := l.TryAcquire(t.Context(), "r", ttl)
	require.NoError(t, err)
	time.Sleep(200 * time.Millisecond) // the time is what is tried
	line.OnRequest(func([]byte) { _, _ = server.Do("PEXPIRE", "r", "3000") })
	require.NoError(t, k.Extend(t.Context(), ttl))
	line.OnRequest(nil)
	require.NoError(t, k.Release(t.Context()))
	require.NoError(t, l.Close())
	require.Empty(t, events)
}

// Servers that hang, and lines that are slow, lose replies, keep requests back or
// send them twice, make no clock look astray.
func TestNoFaultButAClockLooksLikeOne(t *testing.T) {
	t.Parallel()
	servers := start(t, 3)
	proxies, endpoints := redistest.NewProxies(t, servers)
	var renewals atomic.Int32
	alarms := make(chan redlock.InstanceEvent, 1000)
	l := openAt(t, endpoints, redlock.WithObserver(redlock.Observer{
		Round: func(e redlock.RoundEvent) {
			if e.Op == "extend" {
				renewals.Add(1)
			}
		},
		Instance: func(e redlock.InstanceEvent) {
			if e.Change == redlock.ClockAstray {
				alarms <- e
			}
		},
	}))

	ctx, cancel := context.WithCancel(t.Context())
	var wg sync.WaitGroup
	defer wg.Wait()
	defer cancel()
	for i := range 200 {
		wg.Go(func() {
			for ctx.Err() == nil {
				if k, err := l.Acquire(ctx, fmt.Sprint("r", i), anyTTL()); err == nil {
					<-k.KeepAlive(ctx).Done()
					_ = k.Release(context.WithoutCancel(ctx))
				}
			}
		})
	}
	faults := 0
	for ; int(renewals.Load()) < 10*losses(t); faults++ {
		i := rand.N(len(servers))
		s, p := servers[i], proxies[i]
		wait := func() { time.Sleep(rand.N(200 * time.Millisecond)) }
		switch rand.N(5) {
		case 0:
			require.NoError(t, s.Pause())
			wait()
			require.NoError(t, s.Resume())
		case 1:
			p.Delay(rand.N(20 * time.Millisecond))
			wait()
			p.Delay(0)
		case 2:
			p.SwallowReplies(true)
			wait()
			p.SwallowReplies(false)
			p.Break()
		case 3:
			p.HoldRequests(true)
			wait()
			p.HoldRequests(false)
		case 4:
			p.DuplicateRequests(true)
			wait()
			p.DuplicateRequests(false)
		}
	}
	late := 0
	for len(alarms) > 0 {
		e := <-alarms
		if excess := lessTime.FindStringSubmatch(fmt.Sprint(e.Err)); excess != nil {
			d, err := time.ParseDuration(excess[1])
			require.NoError(t, err)
			if d <= mostCopied {
				late++
				continue
			}
		}
		t.Errorf("%s: %v", e.Instance, e.Err)
	}
	t.Logf("%d renewals, %d faults; %d times a copy that ran later than its original gave a key a little more time", renewals.Load(), faults, late)
}

// A request that is sent twice may set an expiry for the second time after the answer.
const mostCopied = 50 * time.Millisecond

var lessTime = regexp.MustCompile(`at least (\S+) less than ours`)
