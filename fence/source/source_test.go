package source_test

import (
	"context"
	"fmt"
	"log"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/alicebob/miniredis/v2"
	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/quorumlock/redlock"
	"github.com/quorumlock/redlock/fence/source"
	"github.com/quorumlock/redlock/internal/redistest"
)

func ExampleCounter() {
	server := miniredis.NewMiniRedis() // stands for the instance and for the counter's Redis
	if err := server.Start(); err != nil {
		log.Fatal(err)
	}
	defer server.Close()
	client := redis.NewClient(&redis.Options{Addr: server.Addr()})
	defer client.Close()

	counter, err := source.NewCounter(client, "fencing:")
	if err != nil {
		log.Fatal(err)
	}
	locker, err := redlock.Open([]string{"redis://" + server.Addr()}, redlock.WithFencing(counter), redlock.WithQuarantine(0))
	if err != nil {
		log.Fatal(err)
	}
	defer locker.Close()
	ctx := context.Background()
	for range 2 {
		lock, err := locker.Acquire(ctx, "invoice-42", 10*time.Second)
		if err != nil {
			log.Fatal(err)
		}
		token, err := client.Get(ctx, "fencing:invoice-42").Uint64()
		fmt.Println(lock.FencingToken() == token, err)
		_ = lock.Release(ctx)
	}
	// Output:
	// true <nil>
	// true <nil>
}

// etcd stands for a client of etcd.
type etcd struct{ revision int64 }

type putResponse struct{ Header struct{ Revision int64 } }

func (e *etcd) Put(context.Context, string, string) (*putResponse, error) {
	e.revision++
	r := &putResponse{}
	r.Header.Revision = e.revision
	return r, nil
}

// The revision of etcd, which every change moves forward.
func ExampleFunc() {
	client := &etcd{revision: 41}
	revision := source.Func(func(ctx context.Context, resource string) (uint64, error) {
		put, err := client.Put(ctx, "fencing/"+resource, "")
		if err != nil {
			return 0, err
		}
		return uint64(put.Header.Revision), nil
	})
	fmt.Println(revision.Token(context.Background(), "invoice-42"))
	// Output: 42 <nil>
}

// zooKeeper stands for a connection to ZooKeeper.
type zooKeeper struct{ zxid int64 }

type stat struct{ Mzxid int64 }

func (z *zooKeeper) Set(string, []byte, int32) (*stat, error) {
	z.zxid++
	return &stat{z.zxid}, nil
}

// The zxid of a change to one node: ZooKeeper numbers all changes in one order.
func ExampleFunc_zooKeeper() {
	conn := &zooKeeper{zxid: 7<<32 + 41}
	zxid := source.Func(func(context.Context, string) (uint64, error) {
		stat, err := conn.Set("/fencing", nil, -1) // the node was created once
		if err != nil {
			return 0, err
		}
		return uint64(stat.Mzxid), nil
	})
	fmt.Println(zxid.Token(context.Background(), "invoice-42"))
	// Output: 30064771114 <nil>
}

var (
	_ redlock.FencingSource = source.Func(nil)
	_ redlock.FencingSource = (*source.Counter)(nil)
	_ redlock.FencingSource = (*source.SQL)(nil)
)

func open(t *testing.T) (*source.Counter, *redistest.Server) {
	t.Helper()
	server := redistest.Start(t)
	client := redis.NewClient(&redis.Options{Addr: server.Addr()})
	t.Cleanup(func() { _ = client.Close() })
	counter, err := source.NewCounter(client, "fencing:")
	require.NoError(t, err)
	return counter, server
}

func next(t *testing.T, counter *source.Counter, resource string) uint64 {
	t.Helper()
	token, err := counter.Token(t.Context(), resource)
	require.NoError(t, err)
	return token
}

func TestEachTokenIsLargerThanAllBefore(t *testing.T) {
	counter, _ := open(t)
	var mu sync.Mutex
	seen := map[uint64]bool{}
	var wg sync.WaitGroup
	for range 16 {
		wg.Go(func() {
			var last uint64
			for range 50 {
				token, err := counter.Token(t.Context(), "r")
				mu.Lock()
				if err != nil || token <= last || seen[token] {
					t.Errorf("%d after %d: %v", token, last, err)
				}
				seen[token] = true
				mu.Unlock()
				last = token
			}
		})
	}
	wg.Wait()
	require.Len(t, seen, 800)
}

