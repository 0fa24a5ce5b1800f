package faults

import (
	"cmp"
	"context"
	"time"

	"github.com/quorumlock/redlock/chaos/history"
)

// A scenario is a kind of servers, and what befalls them.
type scenario struct {
	name   string
	what   string
	inside bool // the assumptions of mutual exclusion hold

	instances  int
	servers    []string // arguments of redis-server
	clocks     bool     // each has a clock of its own
	replicas   bool     // each has a replica
	arrange    func(context.Context, *arena) error
	quarantine time.Duration // negative: the default
	ttl        time.Duration
	long       time.Duration // 0: no long locks
	think      time.Duration // see clientConfig

	each int // how many resources of a kind there are: few, where holders are to meet

	lanes  int // so many faults at a time, each of a part of the targets
	faults []fault
	least  int           // faults that must hit something, or nothing was shown
	gap    time.Duration // the longest pause between two faults of a lane
	calm   time.Duration // after the last one, until the clients stop

	memory bool // instances keep their memory, so an extend says something of larger tokens
	breaks bool // what is not guarded must break: a control
}

// demand returns what a run of it has to be like.
func (s *scenario) demand() history.Demand {
	return history.Demand{
		Exclusive: s.inside, Order: s.inside, Extends: s.inside && s.memory,
		Clean: true, Recovers: recovers,
	}
}

// mostInstances is how many a scenario has at most.
const mostInstances = 5

// recovers is how long the first lock may take after all is well again: a probe of an
// instance that was down and a round, so less than a second, unless the machine has no
// time for either.
const recovers = workPatience

const (
	lease    = 300 * time.Millisecond
	lasting  = 30 * time.Second // a key of such a lock that is left is seen
	byTTL    = time.Duration(-1)
	byTTLEnd = lease + 2500*time.Millisecond // the default quarantine is over
)

// durable are the arguments of a server that forgets nothing when it is killed: what
// it has written to its file survives the process, and it writes before it answers. That
// is not enough for a power failure, which tears the end off what was not synced.
var durable = []string{"--appendonly", "yes", "--appendfsync", "no"}

// replicated are those of a server that lets its replica follow at once.
var replicated = []string{"--repl-diskless-sync-delay", "0"}

var network = []fault{
	delayBoth, delayReplies, holdRequests, holdReplies, cutRequests, cutReplies, duplicate, loseReply, breakAll, refuse,
}

