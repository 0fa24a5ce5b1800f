package redisfence_test

import (
	"context"
	"fmt"
	"math/rand/v2"
	"slices"
	"strconv"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/quorumlock/redlock/fence"
	"github.com/quorumlock/redlock/fence/redisfence"
	"github.com/quorumlock/redlock/internal/redistest"
)

func open(t *testing.T, opts ...redisfence.Option) (*redisfence.Guard, *redis.Client, *redistest.Server) {
	t.Helper()
	server := redistest.Start(t)
	client := redis.NewClient(&redis.Options{Addr: server.Addr()})
	t.Cleanup(func() { _ = client.Close() })
	guard, err := redisfence.New(client, opts...)
	require.NoError(t, err)
	return guard, client, server
}

func TestATokenPassesIffItIsAtLeastTheLargestSeen(t *testing.T) {
	guard, _, server := open(t)
	marks := map[string]uint64{}
	for range 2_000 {
		resource, token := fmt.Sprint(rand.IntN(5)), 1+rand.Uint64N(1_000)
		if rand.IntN(2) == 0 { // the edge of what a double counts
			token = 1<<53 - token
		}
		err := guard.Set(t.Context(), resource, token, resource, token, 0)
		if token >= marks[resource] {
			require.NoError(t, err)
			marks[resource] = token
		} else {
			require.Equal(t, &fence.StaleError{Resource: resource, Token: token, Current: marks[resource]}, err)
		}
		require.Equal(t, fmt.Sprint(marks[resource]), server.MustDo(t, "GET", resource))
	}
	guard.CountDuplicate()
	var counter fence.Counter = guard
	counts := counter.Counts()
	require.Equal(t, uint64(2_000), counts.Accepted+counts.Stale)
	require.Positive(t, counts.Stale)
	require.Equal(t, uint64(1), counts.Duplicates)
}

func TestNeighboursBelow2To53AreToldApart(t *testing.T) {
	guard, _, _ := open(t)
	require.NoError(t, guard.Check(t.Context(), "r", 1<<53-1))
	require.ErrorIs(t, guard.Check(t.Context(), "r", 1<<53-2), fence.ErrStale)
	require.NoError(t, guard.Check(t.Context(), "s", 9)) // a shorter number, and a larger text
	require.NoError(t, guard.Check(t.Context(), "s", 10))
	require.ErrorIs(t, guard.Check(t.Context(), "s", 9), fence.ErrStale)
}

func TestNoTokenIsRefusedBeforeTheServerIsAsked(t *testing.T) {
	guard, _, server := open(t)
	before := server.MustDo(t, "DBSIZE")
	for _, token := range []uint64{0, 1 << 53, 1<<64 - 1} {
		require.ErrorIs(t, guard.Check(t.Context(), "r", token), fence.ErrNoToken)
		require.ErrorIs(t, guard.Set(t.Context(), "r", token, "r", "x", 0), fence.ErrNoToken)
		_, err := guard.Del(t.Context(), "r", token, "r")
		require.ErrorIs(t, err, fence.ErrNoToken)
	}
	require.ErrorContains(t, guard.Check(t.Context(), "", 1), "empty")
	require.ErrorContains(t, guard.Run(t.Context(), "r", 1, nil, nil).Err(), "NewScript")
	require.ErrorContains(t, guard.Set(t.Context(), "r", 1, "r", "x", time.Microsecond), "ttl")
	require.ErrorContains(t, guard.Set(t.Context(), "r", 1, "r", "x", -1), "ttl")
	require.Equal(t, before, server.MustDo(t, "DBSIZE"))
}

func TestAMarkThatIsNoTokenRefusesAndStays(t *testing.T) {
	guard, _, server := open(t)
	for _, mark := range []string{
		"", "x", "-1", "+1", "1.5", "1e3", "0x10", "nan", "inf", " 1", "1 ", "1\n", "\x00", "1\r\n-ERR",
		"9007199254740992", "9007199254740993", "18446744073709551616", "00000000000000001",
	} {
		server.MustDo(t, "SET", "{r}:guard", mark)
		err := guard.Set(t.Context(), "r", 1<<53-1, "r", "x", 0)
		require.ErrorContains(t, err, "the mark is no token", "%q", mark)
		require.NotErrorIs(t, err, fence.ErrStale)
		require.Nil(t, server.MustDo(t, "GET", "r"))
		require.Equal(t, mark, server.MustDo(t, "GET", "{r}:guard"))
	}
	server.MustDo(t, "DEL", "{r}:guard")
	server.MustDo(t, "LPUSH", "{r}:guard", "7")
	err := guard.Set(t.Context(), "r", 1<<53-1, "r", "x", 0)
	require.ErrorContains(t, err, "WRONGTYPE")
	require.Nil(t, server.MustDo(t, "GET", "r"))
	require.Zero(t, guard.Counts())
}

