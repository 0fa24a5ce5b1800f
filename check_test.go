package redlock

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"os"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/quorumlock/redlock/internal/redistest"
)

// durable are the arguments of a server that forgets nothing.
var durable = []string{"--appendonly", "yes", "--appendfsync", "always"}

// judged checks l, with a guard against restarts, and returns what was found at
// its instances and about all of them: "check: severity", each once.
func judged(t *testing.T, l *Locker, guard time.Duration) (*Report, map[string]Severity) {
	t.Helper()
	r, err := l.check(t.Context(), guard)
	require.NotNil(t, r, "%v", err)
	require.Equal(t, r.Worst() == Unsafe, err != nil)
	if err != nil {
		var unsafe *UnsafeError
		require.ErrorAs(t, err, &unsafe)
		require.Same(t, r, unsafe.Report)
		require.NotContains(t, err.Error(), "\n")
		require.NotContains(t, err.Error(), "secret")
	}
	found := map[string]Severity{}
	for _, g := range other(r) {
		require.NotEmpty(t, g.Text)
		require.NotEmpty(t, g.Fix)
		found[g.Check] = max(found[g.Check], g.Severity)
		if g.Severity == Unsafe {
			require.ErrorContains(t, err, g.Check+": "+g.Text)
			for _, name := range g.instances {
				require.ErrorContains(t, err, name)
			}
		}
	}
	return r, found
}

// said returns what r says under a check, of all instances.
func said(r *Report, check string) string {
	var text strings.Builder
	for _, g := range r.groups() {
		if g.Check == check {
			fmt.Fprintln(&text, g.Text)
		}
	}
	return text.String()
}

// other returns the findings that do not depend on which server runs the tests.
func other(r *Report) []group {
	return slices.DeleteFunc(r.groups(), func(g group) bool { return g.Check == "version" && g.Severity == Info })
}

// mature is a guard that a server has outlived after a second.
const mature = time.Nanosecond

func TestAHealthySetHasNothingToFind(t *testing.T) {
	servers := redistest.StartN(t, 3, durable...)
	l := opened(t, redistest.Addrs(servers))
	var r *Report
	require.Eventually(t, func() bool { // when they have been up for the quarantine
		var err error
		r, err = l.Check(t.Context())
		require.NoError(t, err)
		return len(other(r)) == 0
	}, 10*time.Second, 50*time.Millisecond)
	require.Equal(t, Info, r.Worst())
	require.Equal(t, 2, r.Quorum)
	for i, in := range r.Instances {
		require.Equal(t, servers[i].Addr(), in.Instance)
		require.True(t, in.Grants)
		require.Equal(t, "master", in.Role)
		require.Len(t, in.RunID, 40)
		require.NotEmpty(t, in.Version)
		require.GreaterOrEqual(t, in.Uptime, time.Duration(0))
		require.Positive(t, in.Latency)
		require.Positive(t, in.ClockOffsetError)
		require.LessOrEqual(t, in.ClockOffset.Abs(), in.ClockOffsetError, "it is the same clock")
		require.Positive(t, in.ClockRateError)
		require.False(t, rateDiffers(in.ClockRate, in.ClockRateError, 0))
		require.Equal(t, in.Worst(), r.Worst())
	}
}

// A check is a trial on a key of its own, of which nothing is left.
func TestACheckDisturbsNobodyAndLeavesNothing(t *testing.T) {
	servers := redistest.StartN(t, 3)
	l := opened(t, redistest.Addrs(servers), WithKeyPrefix("lock:"))
	k, err := l.TryAcquire(t.Context(), "r", time.Minute)
	require.NoError(t, err)
	for range 2 {
		r, _ := judged(t, l, mature)
		for _, in := range r.Instances {
			require.True(t, in.Grants)
		}
	}
	for _, s := range servers {
		keys, _ := s.MustDo(t, "KEYS", "*").([]any)
		require.Len(t, keys, 4, "the lock, its fence, and the fences of two checks: %v", keys)
		for _, key := range keys {
			name, _ := key.(string)
			require.True(t, strings.HasPrefix(name, "lock:"))
			require.True(t, strings.Contains(name, ":fence") || name == "lock:r", "no lock is left: %v", name)
		}
	}
	for _, s := range servers {
		require.Eventually(t, func() bool { return s.MustDo(t, "DBSIZE") == int64(2) }, 10*time.Second, 10*time.Millisecond)
		require.Equal(t, k.Owner(), s.MustDo(t, "GET", "lock:r"))
		stats, _ := s.MustDo(t, "INFO", "commandstats").(string)
		require.NotContains(t, stats, "ping")
	}
	require.NoError(t, k.Extend(t.Context(), time.Minute))
	require.NoError(t, k.Release(t.Context()))
}

