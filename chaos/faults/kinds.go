package faults

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/quorumlock/redlock/internal/redistest"
)

// A strike is one fault that befalls one target, by the schedule.
type strike struct {
	arena    *arena
	instance *instance
	client   *process // the target in place of an instance
	length   time.Duration
	rand     *rand.Rand
}

// A fault is a thing that goes wrong.
type fault struct {
	name   string
	client bool          // it befalls a client, not an instance
	least  time.Duration // that it takes
	most   time.Duration
	// do brings it about, and undoes it when s.length is over or ctx ends: also then all
	// is as before when it returns, but for what the fault has destroyed. It returns what
	// it hit (see history.Fault).
	do func(ctx context.Context, s *strike) (hits int, err error)
}

// wait lets the fault last.
func (s *strike) wait(ctx context.Context) { _ = sleep(ctx, s.length) }

// proxied is a fault of the network; its hits are what the proxy says that it struck.
func proxied(name string, least, most time.Duration, on, off func(*redistest.Proxy)) fault {
	return fault{name: name, least: least, most: most, do: func(ctx context.Context, s *strike) (int, error) {
		p := s.instance.proxy
		before := p.Struck()
		on(p)
		s.wait(ctx)
		off(p)
		return p.Struck() - before, nil
	}}
}

const ms = time.Millisecond

// Faults of the network.
var (
	delayBoth = proxied("delay", 10*ms, 80*ms,
		func(p *redistest.Proxy) { p.Delay(5 * ms) },
		func(p *redistest.Proxy) { p.Delay(0) })
	delayReplies = proxied("delay replies", 10*ms, 80*ms,
		func(p *redistest.Proxy) { p.DelayReplies(30 * ms) },
		func(p *redistest.Proxy) { p.DelayReplies(0) })
	holdRequests = proxied("hold requests", 10*ms, 150*ms, // they arrive when their senders have given up
		func(p *redistest.Proxy) { p.HoldRequests(true) },
		func(p *redistest.Proxy) { p.HoldRequests(false) })
	holdReplies = proxied("hold replies", 10*ms, 150*ms,
		func(p *redistest.Proxy) { p.HoldReplies(true) },
		func(p *redistest.Proxy) { p.HoldReplies(false) })
	// What was swallowed is missing in the stream: only a new connection helps.
	cutRequests = proxied("cut the way there", 10*ms, 100*ms,
		func(p *redistest.Proxy) { p.SwallowRequests(true) },
		func(p *redistest.Proxy) { p.Break(); p.SwallowRequests(false) })
	cutReplies = proxied("cut the way back", 10*ms, 100*ms,
		func(p *redistest.Proxy) { p.SwallowReplies(true) },
		func(p *redistest.Proxy) { p.Break(); p.SwallowReplies(false) })
	duplicate = proxied("duplicate", 10*ms, 80*ms,
		func(p *redistest.Proxy) { p.DuplicateRequests(true) },
		func(p *redistest.Proxy) { p.DuplicateRequests(false) })
	loseReply = proxied("lose one reply", 10*ms, 50*ms,
		func(p *redistest.Proxy) { p.CutReplies("evalsha") },
		func(*redistest.Proxy) {})
	breakAll = proxied("break connections", 5*ms, 30*ms,
		func(p *redistest.Proxy) { p.Break() },
		func(*redistest.Proxy) {})
	refuse = proxied("refuse connections", 10*ms, 150*ms,
		func(p *redistest.Proxy) { p.Refuse(true); p.Break() },
		func(p *redistest.Proxy) { p.Refuse(false) })
)

// met is what reached the server's proxy, or could not, while something was wrong with
// the server.
func met(p *redistest.Proxy) (since func() int) {
	requests, struck := p.Requests(), p.Struck()
	return func() int { return p.Requests() - requests + p.Struck() - struck }
}

