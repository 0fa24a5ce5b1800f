package redlock

import (
	"crypto/tls"
	"errors"
	"fmt"
	"math/rand/v2"
	"runtime"
	"strings"
	"time"

	"github.com/redis/go-redis/v9"
)

// config is what the options of Open and New set.
type config struct {
	now             func() time.Time                  // of this client; a simulation gives each its own
	jitter          func(time.Duration) time.Duration // random, from 0 to less than what it is given; a simulation repeats it
	yield           func()                            // lets those that were just woken run first; a simulation lets all of them
	woken           func(who any)                     // of a simulation; see resume
	prompt          bool                              // of a simulation: writing a little to its connections never waits, as with a socket
	driftFactor     float64
	driftBase       time.Duration
	instanceTimeout time.Duration // 0: by the ttl
	retryMin        time.Duration
	retryMax        time.Duration
	withoutFencing  bool
	source          FencingSource
	retention       time.Duration
	quarantined     time.Duration // quarantineByTTL: by the largest ttl
	prefix          string
	observer        Observer
	tls             *tls.Config
	clientOptions   []func(*redis.Options)
	flights         int // how many batches may be out to one instance
}

func defaults() config {
	return config{
		now:         time.Now,
		jitter:      rand.N[time.Duration],
		yield:       threeTurns,
		driftFactor: 0.01,
		driftBase:   2 * time.Millisecond,
		retryMin:    10 * time.Millisecond,
		retryMax:    250 * time.Millisecond,
		retention:   10 * time.Minute,
		quarantined: quarantineByTTL,
		flights:     maxFlights,
	}
}

// resume is called by a goroutine that was just woken, before it looks at anything: who
// is the context of a caller, the index of the instance whose worker it is, or nil for
// the keeper. A simulation has each go on at an instant of its own, so that it makes no
// difference which of them the scheduler picks first.
func (c *config) resume(who any) {
	if c.woken != nil {
		c.woken(who)
	}
}

// threeTurns gained about a tenth of the throughput over one.
func threeTurns() {
	for range 3 {
		runtime.Gosched()
	}
}

// fenced reports whether the quorum issues the fencing tokens.
func (c *config) fenced() bool { return !c.withoutFencing && c.source == nil }

// voteLimit returns how long an instance may take for its vote on a lock of ttl.
func (c *config) voteLimit(ttl time.Duration) time.Duration {
	if c.instanceTimeout > 0 {
		return c.instanceTimeout
	}
	return min(max(ttl/10, 20*time.Millisecond), time.Second)
}

// keep returns how long the fence of a lock of ttl is remembered, in ms.
func (c *config) keep(ttl time.Duration) int64 {
	return serverTTL(ttl) + serverTTL(c.retention)
}

// closeLimit returns how long Close waits for instances.
func (c *config) closeLimit() time.Duration {
	if c.instanceTimeout > 0 {
		return c.instanceTimeout
	}
	return time.Second
}

// sendLimit returns after how long without an answer a connection is given up.
func (c *config) sendLimit() time.Duration { return max(sendLimit, c.instanceTimeout) }

// An Option configures a [Locker]. [Open] and [New] refuse a bad value, and name
// all bad values in one error.
type Option func(*config) error

// WithDrift sets how much of a ttl is set aside for clocks that do not agree:
// ttl*factor for clocks that run at different rates, plus base for the
// resolution of a Redis expiry. The default is 0.01 and 2 ms, as published with
// the Redlock algorithm. A factor outside [0, 1) or a negative base is refused.
// A factor too small for the clocks in use lets a holder believe in a lock that
// has expired; one too large only shortens validity.
func WithDrift(factor float64, base time.Duration) Option {
	return func(c *config) error {
		if !(factor >= 0 && factor < 1) {
			return fmt.Errorf("WithDrift: factor %v is not in [0, 1)", factor)
		}
		if base < 0 {
			return fmt.Errorf("WithDrift: base %v is negative", base)
		}
		c.driftFactor, c.driftBase = factor, base
		return nil
	}
}

// WithInstanceTimeout sets how long an instance may take for its vote, counted
// from the moment at which the question is queued. The default is a tenth of the
// ttl, at least 20 ms and at most 1 s. It bounds how long a call takes when
// instances hang; it is no limit for calls that a majority answers. Values below
// 1 ms or above 1 min are refused. One that is too short fails votes of healthy
// instances that are far away.
func WithInstanceTimeout(d time.Duration) Option {
	return func(c *config) error {
		if d < time.Millisecond || d > time.Minute {
			return fmt.Errorf("WithInstanceTimeout: %v is not between 1ms and 1m", d)
		}
		c.instanceTimeout = d
		return nil
	}
}

// WithRetryDelay sets the pause between the rounds of an Acquire that waits:
// random, at least least and at most most, growing from least with each round.
// It ends early when the leases that are in the way run out, or a release wakes the
// waiter. One that a majority of the instances tells of releases asks less often:
// after two to six times most, and after 1.5 s at the latest. The default is 10 ms and 250 ms. Bounds that are not 0 < least <= most <= 1 min are refused.
func WithRetryDelay(least, most time.Duration) Option {
	return func(c *config) error {
		if least <= 0 || most < least || most > time.Minute {
			return fmt.Errorf("WithRetryDelay: not 0 < %v <= %v <= 1m", least, most)
		}
		c.retryMin, c.retryMax = least, most
		return nil
	}
}

// WithFencing takes fencing tokens from source instead of the quorum: one token
// for each lock, after its vote is won. A nil source is refused.
func WithFencing(source FencingSource) Option {
	return func(c *config) error {
		if source == nil {
			return errors.New("WithFencing: the source is nil")
		}
		if c.withoutFencing {
			return errFencingTwice
		}
		c.source = source
		return nil
	}
}