func TestNamesKeysAndValuesAreBinarySafe(t *testing.T) {
	guard, client, _ := open(t)
	for _, s := range []string{"\x00", "\xff\xfe", "a\r\nb", "a b", "}{", "{}", "{a}b", "a}b", "{x}:guard", "日本"} {
		require.NoError(t, guard.Set(t.Context(), s, 2, s, s, 0))
		require.Equal(t, s, client.Get(t.Context(), s).Val())
		require.ErrorIs(t, guard.Set(t.Context(), s, 1, s, "late", 0), fence.ErrStale)
		require.Equal(t, s, client.Get(t.Context(), s).Val())
		n, err := guard.Del(t.Context(), s, 2, s, "absent")
		require.NoError(t, err)
		require.Equal(t, int64(1), n)
	}
}

func TestAScriptSeesItsOwnKeysAndArguments(t *testing.T) {
	guard, _, _ := open(t)
	script, err := redisfence.NewScript(`return {#KEYS, #ARGV, KEYS[1] or 'none', ARGV[#ARGV] or 'none', type(rawget(_G, 'key')), type(rawget(_G, 'token'))}`)
	require.NoError(t, err)
	require.Equal(t, []any{int64(2), int64(3), "a", "3", "nil", "nil"},
		guard.Run(t.Context(), "r", 1, script, []string{"a", "b"}, 1, 2, 3).Val())
	require.Equal(t, []any{int64(0), int64(0), "none", "none", "nil", "nil"}, guard.Run(t.Context(), "r", 1, script, nil).Val())

	keys, args := make([]string, 1, 8), make([]any, 1, 8) // with room behind that is the caller's
	keys[0], args[0] = "k", "v"
	require.NoError(t, guard.Run(t.Context(), "r", 1, script, keys, args...).Err())
	require.Empty(t, keys[:2][1])
	require.Nil(t, args[:2][1])

	_, err = redisfence.NewScript("#!lua flags=no-writes\nreturn 1")
	require.ErrorContains(t, err, "#!")
}

func TestAScriptsErrorIsNotStale(t *testing.T) {
	guard, _, server := open(t)
	err := guard.Do(t.Context(), "r", 7, []string{"r"}, "NOSUCH", "r").Err()
	require.Error(t, err)
	require.NotErrorIs(t, err, fence.ErrStale)
	require.Equal(t, "7", server.MustDo(t, "GET", "{r}:guard"), "as the documentation says")
	liar, err := redisfence.NewScript(`return redis.error_reply('STALETOKEN 3')`)
	require.NoError(t, err)
	err = guard.Run(t.Context(), "r", 7, liar, nil).Err()
	require.ErrorContains(t, err, "no sense")
	require.NotErrorIs(t, err, fence.ErrStale)
	require.Equal(t, redis.Nil, guard.Do(t.Context(), "r", 7, []string{"r"}, "GET", "r").Err(), "nil is a reply")
	require.Equal(t, fence.Counts{Accepted: 1}, guard.Counts())
}

func TestAServerThatIsFullTakesNeitherMarkNorWrite(t *testing.T) {
	guard, _, server := open(t)
	require.NoError(t, guard.Set(t.Context(), "r", 1, "r", "before", 0))
	server.MustDo(t, "CONFIG", "SET", "maxmemory", "1")
	err := guard.Set(t.Context(), "r", 2, "r", "after", 0)
	require.ErrorContains(t, err, "OOM")
	require.NotErrorIs(t, err, fence.ErrStale)
	require.Equal(t, "before", server.MustDo(t, "GET", "r"))
	require.Equal(t, "1", server.MustDo(t, "GET", "{r}:guard"))
}

func TestAServerThatForgotTheScriptIsToldAgain(t *testing.T) {
	guard, _, server := open(t)
	require.NoError(t, guard.Check(t.Context(), "r", 2))
	server.MustDo(t, "SCRIPT", "FLUSH")
	require.NoError(t, guard.Check(t.Context(), "r", 2))
	require.ErrorIs(t, guard.Check(t.Context(), "r", 1), fence.ErrStale)
}