// Faults of a server that forgets nothing.
var (
	stopServer = fault{name: "SIGSTOP", least: 10 * ms, most: 150 * ms, do: func(ctx context.Context, s *strike) (int, error) {
		if err := s.instance.server.Pause(); err != nil {
			return 0, err
		}
		since := met(s.instance.proxy)
		s.wait(ctx)
		return since(), s.instance.server.Resume()
	}}
	clientPause = fault{name: "CLIENT PAUSE", least: 10 * ms, most: 150 * ms, do: func(ctx context.Context, s *strike) (int, error) {
		mode := [2]string{"ALL", "WRITE"}[s.rand.IntN(2)]
		if err := s.command("CLIENT", "PAUSE", strconv.FormatInt(s.length.Milliseconds(), 10), mode); err != nil {
			return 0, err
		}
		since := met(s.instance.proxy)
		s.wait(ctx)
		return since(), nil // it ends by itself
	}}
	killClients = fault{name: "CLIENT KILL", least: 5 * ms, most: 30 * ms, do: func(ctx context.Context, s *strike) (int, error) {
		reply, err := s.instance.server.Do("CLIENT", "KILL", "TYPE", "normal")
		s.wait(ctx)
		n, _ := reply.(int64)
		return int(n), err
	}}
	scriptFlush = fault{name: "SCRIPT FLUSH", least: 5 * ms, most: 30 * ms, do: func(ctx context.Context, s *strike) (int, error) {
		return s.counted(ctx, "errorstats", "errorstat_NOSCRIPT", "SCRIPT", "FLUSH")
	}}
	full = fault{name: "maxmemory", least: 10 * ms, most: 100 * ms, do: func(ctx context.Context, s *strike) (int, error) {
		n, err := s.counted(ctx, "errorstats", "errorstat_OOM", "CONFIG", "SET", "maxmemory", "1")
		return n, errors.Join(err, s.command("CONFIG", "SET", "maxmemory", "0"))
	}}
	// restart is of a server that forgets, or does not, by its arguments.
	restart = fault{name: "kill -9 and restart", least: 1 * ms, most: 100 * ms, do: func(ctx context.Context, s *strike) (int, error) {
		since, conns := met(s.instance.proxy), s.instance.proxy.Conns()
		if err := s.instance.server.Kill(); err != nil {
			return 0, err
		}
		s.wait(ctx)
		n := since() + conns
		return n, s.instance.server.Restart()
	}}
)

// Faults of a server that forgets.
var (
	forget = fault{name: "kill -9 and restart empty", least: 1 * ms, most: 50 * ms, do: func(ctx context.Context, s *strike) (int, error) {
		keys, err := lockKeys(s.instance.server)
		if err != nil {
			return 0, err
		}
		if err := s.instance.server.Kill(); err != nil {
			return 0, err
		}
		s.wait(ctx)
		return len(keys), s.instance.server.Restart()
	}}
	// tearTail is a power failure: kill -9 loses nothing that was written, the machine
	// loses what its disk had not got.
	tearTail = fault{name: "torn append-only file", least: 1 * ms, most: 50 * ms, do: func(ctx context.Context, s *strike) (int, error) {
		if err := s.instance.server.Kill(); err != nil {
			return 0, err
		}
		s.wait(ctx)
		torn, err := tear(s.instance.server, 1+s.rand.Int64N(mostTorn))
		return torn, errors.Join(err, s.instance.server.Restart())
	}}
	flushAll = fault{name: "FLUSHALL", least: 1 * ms, most: 50 * ms, do: func(ctx context.Context, s *strike) (int, error) {
		keys, err := lockKeys(s.instance.server)
		if err == nil {
			err = s.command("FLUSHALL")
		}
		s.wait(ctx)
		return len(keys), err
	}}
	evict = fault{name: "eviction", least: 5 * ms, most: 50 * ms, do: func(ctx context.Context, s *strike) (int, error) {
		err := s.command("CONFIG", "SET", "maxmemory-policy", "allkeys-random")
		if err != nil {
			return 0, err
		}
		// A little less than it uses: it evicts with each write.
		used, _ := strconv.Atoi(info(s.instance.server, "memory")["used_memory"])
		n, err := s.counted(ctx, "stats", "evicted_keys", "CONFIG", "SET", "maxmemory", strconv.Itoa(used-used/100))
		return n, errors.Join(err, s.command("CONFIG", "SET", "maxmemory", "0"), s.command("CONFIG", "SET", "maxmemory-policy", "noeviction"))
	}}
	// failOver promotes a replica that has missed the last writes, behind a name that
	// stays, and lets the old master follow it.
	failOver = fault{name: "failover", least: 30 * ms, most: 100 * ms, do: func(ctx context.Context, s *strike) (int, error) {
		in := s.instance
		in.link.SwallowReplies(true)
		s.wait(ctx)
		written, err := strconv.Atoi(info(in.server, "replication")["master_repl_offset"])
		if err != nil {
			return 0, err
		}
		if err := in.server.Kill(); err != nil {
			return 0, err
		}
		if _, err := in.replica.Do("REPLICAOF", "NO", "ONE"); err != nil {
			return 0, err
		}
		known, err := strconv.Atoi(info(in.replica, "replication")["master_repl_offset"])
		if err != nil {
			return 0, err
		}
		in.server, in.replica = in.replica, in.server
		in.proxy.Retarget(in.server.Addr())
		in.proxy.Break()

		in.link.Break()
		in.link.SwallowReplies(false)
		in.link.Retarget(in.server.Addr())
		if err := in.replica.RestartWith(append(slices.Clone(replicated), follow(in.link)...)...); err != nil {
			return 0, err
		}
		return written - known, inSync(context.WithoutCancel(ctx), in.replica)
	}}
)