// What each setting of a server is called, and how bad it is.
func TestEveryFindingOfAServer(t *testing.T) {
	keep := func(args ...string) []string { return append(durable[:len(durable):len(durable)], args...) }
	for _, c := range []struct {
		name     string
		args     []string
		setup    func(t *testing.T, s *redistest.Server)
		opts     []Option
		user     string
		noGuard  bool
		check    string
		severity Severity
		text     string
		refuses  bool // it does not grant
	}{
		{name: "replica", args: keep("--replicaof", "127.0.0.1 1"), check: "replica", severity: Unsafe, text: "a replica of 127.0.0.1:1", refuses: true},
		{name: "writable replica", args: keep("--replicaof", "127.0.0.1 1", "--replica-read-only", "no"), check: "replica", severity: Unsafe, text: "a replica of 127.0.0.1:1"},
		{name: "too few replicas", args: keep("--min-replicas-to-write", "1"), check: "replicas", severity: Warning, text: "NOREPLICAS", refuses: true},
		{name: "replicas", args: keep(), setup: withReplica, check: "replicas", severity: Warning, text: "it has 1:"},
		{name: "cluster", args: keep("--cluster-enabled", "yes"), check: "cluster", severity: Unsafe, text: "CLUSTERDOWN", refuses: true},
		{name: "whole cluster, unseen", args: keep("--cluster-enabled", "yes"), setup: withHiddenCluster, user: "me:secret@", check: "cluster", severity: Warning, text: "of how many masters"},
		{name: "whole cluster", args: keep("--cluster-enabled", "yes"), setup: withAllSlots, check: "cluster", severity: Warning, text: "the only master"},
		{name: "eviction", args: keep("--maxmemory", "100mb", "--maxmemory-policy", "volatile-ttl"), check: "eviction", severity: Unsafe, text: "volatile-ttl"},
		{name: "eviction without a bound", args: keep("--maxmemory-policy", "allkeys-lru"), check: "eviction", severity: Warning, text: "allkeys-lru"},
		{name: "full", args: keep("--maxmemory", "1"), check: "memory", severity: Warning, text: "OOM", refuses: true},
		{name: "nearly full", args: keep(), setup: nearlyFull, check: "memory", severity: Warning, text: "bytes are used"},
		{name: "no persistence", check: "persistence", severity: Warning, text: "no append-only file"},
		{name: "no persistence, no guard", noGuard: true, check: "persistence", severity: Unsafe, text: "no append-only file"},
		{name: "everysec", args: []string{"--appendonly", "yes"}, check: "persistence", severity: Info, text: "everysec"},
		{name: "everysec, no guard", args: []string{"--appendonly", "yes"}, noGuard: true, check: "persistence", severity: Unsafe, text: "everysec"},
		{name: "no fsync on rewrite", args: keep("--no-appendfsync-on-rewrite", "yes"), check: "persistence", severity: Info, text: "while it rewrites"},
		{name: "disk", args: keep("--save", "1 1"), setup: brokenDisk, check: "persistence", severity: Warning, text: "MISCONF", refuses: true},
		{name: "no eval", args: keep("--rename-command", "EVAL", ""), check: "permissions", severity: Unsafe, text: "unknown command", refuses: true},
		{name: "no evalsha", args: keep("--rename-command", "EVALSHA", ""), check: "permissions", severity: Unsafe, text: "unknown command", refuses: true},
		{name: "no pexpire", args: keep("--rename-command", "PEXPIRE", ""), check: "permissions", severity: Unsafe, text: "extend: ", refuses: true},
		{name: "no pexpire, no fencing", args: keep("--rename-command", "PEXPIRE", ""), opts: []Option{WithoutFencing()}, check: "permissions", severity: Unsafe, text: "extend: ", refuses: true},
		{name: "no info", args: keep("--rename-command", "INFO", ""), check: "restart", severity: Unsafe, text: "does not tell when it started"},
		{name: "no config", args: keep("--rename-command", "CONFIG", ""), check: "unseen", severity: Info, text: "appendfsync"},
		{name: "no config, no guard", args: keep("--rename-command", "CONFIG", ""), noGuard: true, check: "unseen", severity: Warning, text: "appendfsync"},
		{name: "no info, no guard", args: keep("--rename-command", "INFO", ""), noGuard: true, check: "unseen", severity: Warning, text: "which server"},
		{name: "always, no guard", args: keep(), noGuard: true, check: "single", severity: Info, text: ""},
		{name: "no time", args: keep("--rename-command", "TIME", ""), check: "clock", severity: Warning, text: "does not tell its time"},
		{name: "no time, no fencing", args: keep("--rename-command", "TIME", ""), opts: []Option{WithoutFencing()}, check: "clock", severity: Info, text: "does not tell its time"},
		{name: "just started", args: keep(), noGuard: false, check: "restart", severity: Warning, text: "casts no vote until it has been up for 1h"},
		{name: "password", args: keep("--requirepass", "secret"), check: "authentication", severity: Unsafe, text: "NOAUTH", refuses: true},
		{name: "wrong password", args: keep("--requirepass", "secret"), user: ":secret2@", check: "authentication", severity: Unsafe, text: "WRONGPASS", refuses: true},
		{name: "no auth", args: keep("--rename-command", "AUTH", "", "--rename-command", "HELLO", ""), user: "me:secret@", check: "authentication", severity: Unsafe, text: "unknown command 'auth'", refuses: true},
		{name: "right password", args: keep("--requirepass", "secret"), user: ":secret@", check: "single", severity: Info},
		{name: "no user", args: keep(), user: "me:secret@", check: "authentication", severity: Unsafe, text: "WRONGPASS", refuses: true},
		{name: "busy", args: keep("--busy-reply-threshold", "1"), setup: busyScript, check: "busy", severity: Warning, text: "BUSY", refuses: true},
		{name: "no place", args: keep("--maxclients", "1"), setup: takePlace, check: "connection", severity: Warning, refuses: true},
		{name: "few places", args: keep("--maxclients", "2"), setup: takePlace, check: "connection", severity: Warning, text: "2 of its 2 places"},
		{name: "hung", args: keep(), setup: func(t *testing.T, s *redistest.Server) { require.NoError(t, s.Pause()) }, check: "connection", severity: Warning, text: "does not answer", refuses: true},
		{name: "down", args: keep(), setup: func(t *testing.T, s *redistest.Server) { require.NoError(t, s.Kill()) }, check: "connection", severity: Warning, text: "connection refused", refuses: true},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			s := redistest.Start(t, c.args...)
			if c.setup != nil {
				c.setup(t, s)
			}
			guard := mature
			switch {
			case c.noGuard:
				guard = 0
			case c.name == "just started":
				guard = time.Hour
			default:
			}
			l := opened(t, []string{"redis://" + c.user + s.Addr()}, c.opts...)
			r, found := judged(t, l, guard)
			require.Equal(t, c.severity, found[c.check], "%v", r)
			require.Contains(t, found, c.check, "%v", r)
			require.Contains(t, said(r, c.check), c.text)
			require.Equal(t, !c.refuses, r.Instances[0].Grants)
			if c.refuses {
				require.Equal(t, Unsafe, found["quorum"])
			}
			delete(found, c.check)
			delete(found, "quorum")
			delete(found, "restart") // it has just started, or has no INFO
			delete(found, "single")
			delete(found, "latency") // of a busy machine
			require.Empty(t, found, "nothing else is the matter: %v", r)
			text, err := json.Marshal(r)
			require.NoError(t, err)
			require.NotContains(t, string(text)+r.String(), "secret")
		})
	}
}

