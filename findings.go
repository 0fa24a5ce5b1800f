package redlock

import (
	"errors"
	"fmt"
	"os"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/redis/go-redis/v9"
)

// This file judges what the instances told. It asks nobody.

const (
	// typicalTTL is the ttl at which latency is judged.
	typicalTTL = 10 * time.Second
	// clockWarning is the offset of a clock that is worth a warning. The guard of a
	// restarted instance allows for clients' clocks that differ by half a second, and
	// a clock that is kept by NTP is a hundred times better: one that is further off
	// is kept by nobody.
	clockWarning = 500 * time.Millisecond
	// fullness is how much of a bound may be used before it is worth a warning.
	fullness = 0.9
)

// Versions whose behaviour matters: the first with KEEPTTL, by which a token is
// raised, and the one that the tests run on.
var oldest, tested = [2]int{6, 0}, [2]int{7, 0}

type findings []Finding

func (fs *findings) add(s Severity, check, fix, format string, args ...any) {
	*fs = append(*fs, Finding{Severity: s, Check: check, Fix: fix, Text: fmt.Sprintf(format, args...)})
}

// report judges what the instance told, where one that restarted is not counted
// for guard.
func (in *instance) report(f *facts, guard time.Duration) InstanceReport {
	r := InstanceReport{
		Instance: in.name,
		Grants:   f.lost == nil && f.trialErr == nil,
		Version:  line(f.version()),
		Role:     f.role(),
		RunID:    line(f.info["run_id"]),
		Uptime:   f.uptime(),
	}
	if n := len(f.trips); n > 1 {
		trips := slices.Sorted(slices.Values(f.trips[1:])) // the first one opened the connection
		r.Latency = trips[len(trips)/2]
	}
	if !f.early.server.IsZero() {
		r.ClockOffset, r.ClockOffsetError = f.early.offset(), f.early.trip()/2
	}
	if !f.late.server.IsZero() {
		r.ClockRate, r.ClockRateError = f.early.rateUntil(f.late)
	}

	fs := findings{}
	l := in.locker
	fs.client(in)
	if !f.plain {
		guard = 0 // as was just said
	}
	switch {
	case f.lost != nil:
		fs.lost(f.lost, in)
	case f.trialErr != nil && f.role() != "replica":
		fs.trial(f.trialErr, in)
	}
	if f.infoErr == nil {
		fs.role(f)
		fs.memory(f)
		fs.persistence(f, guard)
		fs.version(f)
	}
	if f.infoErr == nil || f.lost == nil {
		fs.restart(f, guard)
	}
	fs.clock(&r, f, &l.config)
	fs.latency(r.Latency, &l.config)
	r.Findings = fs
	return r
}

// lost tells why an instance was not asked any further.
func (fs *findings) lost(err error, in *instance) {
	text := told(err)
	switch {
	case errors.Is(err, errPending):
		fs.add(Warning, "connection", "give Check more time", "no answer yet: the rest could not be seen")
	case says(err, "max number of clients"):
		fs.add(Warning, "connection", "raise its maxclients, or use fewer connections", "it has no place for another connection, and casts no vote without one (%s)", text)
	case bars(err):
		fs.add(Unsafe, "authentication", "correct the user and the password of this endpoint, or allow them there", "it does not let us in, and so will never vote (%s)", text)
	case says(err, busy...):
		fs.add(Warning, "busy", "wait until it is ready", "it is busy, and casts no vote until it is done (%s)", text)
	case errors.Is(err, os.ErrDeadlineExceeded):
		fs.add(Warning, "connection", "see whether it hangs, and whether packets get there and back", "it does not answer, and casts no vote (%s)", text)
	default:
		fs.add(Warning, "connection", "see whether it runs, and listens at that address", "it can't be reached, and casts no vote (%s)", text)
	}
}

