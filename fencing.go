package redlock

import (
	"container/list"
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"time"
)

// A FencingSource issues fencing tokens in place of the quorum.
type FencingSource interface {
	// Token returns a number for a new lock of resource that is larger than
	// every number it returned for that resource before, to anybody, and below
	// 2^53. ctx ends with the validity of the lock. An error fails the acquire.
	Token(ctx context.Context, resource string) (uint64, error)
}

// maxToken bounds fencing tokens: below it, a double (a number in Lua, JSON and
// JavaScript) counts exactly.
const maxToken = 1 << 53

const fenceSuffix = ":fence"

// fenceKey returns the key of the fence that belongs to the lock key
// prefix+resource. It starts with the prefix, so that one ACL pattern covers
// both, and it has the hash slot of the lock key: it repeats its hash tag, or
// makes the whole of it one.
func fenceKey(prefix, resource string) string {
	key := prefix + resource
	if hasHashTag(key) {
		return key + ":" + fenceSuffix
	}
	return prefix + "{" + key + "}" + fenceSuffix
}

// hasHashTag reports whether a Redis cluster hashes only a part of key: that
// between the first brace and the next closing one, unless it is empty.
func hasHashTag(key string) bool {
	_, rest, found := strings.Cut(key, "{")
	return found && strings.Index(rest, "}") > 0
}

// isFenceKey reports whether key has the shape of a fence key.
func isFenceKey(key string) bool {
	return strings.HasSuffix(key, fenceSuffix) && strings.Contains(key, "{")
}

// canShareSlot reports whether there is a fence key in the hash slot of key.
func canShareSlot(key string) bool {
	return hasHashTag(key) || !strings.Contains(key, "}")
}

// Seeds.

const (
	maxLead   = 100 * time.Millisecond
	leadDecay = 100 // the lead loses 1/100 of the time that goes by
)

// seeds makes the numbers with which acquires seed a fence: microseconds since
// 1970, moved forward by how far the fences of others ran ahead of this clock
// lately. With it, the seeds of clients whose clocks differ come in the order in
// which they ask, most of the time; and a larger one puts all instances on one
// level in one round trip. Order never rests on that.
type seeds struct {
	mu   sync.Mutex
	lead time.Duration
	at   time.Time // when lead was learned
}

func (s *seeds) leadLocked(now time.Time) time.Duration {
	return max(s.lead-elapsed(s.at, now)/leadDecay, 0)
}

// next returns the seed of an acquire at now.
func (s *seeds) next(now time.Time) uint64 {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.lead > 0 {
		now = now.Add(s.leadLocked(now))
	}
	return uint64(now.UnixMicro()) //nolint:gosec // after 1970
}

// learn takes a fence value that an instance answered to a question of now.
func (s *seeds) learn(fence uint64, now time.Time) {
	ahead := time.Duration(int64(fence)-now.UnixMicro()) * time.Microsecond //nolint:gosec // below 2^53
	s.mu.Lock()
	defer s.mu.Unlock()
	if now.Before(s.at) {
		now = s.at // a round that took longer than the last one
	}
	if ahead > s.leadLocked(now) {
		s.lead, s.at = min(ahead, maxLead), now
	}
}

// External sources.

const maxRemembered = 10_000

// sourceGuard holds a FencingSource to its promise, as far as one Locker sees
// it: for each of the last 10,000 resources it remembers the largest token.
type sourceGuard struct {
	source FencingSource
	mu     sync.Mutex
	last   map[string]*list.Element
	order  *list.List // of sourceToken, the oldest first
}

type sourceToken struct {
	resource string
	token    uint64
}

func newSourceGuard(source FencingSource) *sourceGuard {
	return &sourceGuard{source: source, last: map[string]*list.Element{}, order: list.New()}
}

// token asks the source once, and returns when ctx ends at the latest, whatever
// the source does.
func (g *sourceGuard) token(ctx context.Context, resource string) (uint64, error) {
	type reply struct {
		token uint64
		err   error
	}
	replies := make(chan reply, 1)
	go func() {
		defer func() {
			if p := recover(); p != nil {
				replies <- reply{err: fmt.Errorf("panic: %v", p)}
			}
		}()
		token, err := g.source.Token(ctx, resource)
		replies <- reply{token, err}
	}()
	select {
	case r := <-replies:
		if r.err != nil {
			return 0, notTheCallers(r.err)
		}
		return r.token, g.check(resource, r.token)
	case <-ctx.Done():
		return 0, context.Cause(ctx)
	}
}

// notTheCallers hides that err is a context's error: it is not the caller's
// context that ended.
func notTheCallers(err error) error {
	if errors.Is(err, context.Canceled) || errors.Is(err, context.DeadlineExceeded) {
		return errors.New(err.Error())
	}
	return err
}

// check remembers token, or says why it is none.
func (g *sourceGuard) check(resource string, token uint64) error {
	switch {
	case token == 0:
		return errors.New("the token is 0")
	case token >= maxToken:
		return fmt.Errorf("the token %d is not below 2^53", token)
	}
	g.mu.Lock()
	defer g.mu.Unlock()
	e := g.last[resource]
	if e == nil {
		g.last[resource] = g.order.PushBack(&sourceToken{resource, token})
		if g.order.Len() > maxRemembered {
			oldest, _ := g.order.Remove(g.order.Front()).(*sourceToken)
			delete(g.last, oldest.resource)
		}
		return nil
	}
	last, _ := e.Value.(*sourceToken)
	if token <= last.token {
		return fmt.Errorf("the token %d is not larger than %d, the one before", token, last.token)
	}
	last.token = token
	g.order.MoveToBack(e)
	return nil
}