// withReplica gives s a replica.
func withReplica(t *testing.T, s *redistest.Server) {
	host, port, err := net.SplitHostPort(s.Addr())
	require.NoError(t, err)
	redistest.Start(t, "--replicaof", host+" "+port)
	eventually(t, func() bool {
		text, _ := s.MustDo(t, "INFO", "replication").(string)
		return strings.Contains(text, "connected_slaves:1")
	}, "the replica is connected")
}

// withAllSlots makes s a cluster of one.
func withAllSlots(t *testing.T, s *redistest.Server) {
	s.MustDo(t, "CLUSTER", "ADDSLOTSRANGE", "0", "16383")
	eventually(t, func() bool {
		text, _ := s.MustDo(t, "CLUSTER", "INFO").(string)
		return strings.Contains(text, "cluster_state:ok")
	}, "the cluster is up")
}

// withHiddenCluster is withAllSlots for a user who may not ask about it.
func withHiddenCluster(t *testing.T, s *redistest.Server) {
	withAllSlots(t, s)
	s.MustDo(t, "ACL", "SETUSER", "me", "on", ">secret", "~*", "+@all", "-cluster")
}

// Whether it has the key that is tried or not, a node of a cluster is no master of
// its own.
func TestNodesOfOneClusterAreNoMasters(t *testing.T) {
	servers := redistest.StartN(t, 2, append(durable, "--cluster-enabled", "yes")...)
	host, port, err := net.SplitHostPort(servers[1].Addr())
	require.NoError(t, err)
	servers[0].MustDo(t, "CLUSTER", "ADDSLOTSRANGE", "0", "8191")
	servers[1].MustDo(t, "CLUSTER", "ADDSLOTSRANGE", "8192", "16383")
	servers[0].MustDo(t, "CLUSTER", "MEET", host, port)
	for _, s := range servers {
		eventually(t, func() bool {
			text, _ := s.MustDo(t, "CLUSTER", "INFO").(string)
			return strings.Contains(text, "cluster_state:ok") && strings.Contains(text, "cluster_size:2")
		}, "the cluster is up")
	}
	r, _ := judged(t, opened(t, redistest.Addrs(servers)), mature)
	for _, in := range r.Instances {
		require.Equal(t, 1, len(slices.DeleteFunc(in.Findings, func(f Finding) bool { return f.Check != "cluster" || f.Severity != Unsafe })), "%v", r)
	}
}

