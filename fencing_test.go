package redlock

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"runtime"
	"strconv"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/quorumlock/redlock/internal/redistest"
)

// hashed returns the part of key that a cluster hashes, to the letter of its
// specification.
func hashed(key string) string {
	for i := range len(key) {
		if key[i] != '{' {
			continue
		}
		for j := i + 1; j < len(key); j++ {
			if key[j] == '}' {
				if j == i+1 {
					return key
				}
				return key[i+1 : j]
			}
		}
		return key
	}
	return key
}

// slot returns the hash slot of key: CRC16/XMODEM of the hashed part, modulo 16384.
func slot(key string) int64 {
	var crc uint16
	for _, b := range []byte(hashed(key)) {
		crc ^= uint16(b) << 8
		for range 8 {
			if crc&0x8000 != 0 {
				crc = crc<<1 ^ 0x1021
			} else {
				crc <<= 1
			}
		}
	}
	return int64(crc) % 16384
}

// bracedNames calls f with every string of up to six of the characters that matter
// to the shape of a fence key, alone and with its suffixes.
func bracedNames(f func(string)) {
	names := []string{""}
	for range 6 {
		var longer []string
		for _, name := range names {
			for _, c := range []string{"{", "}", ":", "a"} {
				longer = append(longer, name+c)
			}
		}
		for _, name := range longer {
			f(name)
			f(name + fenceSuffix)
			f(name + ":" + fenceSuffix)
		}
		names = longer
	}
}

var prefixes = []string{"", "a", "a:", ":", "lock:", "\x00", fenceSuffix, strings.Repeat("p", 1024)}

func randomName() string {
	name := make([]byte, 1+rand.N(12))
	for i := range name {
		name[i] = byte(rand.N(256))
		if rand.N(4) == 0 {
			name[i] = "{}:"[rand.N(3)]
		}
	}
	return string(name)
}

func TestSlotsAreThoseOfACluster(t *testing.T) {
	s := redistest.Start(t, "--cluster-enabled", "yes")
	keys := []string{
		"a", "123456789", "lock:r", "{user1000}.following", "foo{}{bar}", "foo{{bar}}zap", "foo{bar}{zap}", "a{b", "a}b", "}{", "{}", "{", "\x00", "\xff{\n}\r",
		"\r\n$3\r\nfoo", strings.Repeat("x", 1000),
	}
	for range 30 {
		keys = append(keys, randomName())
	}
	for _, key := range keys {
		require.Equal(t, s.MustDo(t, "CLUSTER", "KEYSLOT", key), slot(key), "%q", key)
		if canShareSlot("lock:" + key) {
			fence := fenceKey("lock:", key)
			require.Equal(t, s.MustDo(t, "CLUSTER", "KEYSLOT", "lock:"+key), s.MustDo(t, "CLUSTER", "KEYSLOT", fence), "%q", key)
		}
	}
}

func TestHasHashTagIsTheClustersRule(t *testing.T) {
	bracedNames(func(name string) {
		if tag := hashed(name); hasHashTag(name) != (tag != name) {
			require.Fail(t, "hash tag", "of %q: %v, and hashed is %q", name, hasHashTag(name), tag)
		}
	})
}

// The fence key shares the slot of its lock key whenever one can; and the library
// knows when.
func TestAFenceKeySharesTheSlotOfItsLock(t *testing.T) {
	check := func(prefix, resource string) {
		key := prefix + resource
		fence := fenceKey(prefix, resource)
		if canShareSlot(key) != (hashed(key) == hashed(fence)) {
			require.Fail(t, "slot", "canShareSlot(%q) is %v, hashed %q and %q", key, canShareSlot(key), hashed(key), hashed(fence))
		}
		if canShareSlot(key) {
			require.Equal(t, slot(key), slot(fence), "%q and %q", key, fence)
		}
		// What can't: a closing brace without a tag before it.
		require.Equal(t, !strings.Contains(key, "}") || hashed(key) != key, canShareSlot(key), "%q", key)
	}
	for _, prefix := range []string{"", "lock:"} {
		bracedNames(func(name string) {
			if !strings.HasSuffix(name, fenceSuffix) {
				check(prefix, name)
			}
		})
	}
	for range 2000 {
		check(prefixes[rand.N(len(prefixes))], randomName())
	}
}