// trial tells why an instance does not do what a lock needs.
func (fs *findings) trial(err error, in *instance) {
	text := told(err)
	switch {
	case says(err, "READONLY"):
		fs.add(Unsafe, "replica", "list masters only", "it takes no writes, and so will never vote (%s)", text)
	case says(err, "OOM"):
		fs.add(Warning, "memory", "give it more memory, or store less on it", "it is full, and grants no locks (%s)", text)
	case says(err, "NOREPLICAS"):
		fs.add(Warning, "replicas", "bring its replicas back, or set min-replicas-to-write to 0: Redlock needs none", "too few of its replicas are there, and so it grants no locks (%s)", text)
	case says(err, "MISCONF"):
		fs.add(Warning, "persistence", "see in its log why it can't save", "it can't write to its disk, and grants no locks (%s)", text)
	case says(err, "NOPERM", "ACL failure in script", "can't run this command", "can't access at least one of the keys"):
		fs.add(Unsafe, "permissions", in.locker.rights(), "its user may not lock, and so it will never vote (%s)", text)
	case says(err, "unknown command", "Unknown Redis command"):
		fs.add(Unsafe, "permissions", "let it have EVAL, EVALSHA, SET, GET, DEL, PTTL and PEXPIRE under their own names", "it lacks a command that a lock needs, and so will never vote (%s)", text)
	case says(err, elsewhere...):
		fs.add(Unsafe, "cluster", "list independent masters, that are in no cluster", "it is a node of a cluster, and does not vote on what other nodes keep (%s)", text)
	default:
		fs.add(Unsafe, "locking", "use a Redis of 7.0 or later, that you can lock on", "it does not lock as it should (%s)", text)
	}
}

// rights returns what to allow the user of an instance.
func (l *Locker) rights() string {
	return "allow the user +set +get +del +pttl +pexpire +eval +evalsha, and +info +time for the checks, on the keys ~" + line(l.prefix) + "*"
}

// told returns what an instance answered, to be shown. A server repeats the
// arguments of a command that it does not know; one may be a password.
func told(err error) string {
	text, _, _ := strings.Cut(cause(err), argsFollow)
	return text
}

func (f *facts) version() string {
	if v := f.info["valkey_version"]; v != "" {
		return "valkey " + v
	}
	return f.info["redis_version"]
}

func (f *facts) role() string {
	if f.info["role"] == "slave" {
		return "replica"
	}
	return line(f.info["role"])
}

func (f *facts) uptime() time.Duration {
	s, _ := f.number("uptime_in_seconds")
	return time.Duration(min(s, 1<<32)) * time.Second
}

// number returns a number of INFO, and whether it is there.
func (f *facts) number(name string) (int64, bool) {
	n, err := strconv.ParseInt(f.info[name], 10, 64)
	return n, err == nil
}

// role: the algorithm is for masters that know nothing of each other.
func (fs *findings) role(f *facts) {
	replicas, _ := f.number("connected_slaves")
	switch {
	case f.role() == "replica":
		fs.add(Unsafe, "replica", "list its master instead", "it is a replica of %s: what it says about a lock is late, and it grants none", line(f.info["master_host"]+":"+f.info["master_port"]))
	case replicas > 0:
		fs.add(Warning, "replicas", "let no replica take over, or only one that has been up for the largest ttl in use",
			"it has %d: one that takes over may not know the last locks, as replication is asynchronous", replicas)
	}
	const fix = "list independent masters, that are in no cluster"
	switch {
	case !f.plain || f.info["cluster_enabled"] != "1" || says(f.trialErr, elsewhere...):
	case f.shards == "1":
		fs.add(Warning, "cluster", fix, "it is the only master of a cluster: if the cluster grows, it does not vote on what other nodes keep")
	case f.shards == "":
		fs.add(Warning, "cluster", fix, "it is a node of a cluster, and does not tell of how many masters: it does not vote on what others keep")
	default:
		fs.add(Unsafe, "cluster", fix, "it is a node of a cluster of %s masters: it does not vote on what the others keep", line(f.shards))
	}
}

