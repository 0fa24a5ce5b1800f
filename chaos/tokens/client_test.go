package tokens

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"os/exec"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/quorumlock/redlock"
	"github.com/quorumlock/redlock/chaos/history"
)

// clientConfig is the environment variable that makes this binary a client.
const clientConfig = "REDLOCK_CHAOS_CLIENT"

// A client is one process that locks resources as fast as it can.
type client struct {
	ID         int
	Endpoints  []string
	Goroutines int
	Resources  int
	TTL        time.Duration
	Extend     bool // some locks
	For        time.Duration
	Log        string // the file that gets its history, a line of JSON for each operation
}

// start starts c as a process of its own, and returns what waits for its end and
// returns its history.
func (c client) start(t *testing.T) (wait func() []history.Op) {
	t.Helper()
	config, err := json.Marshal(c)
	require.NoError(t, err)
	cmd := exec.Command(os.Args[0])
	cmd.Env = append(os.Environ(), clientConfig+"="+string(config))
	cmd.Stderr = os.Stderr
	require.NoError(t, cmd.Start())
	t.Cleanup(func() { _ = cmd.Process.Kill() })
	return func() []history.Op {
		require.NoError(t, cmd.Wait(), "client %d", c.ID)
		f, err := os.Open(c.Log)
		require.NoError(t, err)
		defer f.Close()
		var ops []history.Op
		for d := json.NewDecoder(bufio.NewReader(f)); d.More(); {
			var o history.Op
			require.NoError(t, d.Decode(&o))
			ops = append(ops, o)
		}
		return ops
	}
}

// runClient is the process.
func runClient(config string) int {
	var c client
	if err := json.Unmarshal([]byte(config), &c); err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	if err := c.run(); err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	return 0
}

func (c client) run() error {
	f, err := os.Create(c.Log)
	if err != nil {
		return err
	}
	defer f.Close()
	out := bufio.NewWriterSize(f, 1<<20)
	var mu sync.Mutex
	log := json.NewEncoder(out)
	record := func(o history.Op) {
		mu.Lock()
		defer mu.Unlock()
		_ = log.Encode(o) // an error comes back from Flush
	}

	locker, err := redlock.Open(c.Endpoints)
	if err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(context.Background(), c.For)
	defer cancel()
	var wg sync.WaitGroup
	for g := range c.Goroutines {
		wg.Go(func() { c.work(ctx, locker, c.ID*1000+g, record) })
	}
	wg.Wait()
	if err := locker.Close(); err != nil && !errors.Is(err, redlock.ErrNoQuorum) {
		return err
	}
	return out.Flush()
}

func (c client) work(ctx context.Context, locker *redlock.Locker, id int, record func(history.Op)) {
	for ctx.Err() == nil {
		resource := fmt.Sprint("r", rand.N(c.Resources))
		o := history.Op{Client: id, Resource: resource, Kind: history.Acquire, Call: time.Now().UnixNano()}
		lock, err := locker.TryAcquire(ctx, resource, c.TTL)
		if err != nil {
			continue
		}
		o.Return, o.Token = time.Now().UnixNano(), lock.FencingToken()
		record(o)
		if c.Extend && rand.N(4) == 0 {
			o.Kind, o.Call = history.Extend, time.Now().UnixNano()
			if lock.Extend(ctx, c.TTL) == nil {
				o.Return = time.Now().UnixNano()
				record(o)
			}
		}
		if rand.N(50) > 0 { // else it expires
			_ = lock.Release(ctx)
		}
	}
}