// Two resources never share a fence, under one prefix.
func TestFenceKeysAreDistinct(t *testing.T) {
	for _, prefix := range prefixes {
		of := map[string]string{}
		add := func(name string) {
			fence := fenceKey(prefix, name)
			if other, taken := of[fence]; taken && other != name {
				require.Fail(t, "one fence for two", "%q and %q: %q", name, other, fence)
			}
			of[fence] = name
		}
		bracedNames(add)
		for range 2000 {
			name := randomName()
			add(name)
			add(name + "}")
			add("{" + name)
			add("{" + name + "}" + fenceSuffix)
			add(prefix + "{" + name + "}" + fenceSuffix)
		}
	}
}

// One ACL pattern, prefix*, covers both keys; and what is a fence can't be locked,
// whatever prefix the locker has.
func TestAFenceKeyHasThePrefixAndIsNoLockKey(t *testing.T) {
	check := func(prefix, resource string) {
		fence := fenceKey(prefix, resource)
		require.True(t, strings.HasPrefix(fence, prefix), "%q", fence)
		require.True(t, strings.Contains(fence, resource), "%q", fence)
		if fence == prefix+resource {
			require.Fail(t, "the fence key is the lock key", "%q", fence)
		}
		for _, other := range prefixes {
			if rest, is := strings.CutPrefix(fence, other); is {
				l := &Locker{config: defaults()}
				l.prefix = other
				if err := l.checkResource(rest, fence); err == nil && len(rest) <= maxResource {
					require.Fail(t, "a lock key that is a fence key", "%q, of %q%q", fence, other, rest)
				}
			}
		}
	}
	for _, prefix := range prefixes[:4] {
		for range 2000 {
			check(prefix, randomName())
		}
	}
	names := 0
	bracedNames(func(name string) {
		if names++; names%7 == 0 {
			check("lock:", name)
		}
	})
	require.False(t, isFenceKey("order:fence"), "an innocent name")
	require.False(t, isFenceKey("{order}:fences"))
	require.True(t, isFenceKey("{order}:fence"))
	require.True(t, isFenceKey("{order}::fence"))
}

func TestFenceKeysByExample(t *testing.T) {
	for _, c := range []struct{ prefix, resource, want string }{
		{"", "r", "{r}:fence"},
		{"lock:", "r", "lock:{lock:r}:fence"},
		{"", "user:{42}", "user:{42}::fence"},
		{"lock:", "user:{42}:cart", "lock:user:{42}:cart::fence"},
		{"", "a{b", "{a{b}:fence"},
		{"", "{}", "{{}}:fence"},
		{"", "\n", "{\n}:fence"},
	} {
		require.Equal(t, c.want, fenceKey(c.prefix, c.resource))
	}
}

// Seeds.

func micros(at time.Time) uint64 { return uint64(at.UnixMicro()) }

func TestSeedsAreTheClock(t *testing.T) {
	var s seeds
	for _, after := range []time.Duration{0, time.Microsecond, time.Hour, 200 * 365 * 24 * time.Hour} {
		at := epoch.Add(after)
		require.Equal(t, micros(at), s.next(at))
		require.Less(t, s.next(at), uint64(maxToken))
	}
}

func TestSeedsFollowTheFencesOfOthers(t *testing.T) {
	now := epoch.Truncate(time.Microsecond)
	for _, c := range []struct{ ahead, want time.Duration }{
		{-time.Hour, 0},
		{-1 * time.Microsecond, 0},
		{0, 0},
		{time.Microsecond, time.Microsecond},
		{50 * time.Millisecond, 50 * time.Millisecond},
		{maxLead, maxLead},
		{maxLead + time.Microsecond, maxLead},
		{time.Hour, maxLead},
		{100 * 365 * 24 * time.Hour, maxLead},
	} {
		var s seeds
		s.learn(micros(now.Add(c.ahead)), now)
		require.Equal(t, micros(now.Add(c.want)), s.next(now), "%v ahead", c.ahead)
	}
	for _, fence := range []uint64{0, 1, maxToken - 1} {
		var s seeds
		s.learn(fence, now)
		require.Contains(t, []uint64{micros(now), micros(now.Add(maxLead))}, s.next(now), "%d", fence)
	}
}