// memory: a lock that is evicted can be had twice, and a full instance grants none.
func (fs *findings) memory(f *facts) {
	policy := f.info["maxmemory_policy"]
	bound, known := f.number("maxmemory")
	used, _ := f.number("used_memory")
	const fix = "set maxmemory-policy to noeviction"
	switch {
	case policy == "" || !known:
		fs.add(Warning, "eviction", "see for yourself that maxmemory-policy is noeviction", "it does not tell whether it evicts keys: a lock that is evicted has a second holder")
	case policy == "noeviction" && bound > 0 && float64(used) > fullness*float64(bound):
		fs.add(Warning, "memory", "give it more memory, or store less on it", "%d of its %d bytes are used: when it is full it grants no locks", used, bound)
	case policy == "noeviction":
	case bound > 0:
		fs.add(Unsafe, "eviction", fix, "its maxmemory-policy is %s: when its %d bytes are full it may evict a lock that is held, and grant it a second time", line(policy), bound)
	default:
		fs.add(Warning, "eviction", fix, "its maxmemory-policy is %s: with maxmemory set, it would evict locks that are held", line(policy))
	}
	clients, _ := f.number("connected_clients")
	if most, _ := f.number("maxclients"); most > 0 && float64(clients) > fullness*float64(most) {
		fs.add(Warning, "connection", "raise its maxclients, or use fewer connections", "%d of its %d places for connections are taken: without one it casts no vote", clients, most)
	}
}

// persistence: what a restart forgets, the guard catches; where there is none,
// nothing may be forgotten.
func (fs *findings) persistence(f *facts, guard time.Duration) {
	if _, known := f.number("uptime_in_seconds"); !known {
		guard = 0
	}
	forgets := ""
	const fix = "set appendonly yes, appendfsync always and no-appendfsync-on-rewrite no"
	fsync, known := f.config["appendfsync"]
	switch {
	case f.info["aof_enabled"] == "":
		fs.add(Warning, "persistence", fix, "it does not tell whether a restart forgets locks")
	case f.info["aof_enabled"] != "1":
		forgets = "has no append-only file: a restart forgets locks"
	case !known:
		fs.unseen(f.configErr, guard, "appendfsync, and so what a loss of power forgets", "+config|get")
	case fsync != "always":
		forgets = fmt.Sprintf("has appendfsync %s: a loss of power forgets the last locks", line(fsync))
	case f.config["no-appendfsync-on-rewrite"] == "yes":
		forgets = "has no-appendfsync-on-rewrite yes: a loss of power while it rewrites its file forgets the last locks"
	}
	switch {
	case forgets == "":
	case guard == 0:
		fs.add(Unsafe, "persistence", fix, "it %s, and nothing keeps it from granting them a second time", forgets)
	case f.info["aof_enabled"] != "1":
		fs.add(Warning, "persistence", fix, "it %s, and it casts no vote until they have expired", forgets)
	default:
		fs.add(Info, "persistence", fix, "it %s, and it casts no vote until they have expired", forgets)
	}
}

// restart: an instance that has just started may have forgotten what it granted.
func (fs *findings) restart(f *facts, guard time.Duration) {
	_, known := f.number("uptime_in_seconds")
	switch {
	case f.infoErr != nil && guard > 0:
		fs.add(Unsafe, "restart", "allow the user +info", "it does not tell when it started, which server it is, nor whether it evicts (%s): one that restarts and forgets its locks is not noticed", told(f.infoErr))
	case f.infoErr != nil:
		fs.unseen(f.infoErr, guard, "which server it is, nor whether it persists and evicts", "+info")
	case guard > 0 && !known:
		fs.add(Unsafe, "restart", "use a server that tells uptime_in_seconds in INFO", "it does not tell when it started: one that restarts and forgets its locks is not noticed")
	case guard > 0 && f.uptime() < guard:
		fs.add(Warning, "restart", "wait", "it started %v ago, and may have forgotten locks: it casts no vote until it has been up for %v", f.uptime(), guard)
	}
	if f.infoErr == nil && f.info["run_id"] == "" {
		fs.add(Info, "unseen", "see for yourself that no server is listed twice", "it does not tell its run_id: the same server under another name is not noticed")
	}
}