// nearlyFull bounds the memory of s a little above what it uses.
func nearlyFull(t *testing.T, s *redistest.Server) {
	s.MustDo(t, "EVAL", "for i = 1, 50 do redis.call('SET', 'ballast' .. i, string.rep('x', 100000)) end", "0")
	text, _ := s.MustDo(t, "INFO", "memory").(string)
	used, err := strconv.Atoi(parseInfo(text)["used_memory"])
	require.NoError(t, err)
	s.MustDo(t, "CONFIG", "SET", "maxmemory", strconv.Itoa(used+used/20))
}

// brokenDisk lets a snapshot of s fail.
func brokenDisk(t *testing.T, s *redistest.Server) {
	require.NoError(t, os.RemoveAll(s.Dir()))
	s.MustDo(t, "SET", "k", "v")
	s.MustDo(t, "DEL", "k")
	s.MustDo(t, "BGSAVE")
	eventually(t, func() bool {
		text, _ := s.MustDo(t, "INFO", "persistence").(string)
		return strings.Contains(text, "rdb_last_bgsave_status:err")
	}, "the snapshot has failed")
}

// busyScript keeps s busy until the test ends.
func busyScript(t *testing.T, s *redistest.Server) {
	done := make(chan struct{})
	go func() {
		defer close(done)
		_, _ = s.Do("EVAL", "while true do end", "0")
	}()
	t.Cleanup(func() {
		eventually(t, func() bool { _, err := s.Do("SCRIPT", "KILL"); return err == nil }, "the script ends")
		<-done
	})
	eventually(t, func() bool { _, err := s.Do("PING"); return err != nil }, "the script runs")
}

// takePlace takes one of the connections that s has to give.
func takePlace(t *testing.T, s *redistest.Server) {
	conn, err := net.Dial("tcp", s.Addr())
	require.NoError(t, err)
	t.Cleanup(func() { _ = conn.Close() })
	_, err = conn.Write([]byte("PING\r\n"))
	require.NoError(t, err)
	_, err = conn.Read(make([]byte, 16))
	require.NoError(t, err)
}

// The rights that the README names are enough, and each of them is needed.
func TestTheCheckKnowsTheRightsThatLockingTakes(t *testing.T) {
	s := redistest.Start(t, durable...)
	needed := []string{"+set", "+get", "+del", "+pttl", "+pexpire", "+eval", "+evalsha"}
	login := func(rights []string) *Locker {
		s.MustDo(t, append([]string{"ACL", "SETUSER", "me", "reset", "on", ">secret", "~lock:*"}, rights...)...)
		s.MustDo(t, "SCRIPT", "FLUSH")
		return opened(t, []string{"redis://me:secret@" + s.Addr()}, WithKeyPrefix("lock:"))
	}
	r, found := judged(t, login(append(needed, "+info", "+time")), mature)
	require.True(t, r.Instances[0].Grants)
	delete(found, "restart") // it has just started
	require.Equal(t, map[string]Severity{"single": Info, "unseen": Info}, found, "%v", r)

	r, found = judged(t, login(needed), mature)
	require.True(t, r.Instances[0].Grants)
	require.Equal(t, map[string]Severity{"single": Info, "restart": Unsafe, "clock": Warning}, found, "%v", r)

	for i := range needed {
		var rights []string
		rights = append(append(rights, needed[:i]...), needed[i+1:]...)
		r, found := judged(t, login(rights), mature)
		require.Equal(t, Unsafe, found["permissions"], "without %s: %v", needed[i], r)
	}

	s.MustDo(t, append([]string{"ACL", "SETUSER", "me", "reset", "on", ">secret", "~other:*"}, needed...)...)
	r, found = judged(t, opened(t, []string{"redis://me:secret@" + s.Addr()}, WithKeyPrefix("lock:")), mature)
	require.Equal(t, Unsafe, found["permissions"], "%v", r)
	require.Contains(t, r.String(), "~lock:*")
}

