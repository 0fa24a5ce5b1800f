// Package redisfence exists so that a late holder's write to Redis is refused: one
// script compares the fencing token with the mark and writes, in one atomic step.
//
// The mark of a resource is a key beside the data: "{invoice-42}:guard" for
// invoice-42, and "{user1}:cart::guard" for {user1}:cart. It has the hash slot of
// the key that is named like the resource, and of all keys with the same hash tag,
// so the guard works on Redis Cluster as long as a write stays in one slot, as
// it must there anyway. Only a name that has a } but no hash tag, like {}x, has no
// such partner: there a cluster refuses the script.
//
// The data must live on one master (or one cluster, or one ring), not on the
// instances of the lock. A mark and its data are written together and replicated
// together: a failover that forgets a write forgets its mark with it, and the
// refusal of an older holder too. A server that evicts keys can forget a mark and
// keep the data; use noeviction.
package redisfence

import (
	"context"
	_ "embed"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/quorumlock/redlock/fence"
)

// check stands before every script of a user.
//
//go:embed check.lua
var check string

// A Guard checks fencing tokens on the Redis that holds the data. It is safe for
// concurrent use.
type Guard struct {
	client    redis.UniversalClient
	retention time.Duration // 0: marks stay
	command   *Script
	nothing   *Script
	tally     fence.Tally
}

// An Option configures a [Guard].
type Option func(*Guard) error

// WithRetention lets a mark expire when no token was accepted for d; after that,
// any token is. The default is that marks stay, a small key for each resource.
// A d shorter than the longest time for which a holder may be paused defeats the
// guard. Values below 1 s are refused.
func WithRetention(d time.Duration) Option {
	return func(g *Guard) error {
		if d < time.Second {
			return fmt.Errorf("redisfence: WithRetention: %v is below 1s", d)
		}
		g.retention = d
		return nil
	}
}

// New returns a guard for data that is reached with client. It asks the server
// nothing. The client stays the caller's.
//
// A client repeats what it got no reply to (redis.Options.MaxRetries, 3 by
// default), and equal tokens are accepted: what is not idempotent may happen
// twice. Use a client without repeats for that.
func New(client redis.UniversalClient, opts ...Option) (*Guard, error) {
	if client == nil {
		return nil, errors.New("redisfence: the client is nil")
	}
	g := &Guard{
		client:  client,
		command: &Script{redis.NewScript(check + "return redis.call(unpack(ARGV))")},
		nothing: &Script{redis.NewScript(check + "return 1")},
	}
	var errs []error
	for _, opt := range opts {
		errs = append(errs, opt(g))
	}
	if err := errors.Join(errs...); err != nil {
		return nil, err
	}
	return g, nil
}

// A Script is a Lua script that runs behind the check.
type Script struct{ guarded *redis.Script }

// NewScript prepares a script for [Guard.Run]. Its KEYS and ARGV are what Run is
// given, as if there were no guard. A script that declares flags in a first line
// with #! is refused.
func NewScript(text string) (*Script, error) {
	if strings.HasPrefix(text, "#!") {
		return nil, errors.New("redisfence: NewScript: the check must come before the script, and so can't before its #! line")
	}
	return &Script{redis.NewScript(check + text)}, nil
}