// clock: fences that were forgotten rest on clocks that agree, and validity on
// clocks that run alike.
func (fs *findings) clock(r *InstanceReport, f *facts, c *config) {
	if f.timeErr != nil && f.lost == nil {
		s := Info
		if c.fenced() {
			s = Warning
		}
		fs.add(s, "clock", "allow the user +time", "it does not tell its time (%s): a clock that is wrong is not noticed", told(f.timeErr))
	}
	offset, most := r.ClockOffset, r.ClockOffsetError
	const fix = "keep all clocks with NTP, here and there, and let it slew them"
	switch {
	case c.fenced() && checkClock(offset, 2*most, c.retention) != nil:
		fs.add(Unsafe, "clock", fix, "its clock is %v from ours, more than half of the fence retention of %v: its votes do not count", digits(offset), c.retention)
	case offset.Abs()-most > clockWarning:
		fs.add(Warning, "clock", fix, "its clock is %v from ours: one of the two is kept by nobody, and may jump", digits(offset))
	}
	if r.ClockRateError > 0 && rateDiffers(r.ClockRate, r.ClockRateError, c.driftFactor) {
		fs.add(Unsafe, "clock", "see what steps its clock, or whether its machine is starved",
			"its clock ran at %.3g times the rate of ours for %v, or was set: a lock can expire there while it is held here", r.ClockRate, digits(f.late.before.Sub(f.early.before)))
	}
}

// latency: a vote may wait for the batch before it, and so takes up to two round
// trips.
func (fs *findings) latency(latency time.Duration, c *config) {
	vote, limit := 2*latency, c.voteLimit(typicalTTL)
	const fix = "bring clients and instances nearer together, or set WithInstanceTimeout"
	switch {
	case 2*vote > limit:
		fs.add(Warning, "latency", fix, "a round trip takes %v, and a vote up to two: more than half of the %v that an instance has for it with a ttl of %v", digits(latency), limit, typicalTTL)
	case vote > c.voteLimit(minTTL):
		fs.add(Info, "latency", fix, "a round trip takes %v, and a vote up to two: too long for locks with a ttl below %v", digits(latency), digits(vote*10))
	}
}

func (fs *findings) version(f *facts) {
	text := f.version()
	major, minor, ok := parseVersion(strings.TrimPrefix(text, "valkey "))
	v := [2]int{major, minor}
	switch {
	case !ok:
		fs.add(Info, "version", "run the tests of this library on it", "it does not tell a version: nothing is known about it")
	case slices.Compare(v[:], oldest[:]) < 0:
		fs.add(Unsafe, "version", "use Redis 7.0 or later", "version %s does not know SET with KEEPTTL, which raises a token", line(text))
	case v != tested || strings.HasPrefix(text, "valkey"):
		fs.add(Info, "version", "run the tests of this library on it", "version %s is not among those that the library is tested on, Redis %d.%d", line(text), tested[0], tested[1])
	}
}

// parseVersion returns the first two numbers of a version.
func parseVersion(text string) (major, minor int, ok bool) {
	n, _ := fmt.Sscanf(text, "%d.%d", &major, &minor)
	return major, minor, n == 2
}

// client: what matters of the settings of a client. Its time limits do not: no call
// goes without one of the Locker's.
func (fs *findings) client(in *instance) {
	c, plain := in.other.(*redis.Client)
	if !plain {
		fs.add(Unsafe, "restart", "bring a *redis.Client for each master",
			"its client, a %T, does not tell of new connections: a server that restarts and forgets its locks is not noticed, nor is one that is listed twice, or fails over", in.other)
		return
	}
	o := c.Options()
	if o.Addr == "FailoverClient" { // how NewFailoverClient names its address
		fs.add(Warning, "sentinel", "bring a client of one master", "its client follows a failover: the next master may not know the last locks, as replication is asynchronous")
	}
	if o.MaxRetries > 0 {
		fs.add(Info, "client", "set MaxRetries to -1", "its client sends a command again, up to %d times: harmless to a lock, but a vote is late rather than failed", o.MaxRetries)
	}
	if s := c.PoolStats(); !in.locker.owned && s.Timeouts > 0 {
		fs.add(Warning, "client", "give it a larger pool, or the locks a client of their own", "calls of its client have waited in vain for one of its %d connections, %d times: votes fail so", o.PoolSize, s.Timeouts)
	}
}

// unseen tells what the instance did not show. It matters more where nothing
// guards against restarts.
func (fs *findings) unseen(err error, guard time.Duration, what, right string) {
	s := Info
	if guard == 0 {
		s = Warning
	}
	fs.add(s, "unseen", "allow the user "+right+", or see for yourself", "it does not show %s (%s)", what, told(err))
}