func TestTheSetIsJudged(t *testing.T) {
	servers := redistest.StartN(t, 2, durable...)
	_, port, err := net.SplitHostPort(servers[0].Addr())
	require.NoError(t, err)
	twice := opened(t, []string{servers[0].Addr(), servers[1].Addr(), "localhost:" + port})
	r, found := judged(t, twice, mature)
	require.Equal(t, Unsafe, found["duplicate"])
	require.Contains(t, said(r, "duplicate"), servers[0].Addr()+" and localhost:"+port+" are one server")
	require.NotContains(t, found, "even")
	require.NotContains(t, found, "quorum", "two servers are two of three")

	r, found = judged(t, opened(t, redistest.Addrs(servers)), mature)
	require.Equal(t, Warning, found["even"])
	require.Contains(t, said(r, "even"), "2 instances tolerate the loss of 0, no more than 1 do")

	require.NoError(t, servers[1].Kill())
	_, found = judged(t, twice, mature)
	require.Equal(t, Unsafe, found["quorum"], "one server, however often, is none of two")
}

// Of a clock the offset is seen, and whether it runs, but no more than the round
// trips allow.
func TestClocksAreCompared(t *testing.T) {
	c := redistest.StartWithClock(t, durable...)
	l := opened(t, []string{c.Addr()})
	bare := opened(t, []string{c.Addr()}, WithoutFencing())
	clock := func(l *Locker) (InstanceReport, Severity, bool) {
		r, found := judged(t, l, mature)
		s, ok := found["clock"]
		return r.Instances[0], s, ok
	}
	_, _, ok := clock(l)
	require.False(t, ok)

	c.Jump(2 * time.Second)
	in, s, ok := clock(l)
	require.True(t, ok)
	require.Equal(t, Warning, s)
	require.InDelta(t, 2, in.ClockOffset.Seconds(), in.ClockOffsetError.Seconds())

	c.Jump(6 * time.Minute)
	_, s, _ = clock(l)
	require.Equal(t, Unsafe, s)
	_, s, _ = clock(bare)
	require.Equal(t, Warning, s, "no fence rests on it")

	c.Jump(-6*time.Minute - 2*time.Second)
	for _, rate := range []float64{2, 0.5, 0} {
		c.Rate(rate)
		in, s, ok := clock(bare)
		require.True(t, ok, "%v", rate)
		require.Equal(t, Unsafe, s)
		require.InDelta(t, rate, in.ClockRate, in.ClockRateError+0.01)
	}
}

func TestARateIsWhatTheRoundTripsAllow(t *testing.T) {
	start := time.Now()
	at := func(ours, server, trip time.Duration) clockSample {
		return clockSample{server: start.Add(server), before: start.Add(ours), after: start.Add(ours + trip)}
	}
	const ms = time.Millisecond
	rate, most := at(0, 5*ms, 10*ms).rateUntil(at(1000*ms, 2005*ms, 10*ms))
	require.InDelta(t, 2, rate, 1e-9)
	require.InDelta(t, 0.01, most, 1e-9)
	require.True(t, rateDiffers(1.04, 0.02, 0.01))
	require.True(t, rateDiffers(0.96, 0.02, 0.01))
	require.False(t, rateDiffers(1.02, 0.02, 0.01))
	require.False(t, rateDiffers(0.98, 0.02, 0.01))
}

func TestLatencyIsComparedWithTheInstanceTimeout(t *testing.T) {
	p := redistest.NewProxy(t, redistest.Start(t, durable...).Addr())
	l := opened(t, []string{p.Addr()}, func(c *config) error { c.instanceTimeout = 0; return nil }) // as it is by default
	_, found := judged(t, l, mature)
	require.NotContains(t, found, "latency")
	p.DelayReplies(50 * time.Millisecond)
	r, found := judged(t, l, mature)
	require.Equal(t, Info, found["latency"])
	require.Contains(t, said(r, "latency"), "too long for locks with a ttl below 1")
	require.GreaterOrEqual(t, r.Instances[0].Latency, 50*time.Millisecond)
	_, found = judged(t, opened(t, []string{p.Addr()}, WithInstanceTimeout(150*time.Millisecond)), mature)
	require.Equal(t, Warning, found["latency"])
}