// Run runs script if token is at least as large as the mark of resource, and
// raises the mark, in one atomic step. Otherwise it changes nothing, and the error
// of the command is a *[fence.StaleError]. Any other error is the client's, the
// server's or the script's: a mark that is no number is one, for the guard refuses
// what it can't compare. If the script fails half-way, the mark and what
// it wrote before stand, as with every script.
func (g *Guard) Run(ctx context.Context, resource string, token uint64, script *Script, keys []string, args ...any) *redis.Cmd {
	if err := fence.Validate(resource, token); err != nil {
		return failed(ctx, err)
	}
	if script == nil || script.guarded == nil {
		return failed(ctx, errors.New("redisfence: the script is none of NewScript"))
	}
	// Last, so that check.lua can take them off and leave the user's own.
	keys = append(keys[:len(keys):len(keys)], markKey(resource))
	args = append(args[:len(args):len(args)], g.retention.Milliseconds(), token)
	cmd := script.guarded.Run(ctx, g.client, keys, args...)
	err := cmd.Err()
	switch text, isReply := reply(err); {
	case err == nil, errors.Is(err, redis.Nil):
		_ = g.tally.Compare(resource, token, token)
	case isReply && strings.HasPrefix(text, "STALETOKEN "):
		mark, err := strconv.ParseUint(text[len("STALETOKEN "):], 10, 64)
		if err != nil || mark <= token { // a script of the user's that says so, too
			cmd.SetErr(fmt.Errorf("redisfence: %.64q: a refusal of token %d that makes no sense: %.40q", resource, token, text))
		} else {
			cmd.SetErr(g.tally.Compare(resource, token, mark))
		}
	case isReply && strings.HasPrefix(text, "BADMARK "):
		cmd.SetErr(fmt.Errorf("redisfence: %.64q: %w", resource, err))
	}
	return cmd
}

// Do runs one command, as in Do(ctx, "cart", 7, []string{"cart"}, "HSET", "cart", "apples", 3).
// keys names the keys among its arguments, for the sake of Redis Cluster. Otherwise
// as [Guard.Run]; a command that is not allowed in scripts fails.
func (g *Guard) Do(ctx context.Context, resource string, token uint64, keys []string, command string, args ...any) *redis.Cmd {
	return g.Run(ctx, resource, token, g.command, keys, append([]any{command}, args...)...)
}

// Set sets key to value, for ttl, or for ever if that is 0.
func (g *Guard) Set(ctx context.Context, resource string, token uint64, key string, value any, ttl time.Duration) error {
	args := []any{key, value}
	switch {
	case ttl < 0 || 0 < ttl && ttl < time.Millisecond:
		return fmt.Errorf("redisfence: Set: a ttl of %v is neither 0 nor at least 1ms", ttl)
	case ttl > 0:
		args = append(args, "PX", ttl.Milliseconds())
	}
	return g.Do(ctx, resource, token, []string{key}, "SET", args...).Err()
}

// Del deletes keys, and returns how many there were.
func (g *Guard) Del(ctx context.Context, resource string, token uint64, keys ...string) (int64, error) {
	args := make([]any, len(keys))
	for i, key := range keys {
		args[i] = key
	}
	return g.Do(ctx, resource, token, keys, "DEL", args...).Int64()
}

// Check raises the mark and writes nothing: the holder's first operation, before
// it reads. Read from the same server then, not from a replica. A write that
// follows needs a check of its own.
func (g *Guard) Check(ctx context.Context, resource string, token uint64) error {
	return g.Run(ctx, resource, token, g.nothing, nil).Err()
}

// CountDuplicate counts an execution that the application found to be a duplicate.
func (g *Guard) CountDuplicate() { g.tally.CountDuplicate() }

// Counts returns what was counted. A token whose script failed is not.
func (g *Guard) Counts() fence.Counts { return g.tally.Counts() }

// markKey returns the key of the mark of resource. It has the hash slot of the key
// resource: it repeats its hash tag, or makes the whole of it one.
func markKey(resource string) string {
	_, rest, found := strings.Cut(resource, "{")
	if found && strings.Index(rest, "}") > 0 {
		return resource + "::guard"
	}
	return "{" + resource + "}:guard"
}

// reply returns the text of err if the server answered it.
func reply(err error) (text string, isReply bool) {
	var r redis.Error
	if !errors.As(err, &r) {
		return "", false
	}
	return r.Error(), true
}

func failed(ctx context.Context, err error) *redis.Cmd {
	cmd := redis.NewCmd(ctx)
	cmd.SetErr(err)
	return cmd
}