// Faults of clocks. A key that a clock expires counts, unless its time had come.
var (
	clockJumps = fault{name: "clock jump", least: 5 * ms, most: 50 * ms, do: func(ctx context.Context, s *strike) (int, error) {
		keys, err := lockKeys(s.instance.server)
		if err != nil {
			return 0, err
		}
		by := time.Duration(300+s.rand.IntN(1000)) * ms
		if err := s.instance.clock.Shift(by); err != nil {
			return 0, err
		}
		s.wait(ctx)
		return len(keys), nil
	}}
	clockRuns = fault{name: "clock at another rate", least: 30 * ms, most: 150 * ms, do: func(ctx context.Context, s *strike) (int, error) {
		since := met(s.instance.proxy)
		if err := s.instance.clock.RunAt(0.995 + 0.01*s.rand.Float64()); err != nil {
			return 0, err
		}
		s.wait(ctx)
		return since(), s.instance.clock.RunAt(1)
	}}
)

// stopClient stops a client process for longer than its leases.
var stopClient = fault{name: "client SIGSTOP", client: true, least: lease, most: 2 * lease, do: func(ctx context.Context, s *strike) (int, error) {
	if err := s.client.Pause(); err != nil {
		return 0, err
	}
	s.wait(ctx)
	return heldByTarget, s.client.Resume()
}}

// command sends one to the instance.
func (s *strike) command(args ...string) error {
	_, err := s.instance.server.Do(args...)
	return err
}

// counted sends a command, and returns by how much that has made a count of INFO grow
// when the fault is over.
func (s *strike) counted(ctx context.Context, section, field string, args ...string) (int, error) {
	before := count(s.instance.server, section, field)
	if err := s.command(args...); err != nil {
		return 0, err
	}
	s.wait(ctx)
	return count(s.instance.server, section, field) - before, nil
}

// count reads a count of INFO, "5" or "count=5".
func count(s *redistest.Server, section, field string) int {
	n, _ := strconv.Atoi(strings.TrimPrefix(info(s, section)[field], "count="))
	return n
}

// mostTorn is, in bytes, about what a server writes in the second between two fsyncs.
const mostTorn = 100_000

// tear cuts up to n bytes off the append-only file, and returns how many.
func tear(s *redistest.Server, n int64) (int, error) {
	path, err := appendOnlyFile(s)
	if err != nil {
		return 0, err
	}
	stat, err := os.Stat(path)
	if err != nil {
		return 0, err
	}
	n = min(n, stat.Size())
	if err := os.Truncate(path, stat.Size()-n); err != nil {
		return 0, fmt.Errorf("%s: %w", filepath.Base(path), err)
	}
	return int(n), nil
}