// WithoutFencing turns fencing tokens off: [Lock.FencingToken] is 0, and a
// holder that comes back late can't be told from the current one. It saves the
// fence key of each resource and some of the servers' time, no round trip.
func WithoutFencing() Option {
	return func(c *config) error {
		if c.source != nil {
			return errFencingTwice
		}
		c.withoutFencing = true
		return nil
	}
}

var errFencingTwice = errors.New("WithFencing and WithoutFencing exclude each other")

// WithFenceRetention sets for how long the instances remember a resource's
// fencing token after its lock has expired. While they do, the order of tokens
// needs no clock; after that it needs clients whose clocks differ by less than
// half of d: an instance whose clock is further away from ours does not count. Each
// distinct resource costs one small key for that long. The
// default is 10 min; values below 1 s or above 365 days are refused.
func WithFenceRetention(d time.Duration) Option {
	return func(c *config) error {
		if d < time.Second || d > maxTTL {
			return fmt.Errorf("WithFenceRetention: %v is not between 1s and %v", d, maxTTL)
		}
		c.retention = d
		return nil
	}
}

// WithQuarantine sets how long an instance has to be up before it counts, for an
// acquire or an extend: one that restarted may have forgotten what it granted. The
// default is the largest ttl that this Locker was asked for, 1 h at most, and 2 s.
// That is enough if all clients of a resource use ttls up to that; where others
// use larger ones, or one is above 1 h, all have to set the largest, and 2 s.
//
// The server counts its uptime in whole seconds, so up to one of d is lost to
// rounding. New servers count after d: then a first Acquire waits for that, once.
// 0 turns the quarantine off, for servers that never lose a write; with servers
// that do, a restart lets a second holder in. A negative d, and one above 365 days,
// are refused.
//
// A restart is seen on the new connection that it makes necessary, by INFO server
// (rights: +info), and costs an operation nothing. Where the server does not tell,
// and on a [redis.ClusterClient] or [redis.Ring], there is no quarantine; the
// observer hears of it ([QuarantineOff]).
func WithQuarantine(d time.Duration) Option {
	return func(c *config) error {
		if d < 0 || d > maxTTL {
			return fmt.Errorf("WithQuarantine: %v is not between 0 and %v", d, maxTTL)
		}
		c.quarantined = d
		return nil
	}
}

const quarantineByTTL time.Duration = -1

// WithKeyPrefix puts prefix before the resource in every key. The default is
// none, so that clients of other Redlock libraries and this one exclude each
// other. All clients of a resource set the same: a prefix that is spelled as a part
// of the resource gives the same lock key, and another fence. A prefix with braces, which would change the hash slots of a cluster,
// or one over 1 KiB is refused.
func WithKeyPrefix(prefix string) Option {
	return func(c *config) error {
		if strings.ContainsAny(prefix, "{}") {
			return fmt.Errorf("WithKeyPrefix: %s has a brace", quote(prefix))
		}
		if len(prefix) > 1<<10 {
			return fmt.Errorf("WithKeyPrefix: %d bytes are more than 1 KiB", len(prefix))
		}
		c.prefix = prefix
		return nil
	}
}

// WithObserver reports what happens to o. The default is silence.
func WithObserver(o Observer) Option {
	return func(c *config) error {
		c.observer = o
		return nil
	}
}

// WithTLSConfig sets the TLS configuration of the clients that [Open] builds for
// rediss://, valkeys:// and plain host:port endpoints. The default is the system's
// for the first two, and no TLS for plain ones. A nil configuration is refused,
// and so is one that no endpoint uses, or [New].
func WithTLSConfig(t *tls.Config) Option {
	return func(c *config) error {
		if t == nil {
			return errors.New("WithTLSConfig: the configuration is nil")
		}
		c.tls = t
		return nil
	}
}

// WithClientOptions calls f with the options of each client that [Open] builds,
// after it has set its own: a way to credentials, a dialer or a protocol. Time
// limits hold whatever f does. A nil f is refused, and so is [New] with it.
func WithClientOptions(f func(*redis.Options)) Option {
	return func(c *config) error {
		if f == nil {
			return errors.New("WithClientOptions: the function is nil")
		}
		c.clientOptions = append(c.clientOptions, f)
		return nil
	}
}

// An AcquireOption configures one [Locker.Acquire], [Locker.TryAcquire] or
// [Locker.Do]. A bad value is an error of that call, before any I/O.
type AcquireOption func(*request) error

// WithMaxWait bounds how long an Acquire waits, besides its context. At the end
// the error is the last real reason, [ErrTaken] or [ErrNoQuorum], and not that
// of a context. The default is no bound; 0 is one round; a negative d is refused.
// A TryAcquire waits for nobody, with or without it.
func WithMaxWait(d time.Duration) AcquireOption {
	return func(q *request) error {
		if d < 0 {
			return fmt.Errorf("WithMaxWait: %v is negative", d)
		}
		q.maxWait = d
		return nil
	}
}

// WithMinValidity refuses a lock that has less than d left when it is granted,
// with [ErrExpired]. The default is any positive rest. A d that is negative, or
// that a lock of that ttl can't have, is refused.
func WithMinValidity(d time.Duration) AcquireOption {
	return func(q *request) error {
		if d < 0 {
			return fmt.Errorf("WithMinValidity: %v is negative", d)
		}
		q.minValidity = d
		return nil
	}
}

// WithMaxHold ends a lock d after it was asked for, however often it is extended.
// The default is no limit; a d that is not positive is refused.
func WithMaxHold(d time.Duration) AcquireOption {
	return func(q *request) error {
		if d <= 0 {
			return fmt.Errorf("WithMaxHold: %v is not positive", d)
		}
		q.maxHold = d
		return nil
	}
}