func TestALeadDecaysByOnePercent(t *testing.T) {
	now := epoch.Truncate(time.Microsecond)
	var s seeds
	s.learn(micros(now.Add(50*time.Millisecond)), now)
	for after, want := range map[time.Duration]time.Duration{
		0:                      50 * time.Millisecond,
		100 * time.Millisecond: 49 * time.Millisecond,
		time.Second:            40 * time.Millisecond,
		5 * time.Second:        0,
		time.Hour:              0,
	} {
		at := now.Add(after)
		require.Equal(t, micros(at.Add(want)), s.next(at), "after %v", after)
	}

	// A smaller lead than what is left of it is known already, a larger one is news.
	at := now.Add(time.Second)
	s.learn(micros(at.Add(39*time.Millisecond)), at)
	require.Equal(t, micros(at.Add(40*time.Millisecond)), s.next(at))
	s.learn(micros(at.Add(41*time.Millisecond)), at)
	require.Equal(t, micros(at.Add(41*time.Millisecond)), s.next(at))
	require.Equal(t, micros(at.Add(time.Second+31*time.Millisecond)), s.next(at.Add(time.Second)))

	// A clock that was set forward ends a lead, one that was set back does not renew it.
	s = seeds{}
	s.learn(micros(epoch.Add(50*time.Millisecond)), epoch)
	forward, back := clocks(time.Hour, 0), clocks(-time.Hour, time.Second)
	require.Equal(t, micros(forward), s.next(forward))
	require.Equal(t, micros(back.Add(s.leadLocked(back))), s.next(back))
	require.LessOrEqual(t, s.leadLocked(back), 40*time.Millisecond)
}

// On a clock that does not go backwards, seeds do not, whatever is learned.
func TestSeedsNeverGoBack(t *testing.T) {
	for range 50 {
		var s seeds
		now, last := epoch, uint64(0)
		for range 100 {
			switch rand.N(3) {
			case 0:
				now = now.Add(rand.N(2 * time.Second)) // or not at all
			case 1:
				ahead := rand.N(400*time.Millisecond) - 200*time.Millisecond
				s.learn(micros(now.Add(ahead)), now)
			}
			next := s.next(now)
			require.GreaterOrEqual(t, next, last)
			require.GreaterOrEqual(t, next, micros(now))
			require.LessOrEqual(t, next, micros(now.Add(maxLead)))
			last = next
		}
	}
}

// External sources.

type tokenFunc func(ctx context.Context, resource string) (uint64, error)

func (f tokenFunc) Token(ctx context.Context, resource string) (uint64, error) {
	return f(ctx, resource)
}

// tokens returns a guard of a source that returns these tokens, one after the
// other.
func tokens(some ...uint64) *sourceGuard {
	return newSourceGuard(tokenFunc(func(context.Context, string) (uint64, error) {
		next := some[0]
		some = some[1:]
		return next, nil
	}))
}

func TestASourceIsHeldToItsPromise(t *testing.T) {
	for _, c := range []struct {
		name string
		some []uint64
		good []bool
	}{
		{"counts up", []uint64{1, 2, 3, 100, maxToken - 1}, []bool{true, true, true, true, true}},
		{"starts with zero", []uint64{0, 1}, []bool{false, true}},
		{"too large", []uint64{maxToken, maxToken + 1, 1<<64 - 1, maxToken - 1}, []bool{false, false, false, true}},
		{"the same again", []uint64{7, 7, 7, 8}, []bool{true, false, false, true}},
		{"goes back", []uint64{7, 3, 6, 7, 8, 7}, []bool{true, false, false, false, true, false}},
		{"zero in between", []uint64{7, 0, 7, 8}, []bool{true, false, false, true}},
		{"too large in between", []uint64{7, maxToken, 8}, []bool{true, false, true}},
	} {
		g := tokens(c.some...)
		for i, want := range c.some {
			got, err := g.token(t.Context(), "r")
			if c.good[i] {
				require.NoError(t, err, "%s: %d", c.name, want)
				require.Equal(t, want, got)
			} else {
				require.Error(t, err, "%s: %d", c.name, want)
				require.NotContains(t, err.Error(), "\n")
			}
		}
	}
}

func TestEachResourceHasItsOwnTokens(t *testing.T) {
	g := tokens(7, 3, 8, 4, 3)
	for i, resource := range []string{"a", "b", "a", "b"} {
		_, err := g.token(t.Context(), resource)
		require.NoError(t, err, i)
	}
	_, err := g.token(t.Context(), "b")
	require.Error(t, err)
}

