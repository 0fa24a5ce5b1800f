package interop

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"testing"
	"time"

	"github.com/bsm/redislock"
	"github.com/go-redsync/redsync/v4"
	redsyncredis "github.com/go-redsync/redsync/v4/redis"
	redsyncgo "github.com/go-redsync/redsync/v4/redis/goredis/v9"
	"github.com/redis/go-redis/v9"
	"github.com/redis/rueidis"
	"github.com/redis/rueidis/rueidislock"
	"github.com/stretchr/testify/require"

	"github.com/quorumlock/redlock"
)

// ttl is that of all locks here: far longer than a test holds one.
const ttl = 30 * time.Second

// A peer is one process's way to the lock, with some library.
type peer interface {
	// try asks once. The lock is given up with unlock.
	try(ctx context.Context, resource string) (unlock func() error, err error)
}

// A library makes peers on the servers at addrs.
type library struct {
	name   string
	single bool // it knows one server only
	prefix string
	open   func(t *testing.T, addrs []string) peer
}

const ours = "redlock"

// libraries are all that share the lock key with us.
var libraries = []library{
	{name: ours, open: openOurs},
	{name: "redsync", open: openRedsync},
	{name: "node-redlock 4", open: openNode("4")},
	{name: "node-redlock 5", open: openNode("5")},
	{name: "bsm/redislock", single: true, open: openRedislock},
	{name: "rueidislock", single: true, prefix: "rueidislock:0:", open: openRueidislock},
}

func named(name string) library {
	for _, l := range libraries {
		if l.name == name {
			return l
		}
	}
	panic(name)
}

// openLocker opens a Locker on servers that have just been started.
func openLocker(t *testing.T, addrs []string, opts ...redlock.Option) *redlock.Locker {
	t.Helper()
	l, err := redlock.Open(addrs, append(opts, redlock.WithQuarantine(0))...)
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, l.Close()) })
	return l
}

type oursPeer struct{ *redlock.Locker }

func openOurs(t *testing.T, addrs []string) peer { return oursPeer{openLocker(t, addrs)} }

func (p oursPeer) try(ctx context.Context, resource string) (func() error, error) {
	lock, err := p.TryAcquire(ctx, resource, ttl)
	if err != nil {
		return nil, err
	}
	return func() error { return lock.Release(ctx) }, nil
}

func client(t *testing.T, addr string) *redis.Client {
	t.Helper()
	c := redis.NewClient(&redis.Options{Addr: addr})
	t.Cleanup(func() { _ = c.Close() })
	return c
}

type redsyncPeer struct{ *redsync.Redsync }

func openRedsync(t *testing.T, addrs []string) peer {
	var pools []redsyncredis.Pool
	for _, a := range addrs {
		pools = append(pools, redsyncgo.NewPool(client(t, a)))
	}
	return redsyncPeer{redsync.New(pools...)}
}

func (p redsyncPeer) try(ctx context.Context, resource string) (func() error, error) {
	m := p.NewMutex(resource, redsync.WithExpiry(ttl))
	if err := m.TryLockContext(ctx); err != nil {
		return nil, err
	}
	return func() error {
		ok, err := m.UnlockContext(ctx)
		if err == nil && !ok {
			err = errors.New("redsync: not unlocked")
		}
		return err
	}, nil
}

type redislockPeer struct{ *redislock.Client }

func openRedislock(t *testing.T, addrs []string) peer {
	return redislockPeer{redislock.New(client(t, addrs[0]))}
}

func (p redislockPeer) try(ctx context.Context, resource string) (func() error, error) {
	lock, err := p.Obtain(ctx, resource, ttl, &redislock.Options{Metadata: "who I am"})
	if err != nil {
		return nil, err
	}
	return func() error { return lock.Release(ctx) }, nil
}

type rueidislockPeer struct{ rueidislock.Locker }

func openRueidislock(t *testing.T, addrs []string) peer {
	l, err := rueidislock.NewLocker(rueidislock.LockerOption{
		ClientOption: rueidis.ClientOption{InitAddress: addrs, ForceSingleClient: true},
		KeyValidity:  ttl,
		KeyMajority:  1, // one key: what a single instance has
		TryNextAfter: time.Second,
	})
	require.NoError(t, err)
	t.Cleanup(l.Close)
	return rueidislockPeer{l}
}

func (p rueidislockPeer) try(ctx context.Context, resource string) (func() error, error) {
	held, cancel, err := p.TryWithContext(ctx, resource)
	if err != nil {
		return nil, err
	}
	return func() error {
		err := held.Err()
		cancel()
		return err
	}, nil
}

// A nodePeer is a process that runs node/peer.mjs.
type nodePeer struct {
	in  io.Writer
	out *bufio.Scanner
}

// needNode skips the test, loudly, where there is no node or its packages are not
// installed (npm ci, in the folder node); with REDLOCK_REQUIRE_NODE=1 it fails it.
func needNode(t *testing.T) {
	t.Helper()
	_, err := exec.LookPath("node")
	if err == nil {
		_, err = os.Stat("node/node_modules/redlock5")
	}
	switch {
	case err == nil:
	case os.Getenv("REDLOCK_REQUIRE_NODE") == "1":
		t.Fatalf("REDLOCK_REQUIRE_NODE=1, and node or its packages (npm ci --prefix interop/node) are missing: %v", err)
	default:
		t.Skipf("SKIPPED, NOT PASSED: node or its packages (npm ci --prefix interop/node) are missing: %v", err)
	}
}

func openNode(version string) func(t *testing.T, addrs []string) peer {
	return func(t *testing.T, addrs []string) peer {
		needNode(t)
		cmd := exec.Command("node", append([]string{"peer.mjs", version}, addrs...)...)
		cmd.Dir, cmd.Stderr = "node", os.Stderr
		in, err := cmd.StdinPipe()
		require.NoError(t, err)
		out, err := cmd.StdoutPipe()
		require.NoError(t, err)
		require.NoError(t, cmd.Start())
		t.Cleanup(func() {
			_ = in.Close() // it ends then
			require.NoError(t, cmd.Wait())
		})
		return &nodePeer{in, bufio.NewScanner(out)}
	}
}

func (p *nodePeer) do(request map[string]any) error {
	line, err := json.Marshal(request)
	if err != nil {
		return err
	}
	if _, err := fmt.Fprintf(p.in, "%s\n", line); err != nil {
		return err
	}
	if !p.out.Scan() {
		return errors.Join(errors.New("node has ended"), p.out.Err())
	}
	var answer struct {
		OK    bool
		Error string
	}
	if err := json.Unmarshal(p.out.Bytes(), &answer); err != nil {
		return err
	}
	if !answer.OK {
		return errors.New(answer.Error)
	}
	return nil
}

func (p *nodePeer) try(_ context.Context, resource string) (func() error, error) {
	if err := p.do(map[string]any{"op": "lock", "resource": resource, "ttl": ttl.Milliseconds()}); err != nil {
		return nil, err
	}
	return func() error { return p.do(map[string]any{"op": "unlock"}) }, nil
}
