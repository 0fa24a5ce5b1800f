package main

import (
	"context"
	"crypto/rand"
	"errors"
	mathrand "math/rand/v2"
	"time"

	"github.com/redis/go-redis/v9"
)

// plainLocker is the lock a team writes for itself in an afternoon: SET NX PX on every node in a goroutine each, the
// first majority decides, a compare-and-delete script releases. It has no drift, no fencing token and no clean-up.
type plainLocker struct {
	nodes []*redis.Client
	ttl   time.Duration
}

type plainHeld struct {
	locker          *plainLocker
	resource, owner string
}

var plainRelease = redis.NewScript(`if redis.call("GET", KEYS[1]) == ARGV[1] then return redis.call("DEL", KEYS[1]) end return 0`)

func (p *plainLocker) acquire(ctx context.Context, resource string) (held, error) {
	for {
		lock := &plainHeld{p, resource, rand.Text()}
		won := p.vote(ctx, func(ctx context.Context, node *redis.Client) bool {
			ok, err := node.SetNX(ctx, resource, lock.owner, p.ttl).Result()
			return ok && err == nil
		})
		if won {
			return lock, nil
		}
		_ = lock.Release(context.WithoutCancel(ctx)) // whatever minority it got
		select {
		case <-ctx.Done():
			return nil, ctx.Err()
		case <-time.After(50*time.Millisecond + mathrand.N(200*time.Millisecond)): // as redsync does
		}
	}
}

func (h *plainHeld) Release(ctx context.Context) error {
	won := h.locker.vote(ctx, func(ctx context.Context, node *redis.Client) bool {
		n, err := plainRelease.Run(ctx, node, []string{h.resource}, h.owner).Int()
		return n == 1 && err == nil
	})
	if !won {
		return errors.New("not held by a majority")
	}
	return nil
}

// vote asks every node at once and reports whether a majority said yes, as soon as that is certain; the stragglers
// end by themselves.
func (p *plainLocker) vote(ctx context.Context, ask func(context.Context, *redis.Client) bool) bool {
	answers := make(chan bool, len(p.nodes))
	for _, node := range p.nodes {
		go func() {
			ctx, cancel := context.WithTimeout(ctx, p.ttl/20)
			defer cancel()
			answers <- ask(ctx, node)
		}()
	}
	quorum := len(p.nodes)/2 + 1
	for yes, no := 0, 0; ; {
		if <-answers {
			yes++
		} else {
			no++
		}
		switch {
		case yes == quorum:
			return true
		case no > len(p.nodes)-quorum:
			return false
		}
	}
}

func (p *plainLocker) close() error { return closeAll(p.nodes) }