func TestASourceIsAskedOnceForWhatIsLocked(t *testing.T) {
	type key struct{}
	var asked []any
	g := newSourceGuard(tokenFunc(func(ctx context.Context, resource string) (uint64, error) {
		asked = append(asked, ctx.Value(key{}), resource)
		return 5, nil
	}))
	token, err := g.token(context.WithValue(t.Context(), key{}, "value"), "the resource\n")
	require.NoError(t, err)
	require.Equal(t, uint64(5), token)
	require.Equal(t, []any{"value", "the resource\n"}, asked)
}

func TestASourcesErrorIsTheCause(t *testing.T) {
	cause := errors.New("no more numbers")
	g := newSourceGuard(tokenFunc(func(context.Context, string) (uint64, error) { return 7, fmt.Errorf("source: %w", cause) }))
	token, err := g.token(t.Context(), "r")
	require.ErrorIs(t, err, cause)
	require.Zero(t, token, "a number that comes with an error is none")
	require.NoError(t, g.check("r", 5), "and it is not remembered")
}

func TestASourceMayPanic(t *testing.T) {
	for _, value := range []any{"boom", errors.New("boom"), fmt.Stringer(time.Second), nil} {
		g := newSourceGuard(tokenFunc(func(context.Context, string) (uint64, error) { panic(value) }))
		token, err := g.token(t.Context(), "r")
		require.ErrorContains(t, err, "panic", "%v", value)
		require.Zero(t, token)
	}
}

// A source that does not come back costs the caller the time of its ctx, and a
// goroutine until it does.
func TestAHangingSourceEndsWithTheContext(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		back := make(chan struct{})
		hangs := newSourceGuard(tokenFunc(func(context.Context, string) (uint64, error) {
			<-back
			return 1000, nil
		}))
		gone := newSourceGuard(tokenFunc(func(context.Context, string) (uint64, error) {
			runtime.Goexit()
			return 1000, nil
		}))
		for _, g := range []*sourceGuard{hangs, gone} {
			start := time.Now()
			ctx, cancel := context.WithTimeoutCause(t.Context(), 3*time.Second, ErrExpired)
			token, err := g.token(ctx, "r")
			cancel()
			require.Equal(t, ErrExpired, err)
			require.Zero(t, token)
			require.Equal(t, 3*time.Second, time.Since(start))

			ctx, cancel = context.WithCancel(t.Context())
			time.AfterFunc(time.Second, cancel)
			_, err = g.token(ctx, "r")
			require.Equal(t, context.Canceled, err)
			require.Equal(t, 4*time.Second, time.Since(start))
		}
		close(back)
		synctest.Wait()
		// What came too late was never anybody's.
		require.NoError(t, hangs.check("r", 5))
	})
}

func TestTheLastTenThousandResourcesAreRemembered(t *testing.T) {
	var g *sourceGuard
	fill := func(n int) {
		g = tokens()
		for i := range n {
			require.NoError(t, g.check(strconv.Itoa(i), 100))
		}
	}
	fill(maxRemembered)
	for _, i := range []int{0, 1, maxRemembered / 2, maxRemembered - 1} {
		require.Error(t, g.check(strconv.Itoa(i), 100), "%d", i)
	}

	// One more, and the one that was used least recently is forgotten: not 0, which was used again.
	fill(maxRemembered)
	require.NoError(t, g.check("0", 101))
	require.NoError(t, g.check("one more", 100))
	require.Error(t, g.check("0", 101))
	require.Error(t, g.check("2", 100))
	require.Error(t, g.check("one more", 100))
	require.NoError(t, g.check("1", 5), "forgotten, as the oldest")
	require.Len(t, g.last, maxRemembered)
	require.Equal(t, maxRemembered, g.order.Len())

	// The bound holds for any number.
	for i := range 2 * maxRemembered {
		require.NoError(t, g.check("more "+strconv.Itoa(i), 1))
	}
	require.Len(t, g.last, maxRemembered)
	require.Equal(t, maxRemembered, g.order.Len())
}

func TestAGuardServesManyCallers(t *testing.T) {
	var mu sync.Mutex
	last := uint64(0)
	g := newSourceGuard(tokenFunc(func(context.Context, string) (uint64, error) {
		mu.Lock()
		defer mu.Unlock()
		last++
		return last, nil
	}))
	var wg sync.WaitGroup
	errs := make([]error, 16)
	for i := range errs {
		wg.Go(func() {
			for range 200 {
				_, err := g.token(t.Context(), strconv.Itoa(i))
				errs[i] = errors.Join(errs[i], err)
			}
		})
	}
	wg.Wait()
	require.NoError(t, errors.Join(errs...))
}