// scenarios are all there are, those inside the assumptions first.
func scenarios() []*scenario {
	all := []*scenario{
		{
			name: "network", what: "connections are slow, hang, lose one direction, repeat requests, break",
			inside: true, memory: true, instances: 5, long: lasting,
			lanes: 2, faults: network, gap: 100 * ms, least: 35,
		},
		{
			name: "servers", what: "servers stop, pause their clients, throw them out, forget scripts, are full",
			inside: true, memory: true, instances: 5, long: lasting,
			lanes: 2, faults: []fault{stopServer, clientPause, killClients, scriptFlush, full}, gap: 30 * ms, least: 35,
		},
		{
			name: "restarts", what: "servers are killed and restart with all they had written",
			inside: true, memory: true, instances: 5, servers: durable, long: lasting,
			lanes: 2, faults: []fault{restart, restart, stopServer, breakAll}, gap: 150 * ms, least: 15,
		},
		{
			name: "majority", what: "a majority hangs, is cut off or restarts at one time",
			inside: true, memory: true, instances: 3, servers: durable, long: lasting,
			lanes: 3, faults: []fault{stopServer, holdRequests, cutReplies, refuse, restart}, gap: 300 * ms, least: 20,
		},
		{
			name: "clients", what: "client processes stop for longer than their leases, and go on writing",
			inside: true, memory: true, breaks: true, instances: 3, long: lasting, think: 60 * ms,
			lanes: 2, faults: []fault{stopClient}, gap: 300 * ms, least: 4,
		},
		{
			name: "drift", what: "servers' clocks run up to 0.5 % fast or slow, and the network fails",
			inside: true, memory: true, clocks: true, instances: 3, long: lasting,
			lanes: 3, faults: []fault{clockRuns, clockRuns, holdRequests, duplicate}, gap: 100 * ms, least: 35,
		},
		{
			name: "amnesia", what: "servers are killed and restart with nothing; the quarantine is on",
			inside: true, instances: 5, quarantine: byTTL, think: 20 * ms,
			lanes: 2, faults: []fault{forget, breakAll, holdRequests, duplicate}, gap: 500 * ms, calm: byTTLEnd, least: 6,
		},
		{
			name: "power", what: "servers lose the tail of their append-only file; the quarantine is on",
			inside: true, instances: 5, servers: durable, quarantine: byTTL, think: 20 * ms,
			lanes: 2, faults: []fault{tearTail, breakAll, holdReplies, duplicate}, gap: 500 * ms, calm: byTTLEnd, least: 6,
		},
		{
			name: "failover", what: "replicas that miss the last writes take over; the quarantine is on",
			inside: true, instances: 3, servers: replicated, replicas: true, quarantine: byTTL, think: 20 * ms,
			lanes: 1, faults: []fault{failOver, duplicate, holdReplies}, gap: 1500 * ms, calm: byTTLEnd, least: 2,
		},
		{
			name: "flushall", what: "FLUSHALL: servers forget, and nobody can see it",
			instances: 3, think: 50 * ms,
			lanes: 3, faults: []fault{flushAll, flushAll, breakAll}, gap: 100 * ms, least: 60,
		},
		{
			name: "eviction", what: "servers evict keys to make room",
			instances: 3, think: 50 * ms,
			lanes: 3, faults: []fault{evict}, gap: 50 * ms, least: 40,
		},
		{
			name: "amnesia-unguarded", what: "servers restart with nothing, without the quarantine",
			instances: 3, ttl: 10 * lease, think: time.Second,
			lanes: 3, faults: []fault{forget}, gap: 400 * ms, least: 10,
		},
		{
			name: "power-unguarded", what: "servers lose the tail of their append-only file, without the quarantine",
			instances: 3, servers: durable, ttl: 10 * lease, think: time.Second,
			lanes: 3, faults: []fault{tearTail}, gap: 400 * ms, least: 10,
		},
		{
			name: "clocks", what: "servers' clocks jump forward: keys expire within their leases",
			clocks: true, instances: 3, think: 50 * ms,
			lanes: 3, faults: []fault{clockJumps}, gap: 100 * ms, least: 40,
		},
		{
			name: "single-failover", what: "one instance, whose replica misses the last writes and takes over, without the quarantine",
			instances: 1, servers: replicated, replicas: true, ttl: 10 * lease, think: time.Second,
			lanes: 1, faults: []fault{failOver}, gap: 100 * ms, least: 4,
		},
		{
			name: "replica-listed", what: "the third endpoint is a writable replica of the first",
			instances: 3, servers: replicated, ttl: 10 * lease, think: time.Second, arrange: listReplica,
			lanes: 1, faults: []fault{refuse, cutRequests}, gap: 50 * ms, least: 15,
		},
	}
	for _, s := range all {
		s.ttl, s.think, s.calm = cmp.Or(s.ttl, lease), cmp.Or(s.think, 2*ms), cmp.Or(s.calm, 300*ms)
		s.breaks = s.breaks || !s.inside
		s.each = 100
		if s.breaks {
			s.each = 24
		}
	}
	return all
}

// listReplica makes the third instance a replica of the first that takes writes: what
// looks like three masters are two.
func listReplica(ctx context.Context, a *arena) error {
	first, third := a.instances[0].server, a.instances[2].server
	for _, args := range [][]string{
		{"CONFIG", "SET", "replica-read-only", "no"},
		{"REPLICAOF", "127.0.0.1", port(first.Addr())},
	} {
		if _, err := third.Do(args...); err != nil {
			return err
		}
	}
	return inSync(ctx, third)
}