// What an instance is, not what its settings are: the time limits of a client that
// is brought do not matter, its kind does.
func TestEveryFindingOfAClient(t *testing.T) {
	s := redistest.Start(t, durable...)
	for _, c := range []struct {
		name     string
		client   redis.UniversalClient
		check    string
		severity Severity
		text     string
	}{
		{"defaults", redis.NewClient(&redis.Options{Addr: s.Addr()}), "client", Info, "up to 3 times"},
		{"no limits", redis.NewClient(&redis.Options{Addr: s.Addr(), MaxRetries: -1, ReadTimeout: -1, WriteTimeout: -1}), "single", Info, ""},
		{"ring", redis.NewRing(&redis.RingOptions{Addrs: map[string]string{"a": s.Addr()}}), "restart", Unsafe, "a *redis.Ring, does not tell"},
	} {
		t.Run(c.name, func(t *testing.T) {
			r, found := judged(t, brought(t, c.client), mature)
			require.Contains(t, found, c.check, "%v", r)
			require.Equal(t, c.severity, found[c.check], "%v", r)
			require.Contains(t, said(r, c.check), c.text)
		})
	}

	failover := redis.NewFailoverClient(&redis.FailoverOptions{MasterName: "m", SentinelAddrs: []string{"localhost:1"}, MaxRetries: -1})
	defer failover.Close()
	var fs findings
	fs.client(&instance{other: failover, locker: &Locker{}})
	require.Len(t, fs, 1)
	require.Equal(t, "sentinel", fs[0].Check)
	require.Equal(t, Warning, fs[0].Severity)
}

func TestACheckOfAClusterClientSaysWhatItCantKnow(t *testing.T) {
	s := redistest.Start(t, "--cluster-enabled", "yes")
	withAllSlots(t, s)
	c := redis.NewClusterClient(&redis.ClusterOptions{Addrs: []string{s.Addr()}})
	r, found := judged(t, brought(t, c), mature)
	require.True(t, r.Instances[0].Grants)
	require.Equal(t, Unsafe, found["restart"])
	require.Contains(t, said(r, "restart"), "*redis.ClusterClient")
	require.Zero(t, r.Instances[0].ClockRateError, "each answer may be another node's")
}

// A pool that was too small for its callers has counted them.
func TestAPoolThatWasTooSmallIsFound(t *testing.T) {
	s := redistest.Start(t, durable...)
	c := redis.NewClient(&redis.Options{Addr: s.Addr(), PoolSize: 1, PoolTimeout: time.Millisecond, MaxRetries: -1})
	conn := c.Conn()
	require.NoError(t, conn.Ping(t.Context()).Err())
	require.Error(t, c.Ping(t.Context()).Err(), "the only connection is in use")
	require.NoError(t, conn.Close())
	r, found := judged(t, brought(t, c), mature)
	require.Equal(t, Warning, found["client"], "%v", r)
	require.Contains(t, said(r, "client"), "1 connections, 1 times")
}

func TestVersionsAreJudged(t *testing.T) {
	for _, c := range []struct {
		info     string
		severity Severity
		text     string
	}{
		{"redis_version:7.0.15", 0, ""},
		{"redis_version:5.0.14", Unsafe, "version 5.0.14 does not know"},
		{"redis_version:6.0.0", Info, "version 6.0.0 is not among"},
		{"redis_version:7.2.4", Info, "version 7.2.4 is not among"},
		{"redis_version:10.0.0", Info, "version 10.0.0 is not among"},
		{"server_name:valkey\r\nredis_version:7.0.4\r\nvalkey_version:7.0.4", Info, "version valkey 7.0.4 is not among"},
		{"redis_version:seven", Info, "does not tell a version"},
		{"", Info, "does not tell a version"},
	} {
		var fs findings
		fs.version(&facts{info: parseInfo(c.info)})
		if c.text == "" {
			require.Empty(t, fs)
			continue
		}
		require.Len(t, fs, 1, c.info)
		require.Equal(t, c.severity, fs[0].Severity, c.info)
		require.Contains(t, fs[0].Text, c.text)
	}
}

// A stuckClient ignores its context, a panickyClient has never seen such a reply.
type stuckClient struct {
	redis.UniversalClient
	release chan struct{}
}

