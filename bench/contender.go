package main

import (
	"context"
	"fmt"
	"io"
	"time"

	"github.com/quorumlock/redlock/chaos/compare/client"
)

// contenderCommand is the subcommand that makes this binary a client process of the comparison in ../chaos/compare,
// which may not depend on other lock libraries itself: "contender NAME", and then the lines that package workload
// tells of.
const contenderCommand = "contender"

func contend(ctx context.Context, args []string, in io.Reader, out io.Writer) error {
	if len(args) != 1 {
		return fmt.Errorf("%s takes the name of one contender, not %q", contenderCommand, args)
	}
	cs, err := choose(contenders(), args[0])
	if err != nil {
		return err
	}
	return client.Serve(ctx, func(j client.Job) (client.Locker, error) {
		l, err := cs[0].open(j.Endpoints, j.TTL)
		if err != nil {
			return nil, err
		}
		return peer{l}, nil
	}, in, out)
}

// A peer is a contender with leases that can be looked at and extended: redsync.
type peer struct{ locker }

func (p peer) Acquire(ctx context.Context, resource string) (client.Lease, error) {
	h, err := p.acquire(ctx, resource)
	if err != nil {
		return nil, err
	}
	lease, ok := h.(redsyncHeld)
	if !ok {
		_ = h.Release(ctx)
		return nil, fmt.Errorf("%T does not tell when it ends", h)
	}
	return peerLease{lease}, nil
}

func (p peer) Close() error { return p.close() }

type peerLease struct{ redsyncHeld }

func (l peerLease) Until() time.Time { return l.Mutex.Until() }
func (l peerLease) Token() uint64    { return 0 } // it has none

func (l peerLease) Extend(ctx context.Context) error {
	if ok, err := l.ExtendContext(ctx); !ok {
		return fmt.Errorf("not extended on a majority: %w", err)
	}
	return nil
}