func TestAServerThatIsGoneIsNotStale(t *testing.T) {
	guard, _, server := open(t)
	require.NoError(t, server.Kill())
	err := guard.Check(t.Context(), "r", 1)
	require.Error(t, err)
	require.NotErrorIs(t, err, fence.ErrStale)
	require.Zero(t, guard.Counts())
}

func TestMarksStayUnlessTheyAreGivenARetention(t *testing.T) {
	guard, client, server := open(t)
	require.NoError(t, guard.Check(t.Context(), "r", 1))
	require.Equal(t, int64(-1), server.MustDo(t, "PTTL", "{r}:guard"))

	short, err := redisfence.New(client, redisfence.WithRetention(time.Hour))
	require.NoError(t, err)
	require.NoError(t, short.Check(t.Context(), "r", 1), "the same token again")
	require.InDelta(t, time.Hour.Milliseconds(), server.MustDo(t, "PTTL", "{r}:guard"), 60_000)
	require.NoError(t, guard.Check(t.Context(), "r", 1))
	require.Equal(t, int64(-1), server.MustDo(t, "PTTL", "{r}:guard"))
	require.NoError(t, short.Set(t.Context(), "r", 2, "r", "x", time.Hour))
	require.InDelta(t, time.Hour.Milliseconds(), server.MustDo(t, "PTTL", "r"), 60_000)

	_, err = redisfence.New(client, redisfence.WithRetention(time.Millisecond))
	require.ErrorContains(t, err, "below 1s")
	_, err = redisfence.New(nil)
	require.ErrorContains(t, err, "nil")
}

func TestNoSmallerTokenWritesAfterALarger(t *testing.T) {
	guard, _, server := open(t)
	write, err := redisfence.NewScript(`return redis.call('RPUSH', KEYS[1], ARGV[1])`)
	require.NoError(t, err)
	var accepted, largest atomic.Uint64
	var wg sync.WaitGroup
	for range 32 {
		wg.Go(func() {
			for range 30 {
				token := 1 + rand.Uint64N(1_000)
				for seen := largest.Load(); seen < token && !largest.CompareAndSwap(seen, token); seen = largest.Load() {
				}
				if guard.Run(context.Background(), "log", token, write, []string{"log"}, token).Err() == nil {
					accepted.Add(1)
				}
			}
		})
	}
	wg.Wait()
	var applied []uint64
	entries, _ := server.MustDo(t, "LRANGE", "log", "0", "-1").([]any)
	for _, entry := range entries {
		token, err := strconv.ParseUint(fmt.Sprint(entry), 10, 64)
		require.NoError(t, err)
		applied = append(applied, token)
	}
	require.True(t, slices.IsSorted(applied), "%v", applied)
	require.Equal(t, largest.Load(), applied[len(applied)-1])
	require.Len(t, applied, int(accepted.Load()))
	require.Equal(t, fence.Counts{Accepted: accepted.Load(), Stale: 960 - accepted.Load()}, guard.Counts())
}

// A cluster of one node: it has all slots, and refuses keys of two in one script.
func TestTheMarkHasTheHashSlotOfTheData(t *testing.T) {
	server := redistest.Start(t, "--cluster-enabled", "yes")
	server.MustDo(t, "CLUSTER", "ADDSLOTSRANGE", "0", "16383")
	require.Eventually(t, func() bool {
		_, err := server.Do("SET", "probe", "1")
		return err == nil
	}, 10*time.Second, 10*time.Millisecond)
	client := redis.NewClusterClient(&redis.ClusterOptions{Addrs: []string{server.Addr()}})
	defer client.Close()
	guard, err := redisfence.New(client)
	require.NoError(t, err)
	ctx := t.Context()

	for _, key := range []string{"invoice-42", "{user1}:cart", "a{b}c{d}", "x{", "{{a}}"} {
		require.NoError(t, guard.Set(ctx, key, 2, key, "x", 0), key)
		require.ErrorIs(t, guard.Set(ctx, key, 1, key, "late", 0), fence.ErrStale, key)
	}
	require.NoError(t, guard.Set(ctx, "user2", 1, "{user2}:cart", "x", 0))
	_, err = guard.Del(ctx, "{user2}", 1, "{user2}:cart", "{user2}:list")
	require.NoError(t, err)
	for resource, key := range map[string]string{"r": "elsewhere", "{}x": "{}x", "a}b": "a}b"} {
		err = guard.Set(ctx, resource, 1, key, "x", 0)
		require.ErrorContains(t, err, "slot")
		require.NotErrorIs(t, err, fence.ErrStale)
	}
}
