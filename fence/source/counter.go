package source

import (
	"context"
	_ "embed"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"time"

	"github.com/redis/go-redis/v9"
)

//go:embed counter.lua
var count string

// keep is how long a counter outlives its last token. The clock takes over then.
const keep = 24 * time.Hour

// A Counter counts on one Redis: each token is one more than the last, and at
// least the server's clock in microseconds. So a counter that was lost (a restart
// without persistence, a failover, FLUSHALL, a day without use) goes on above all
// that it has issued, and not back at 1.
//
// What can still make it go back: a counter lost together with a clock that stands
// behind the moment of the last token, after a failover to a server whose clock is
// slow, or a clock that was once far ahead. Two masters at the same time, after a
// split, each count. And a counter that is set by hand to what is no number
// fails every acquire until it is deleted.
//
// It needs Redis 5 or later and, where ACLs are in use, the rights to EVALSHA,
// EVAL, GET, SET and TIME.
type Counter struct {
	client redis.UniversalClient
	prefix string
	script *redis.Script
}

// NewCounter returns a counter for each resource, under the key prefix+resource.
// A prefix that is empty, and would put the counter on the lock's key, one with a
// brace, or one of more than 1 KiB is refused. The client stays the caller's.
func NewCounter(client redis.UniversalClient, prefix string) (*Counter, error) {
	switch {
	case client == nil:
		return nil, errors.New("source: NewCounter: the client is nil")
	case prefix == "":
		return nil, errors.New("source: NewCounter: the prefix is empty")
	case strings.ContainsAny(prefix, "{}") || len(prefix) > 1<<10:
		return nil, fmt.Errorf("source: NewCounter: the prefix %.64q has a brace, or more than 1 KiB", prefix)
	}
	return &Counter{client, prefix, redis.NewScript(count)}, nil
}

// Token implements redlock.FencingSource. A reply that is lost costs a number.
func (c *Counter) Token(ctx context.Context, resource string) (uint64, error) {
	text, err := c.script.Run(ctx, c.client, []string{c.prefix + resource}, keep.Milliseconds()).Text()
	if err != nil {
		return 0, fmt.Errorf("source: counter %.64q: %w", c.prefix+resource, err)
	}
	token, err := strconv.ParseUint(text, 10, 64)
	if err != nil || token == 0 || token >= maxToken {
		return 0, fmt.Errorf("source: counter %.64q: %.40q is no token", c.prefix+resource, text)
	}
	return token, nil
}
