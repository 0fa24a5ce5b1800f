package main

import (
	"context"
	"errors"
	"time"

	"github.com/bsm/redislock"
	"github.com/go-redsync/redsync/v4"
	redsyncredis "github.com/go-redsync/redsync/v4/redis"
	"github.com/go-redsync/redsync/v4/redis/goredis/v9"
	"github.com/quorumlock/redlock"
	"github.com/redis/go-redis/v9"
	"github.com/redis/rueidis"
	"github.com/redis/rueidis/rueidislock"
)

// A contender is one lock library in one configuration.
type contender struct {
	name   string
	ours   bool // an error, or a lock key left behind, fails the run
	fenced bool // leaves a fence key for each resource
	single bool // knows one server only: takes part at N = 1
	renews bool // its locker is a keeper

	waitsForAll bool     // takes ten seconds for a lock when an instance hangs
	scripted    []string // commands that it sends inside scripts only

	open func(addrs []string, ttl time.Duration) (locker, error)
}

// A locker is what every library comes down to. Its methods wrap nothing that would allocate: an adapter's
// allocations would be counted as the library's.
type locker interface {
	acquire(ctx context.Context, resource string) (held, error) // waits until ctx ends
	close() error
}

// held is an acquired lock. Release returns an error unless the lock was held until now.
type held interface {
	Release(ctx context.Context) error
}

// The contenders whose figures the others' are divided by.
const (
	baseline      = "redsync"
	plainBaseline = "plain"
)

var (
	redlockScripted = []string{"get", "set", "del", "pttl", "pexpire", "publish"}
	redsyncScripted = []string{"get", "del", "pexpire"}
	plainScripted   = []string{"get", "del"}
)

// contenders returns everybody who takes part. Where a library has defaults they are kept; the plain lock and
// redsync-tuned get what a careful user would set.
func contenders() []contender {
	return []contender{
		{name: "redlock", ours: true, fenced: true, renews: true, scripted: redlockScripted, open: func(addrs []string, ttl time.Duration) (locker, error) {
			return openRedlock(addrs, ttl)
		}},
		{name: "redlock-nofence", ours: true, renews: true, scripted: redlockScripted, open: func(addrs []string, ttl time.Duration) (locker, error) {
			return openRedlock(addrs, ttl, redlock.WithoutFencing())
		}},
		{name: baseline, renews: true, waitsForAll: true, scripted: redsyncScripted, open: func(addrs []string, ttl time.Duration) (locker, error) {
			return openRedsync(defaultClients(addrs), redsync.WithExpiry(ttl)), nil
		}},
		{name: "redsync-tuned", renews: true, scripted: redsyncScripted, open: func(addrs []string, ttl time.Duration) (locker, error) {
			return openRedsync(tunedClients(addrs), redsync.WithExpiry(ttl), redsync.WithFailFast(true)), nil
		}},
		{name: plainBaseline, scripted: plainScripted, open: func(addrs []string, ttl time.Duration) (locker, error) {
			return &plainLocker{nodes: tunedClients(addrs), ttl: ttl}, nil
		}},
		{name: "redislock", single: true, open: openRedislock},
		{name: "rueidislock", single: true, open: openRueidislock},
	}
}

type redlockLocker struct {
	*redlock.Locker
	ttl time.Duration
}

func openRedlock(addrs []string, ttl time.Duration, opts ...redlock.Option) (locker, error) {
	l, err := redlock.Open(addrs, append(opts, redlock.WithQuarantine(0))...) // the servers are new
	if err != nil {
		return nil, err
	}
	return redlockLocker{l, ttl}, nil
}

func (l redlockLocker) acquire(ctx context.Context, resource string) (held, error) {
	return orNil(l.Acquire(ctx, resource, l.ttl))
}

func (l redlockLocker) close() error { return l.Close() }

type redsyncLocker struct {
	*redsync.Redsync
	clients []*redis.Client
	opts    []redsync.Option
}

func openRedsync(clients []*redis.Client, opts ...redsync.Option) redsyncLocker {
	pools := make([]redsyncredis.Pool, len(clients))
	for i, c := range clients {
		pools[i] = goredis.NewPool(c)
	}
	return redsyncLocker{redsync.New(pools...), clients, opts}
}

func (l redsyncLocker) acquire(ctx context.Context, resource string) (held, error) {
	m := l.NewMutex(resource, l.opts...)
	if err := m.LockContext(ctx); err != nil {
		return nil, err
	}
	return redsyncHeld{m}, nil
}

func (l redsyncLocker) close() error { return closeAll(l.clients) }

type redsyncHeld struct{ *redsync.Mutex }

func (h redsyncHeld) Release(ctx context.Context) error {
	if ok, err := h.UnlockContext(ctx); !ok {
		return errors.Join(errors.New("not held by a majority"), err)
	}
	return nil // the error of a minority is no failure
}

type redislockLocker struct {
	*redislock.Client
	client *redis.Client
	ttl    time.Duration
	opts   *redislock.Options
}

func openRedislock(addrs []string, ttl time.Duration) (locker, error) {
	c := defaultClients(addrs)[0]
	opts := &redislock.Options{RetryStrategy: redislock.LinearBackoff(100 * time.Millisecond)} // its default does not wait
	return redislockLocker{redislock.New(c), c, ttl, opts}, nil
}

func (l redislockLocker) acquire(ctx context.Context, resource string) (held, error) {
	return orNil(l.Obtain(ctx, resource, l.ttl, l.opts))
}

func (l redislockLocker) close() error { return l.client.Close() }

type rueidislockLocker struct{ rueidislock.Locker }

func openRueidislock(addrs []string, ttl time.Duration) (locker, error) {
	l, err := rueidislock.NewLocker(rueidislock.LockerOption{
		ClientOption: rueidis.ClientOption{InitAddress: addrs},
		KeyValidity:  ttl,
		KeyMajority:  1, // one key a lock, as everybody has at N = 1
	})
	if err != nil {
		return nil, err
	}
	return rueidislockLocker{l}, nil
}

func (l rueidislockLocker) acquire(ctx context.Context, resource string) (held, error) {
	_, cancel, err := l.WithContext(ctx, resource)
	if err != nil {
		return nil, err
	}
	return rueidislockHeld(cancel), nil
}

func (l rueidislockLocker) close() error {
	l.Close()
	return nil
}

type rueidislockHeld context.CancelFunc

// Release waits for the key to be deleted; the library tells no failure.
func (h rueidislockHeld) Release(context.Context) error {
	h()
	return nil
}

// orNil keeps a nil pointer from becoming a held that is not nil.
func orNil[L held](lock L, err error) (held, error) {
	if err != nil {
		return nil, err
	}
	return lock, nil
}

func defaultClients(addrs []string) []*redis.Client {
	return clients(addrs, redis.Options{})
}

// tunedClients end a command when its ctx ends and do not repeat one: a lock's answer is worth nothing later.
func tunedClients(addrs []string) []*redis.Client {
	return clients(addrs, redis.Options{ContextTimeoutEnabled: true, MaxRetries: -1})
}

func clients(addrs []string, opt redis.Options) []*redis.Client {
	cs := make([]*redis.Client, len(addrs))
	for i, addr := range addrs {
		o := opt
		o.Addr = addr
		cs[i] = redis.NewClient(&o)
	}
	return cs
}

// silent keeps go-redis from writing a line for each dial to a server that was killed on purpose.
type silent struct{}

func (silent) Printf(context.Context, string, ...any) {}

func closeAll(clients []*redis.Client) error {
	var errs []error
	for _, c := range clients {
		errs = append(errs, c.Close())
	}
	return errors.Join(errs...)
}