func TestACounterThatWasLostGoesOnAboveWhatItIssued(t *testing.T) {
	counter, server := open(t)
	last := next(t, counter, "r")
	for _, lose := range []func() error{
		func() error { _, err := server.Do("FLUSHALL"); return err },
		func() error { _, err := server.Do("DEL", "fencing:r"); return err },
		server.Restart, // empty
	} {
		require.NoError(t, lose())
		token := next(t, counter, "r")
		require.Greater(t, token, last)
		last = token
	}
}

// The clock is a floor and no more: a counter that is ahead of it counts.
func TestAClockThatIsBehindDoesNotMatterWhileTheCounterIsThere(t *testing.T) {
	counter, server := open(t)
	ahead := uint64(time.Now().Add(time.Hour).UnixMicro()) //nolint:gosec // after 1970
	server.MustDo(t, "SET", "fencing:r", fmt.Sprint(ahead))
	require.Equal(t, ahead+1, next(t, counter, "r"))
	require.Equal(t, ahead+2, next(t, counter, "r"))
	require.InDelta(t, time.Now().UnixMicro(), next(t, counter, "other"), 60e6)
	require.InDelta(t, (24 * time.Hour).Milliseconds(), server.MustDo(t, "PTTL", "fencing:r"), 60_000)
}

func TestACounterThatHoldsNoNumberFails(t *testing.T) {
	counter, server := open(t)
	for _, value := range []string{"", "x", "-1", "1e3", "nan", "9007199254740991", "18446744073709551615"} {
		server.MustDo(t, "SET", "fencing:r", value)
		token, err := counter.Token(t.Context(), "r")
		require.ErrorContains(t, err, "NOTOKEN", "%q", value)
		require.Zero(t, token)
		require.Equal(t, value, server.MustDo(t, "GET", "fencing:r"))
	}
	server.MustDo(t, "SET", "fencing:r", "9007199254740990")
	require.Equal(t, uint64(1<<53-1), next(t, counter, "r"), "the last one")
	server.MustDo(t, "DEL", "fencing:r")
	server.MustDo(t, "LPUSH", "fencing:r", "1")
	_, err := counter.Token(t.Context(), "r")
	require.ErrorContains(t, err, "WRONGTYPE")
}

func TestALockerTakesItsTokens(t *testing.T) {
	counter, server := open(t)
	locker, err := redlock.Open(redistest.Addrs(redistest.StartN(t, 3)), redlock.WithFencing(counter), redlock.WithQuarantine(0))
	require.NoError(t, err)
	defer locker.Close()
	var last uint64
	for range 5 {
		lock, err := locker.Acquire(t.Context(), "r", 10*time.Second)
		require.NoError(t, err)
		require.Greater(t, lock.FencingToken(), last)
		last = lock.FencingToken()
		require.NoError(t, lock.Release(t.Context()))
	}
	require.NoError(t, server.Kill())
	_, err = locker.TryAcquire(t.Context(), "r", time.Second)
	require.Error(t, err, "no token, no lock")
}

func TestBadNamesAreRefused(t *testing.T) {
	client := redis.NewClient(&redis.Options{Addr: "127.0.0.1:1"})
	defer client.Close()
	for _, prefix := range []string{"", "{", "a}b", strings.Repeat("x", 1025)} {
		_, err := source.NewCounter(client, prefix)
		require.Error(t, err, "%q", prefix)
	}
	_, err := source.NewCounter(nil, "fencing:")
	require.ErrorContains(t, err, "nil")

	for _, name := range []string{"", "a b", "a'b", `a"b`, "a;b", "a.b.c", "1a", "a\n", strings.Repeat("a", 64)} {
		_, err := source.Sequence(nil, name)
		require.ErrorContains(t, err, "is no name", "%q", name)
	}
	_, err = source.Sequence(nil, "fence")
	require.ErrorContains(t, err, "nil")
	_, err = source.Query(nil, "SELECT 1")
	require.ErrorContains(t, err, "nil")
}