func (c *stuckClient) Process(context.Context, redis.Cmder) error { <-c.release; return nil }

func (c *stuckClient) Info(ctx context.Context, _ ...string) *redis.StringCmd {
	<-c.release
	return redis.NewStringResult("", errors.New("released"))
}

func (c *stuckClient) Close() error { return nil }

type panickyClient struct{ redis.UniversalClient }

func (panickyClient) Process(context.Context, redis.Cmder) error { panic("what is this?") }

func (panickyClient) Info(context.Context, ...string) *redis.StringCmd { panic("what is this?") }

func (panickyClient) Close() error { return nil }

func TestAClientThatIgnoresItsContextHoldsUpNobody(t *testing.T) {
	c := &stuckClient{release: make(chan struct{})}
	l := brought(t, c)
	defer close(c.release) // before the Locker is closed
	start := time.Now()
	r, found := judged(t, l, mature)
	require.Less(t, time.Since(start), 3*time.Second)
	require.Equal(t, Warning, found["connection"], "%v", r)
	require.Contains(t, said(r, "connection"), "no answer within 1s")
}

func TestAClientThatPanicsIsAFinding(t *testing.T) {
	r, found := judged(t, brought(t, panickyClient{}), mature)
	require.Equal(t, Warning, found["connection"])
	require.Contains(t, said(r, "connection"), "the client panicked: what is this?")
}

// However hung the instances are, a Check returns when its context ends, and tells
// what it saw until then.
func TestACheckEndsWithItsContext(t *testing.T) {
	servers := redistest.StartN(t, 4, durable...)
	for _, s := range servers[1:] {
		require.NoError(t, s.Pause())
	}
	var instances []Instance
	for i, s := range servers {
		o := &redis.Options{Addr: s.Addr(), ReadTimeout: -1, WriteTimeout: -1, Protocol: 2}
		var c redis.UniversalClient = redis.NewClient(o)
		if i == 3 {
			o := &redis.RingOptions{Addrs: map[string]string{"a": s.Addr()}, ReadTimeout: -1, Protocol: 2}
			c = redis.NewRing(o)
		}
		defer c.Close()
		instances = append(instances, Instance{Client: c, Name: s.Addr()})
	}
	mine, err := New(instances)
	require.NoError(t, err)
	for _, l := range []*Locker{opened(t, redistest.Addrs(servers)), mine} {
		ctx, cancel := context.WithCancelCause(t.Context())
		ended := make(chan time.Time, 1)
		time.AfterFunc(600*time.Millisecond, func() {
			ended <- time.Now()
			cancel(errors.New("I have seen enough"))
		})
		r, err := l.Check(ctx)
		require.Less(t, time.Since(<-ended), 100*time.Millisecond)
		require.ErrorIs(t, err, context.Canceled)
		require.ErrorContains(t, err, "redlock: check: context canceled (I have seen enough)")
		var unsafe *UnsafeError
		require.Equal(t, l == mine, errors.As(err, &unsafe), "a Ring is unsafe, and no quorum is not known yet: %v", r)
		require.Contains(t, said(r, "quorum"), "1 of 4 instances grant locks, as far as was seen")
		require.True(t, r.Instances[0].Grants, "%v", r)
		require.Contains(t, said(r, "connection"), "no answer yet")
	}
	for _, s := range servers[1:] {
		require.NoError(t, s.Resume())
	}
	require.NoError(t, mine.Close())
	// What was under way to the stopped servers arrives now, and does no harm.
	for _, s := range servers {
		eventually(t, func() bool { return s.MustDo(t, "DBSIZE") == int64(0) }, "nothing is left")
	}
}

// Close does not wait for a Check, nor for what it asks.
func TestCloseEndsACheck(t *testing.T) {
	s := redistest.Start(t)
	require.NoError(t, s.Pause())
	l, err := Open([]string{s.Addr()})
	require.NoError(t, err)
	type result struct {
		r   *Report
		err error
	}
	results := make(chan result)
	go func() {
		r, err := l.Check(context.Background())
		results <- result{r, err}
	}()
	eventually(t, func() bool { return l.inside.Load() == 2 }, "the check asks")
	start := time.Now()
	require.NoError(t, l.Close())
	require.Less(t, time.Since(start), 500*time.Millisecond)
	got := <-results
	require.Nil(t, got.r)
	require.ErrorIs(t, got.err, ErrClosed)

	_, err = l.Check(t.Context())
	require.ErrorIs(t, err, ErrClosed)
}

func TestACheckRefusesNonsense(t *testing.T) {
	var none *Locker
	_, err := none.Check(t.Context())
	require.ErrorIs(t, err, errNilLocker)
	l := opened(t, []string{"localhost:1"})
	_, err = l.Check(nil) //nolint:staticcheck // what is tested
	require.ErrorIs(t, err, errNilContext)
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	_, err = l.Check(ctx)
	require.ErrorIs(t, err, context.Canceled)
}

// A golden report: what a terminal shows, what JSON has, what the error says.
func TestAReportReadsWell(t *testing.T) {
	eviction := Finding{Unsafe, "eviction", "its maxmemory-policy is allkeys-lru: it may evict a lock that is held, and grant it a second time, whatever its holder does about it", "set maxmemory-policy to noeviction"}
	r := &Report{
		Quorum: 2,
		Instances: []InstanceReport{
			{
				Instance: "redis-1:6379", Grants: true, Version: "7.0.15", Role: "master", RunID: "1", Uptime: 49 * time.Hour, Latency: 123456 * time.Nanosecond,
				ClockOffset: 20 * time.Microsecond, ClockOffsetError: 60 * time.Microsecond, ClockRate: 1.0001, ClockRateError: 0.0003, Findings: []Finding{eviction, {Info, "unseen", "it does not show appendfsync", "see for yourself"}},
			},
			{
				Instance: "redis-2:6379", Grants: true, Version: "valkey 8.1.0", Role: "master", RunID: "2", Uptime: 5 * time.Second, Latency: 1234567 * time.Nanosecond,
				ClockOffset: -2 * time.Second, ClockOffsetError: 600 * time.Microsecond, ClockRate: 2, ClockRateError: 0.0003, Findings: []Finding{eviction},
			},
			{Instance: "redis-3:6379", Findings: []Finding{{Warning, "connection", "it can't be reached", "see whether it runs"}}},
		},
		Findings: []Finding{{Warning, "even", "so many", "add one"}},
	}
	require.Equal(t, strings.TrimLeft(`
INSTANCE      GRANTS  VERSION       ROLE    UPTIME   LATENCY  CLOCK           FINDINGS
redis-1:6379  yes     7.0.15        master  49h0m0s  123µs    +0.000s         1 unsafe, 1 info
redis-2:6379  yes     valkey 8.1.0  master  5s       1.23ms   -2.000s x2.000  1 unsafe
redis-3:6379  no      -             -       -        -        -               1 warning

unsafe: eviction, redis-1:6379, redis-2:6379
  its maxmemory-policy is allkeys-lru: it may evict a lock that is held, and grant it a second time,
  whatever its holder does about it
  -> set maxmemory-policy to noeviction

warning: even, all
  so many
  -> add one

warning: connection, redis-3:6379
  it can't be reached
  -> see whether it runs

info: unseen, redis-1:6379
  it does not show appendfsync
  -> see for yourself
`, "\n"), r.String())
	require.EqualError(t, r.unsafe(), "redlock: unsafe: eviction: "+eviction.Text+" (redis-1:6379, redis-2:6379)")

	text, err := json.Marshal(r)
	require.NoError(t, err)
	require.True(t, bytes.Contains(text, []byte(`{"severity":"unsafe","check":"eviction","text":"its `)), string(text))
	require.True(t, bytes.Contains(text, []byte(`"clock_offset_ns":-2000000000`)), string(text))
	var again Report
	require.NoError(t, json.Unmarshal(text, &again))
	require.Equal(t, *r, again)
	require.Error(t, json.Unmarshal([]byte(`"harmless"`), new(Severity)))
	require.Equal(t, "Severity(7)", Severity(7).String())
}

// Every finding is explained in docs/preflight.md.
func TestEveryFindingIsDocumented(t *testing.T) {
	page, err := os.ReadFile("docs/preflight.md")
	require.NoError(t, err)
	var checks []string
	for _, file := range []string{"check.go", "findings.go"} {
		source, err := os.ReadFile(file)
		require.NoError(t, err)
		for _, m := range regexp.MustCompile(`\.add\([^,]+, "([a-z]+)"`).FindAllSubmatch(source, -1) {
			checks = append(checks, string(m[1]))
		}
	}
	slices.Sort(checks)
	checks = slices.Compact(checks)
	require.Greater(t, len(checks), 10)
	var rows []string
	for _, m := range regexp.MustCompile("(?m)^\\| `([a-z]+)` \\|").FindAllSubmatch(page, -1) {
		rows = append(rows, string(m[1]))
	}
	slices.Sort(rows)
	require.Equal(t, checks, slices.Compact(rows))
}
