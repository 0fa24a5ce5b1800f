package redlock

import (
	"context"
	"crypto/tls"
	"errors"
	"math"
	"net"
	"strconv"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/redis/go-redis/v9/maintnotifications"
	"github.com/stretchr/testify/require"

	"github.com/quorumlock/redlock/internal/redistest"
)

// clientOf returns a client of the caller's. It looks no name up: a client that
// may get notifications does so when it is built.
func clientOf(addr string) *redis.Client {
	return redis.NewClient(&redis.Options{
		Addr: addr, DialerRetries: 1, MaintNotificationsConfig: &maintnotifications.Config{Mode: maintnotifications.ModeDisabled},
	})
}

// untouched returns a Locker on three instances; the test fails if it so much as
// dials one of them.
func untouched(t *testing.T, opts ...Option) *Locker {
	t.Helper()
	var dials atomic.Int32
	var instances []Instance
	var clients []*redis.Client
	for i := range 3 {
		c := clientOf("h:" + strconv.Itoa(1+i))
		c.AddHook(dialHook(func(context.Context, string, string) (net.Conn, error) {
			dials.Add(1)
			return nil, errors.New("nobody is there")
		}))
		clients = append(clients, c)
		instances = append(instances, Instance{Client: c})
	}
	l, err := New(instances, opts...)
	require.NoError(t, err)
	t.Cleanup(func() {
		require.NoError(t, l.Close()) // its workers have ended then
		require.Zero(t, dials.Load(), "instances were dialled")
		for _, c := range clients {
			require.NoError(t, c.Close(), "the caller's client was closed before")
		}
	})
	return l
}

// A dialHook dials for a client.
type dialHook redis.DialHook

func (d dialHook) DialHook(redis.DialHook) redis.DialHook { return redis.DialHook(d) }

func (dialHook) ProcessHook(next redis.ProcessHook) redis.ProcessHook { return next }

func (dialHook) ProcessPipelineHook(next redis.ProcessPipelineHook) redis.ProcessPipelineHook {
	return next
}

func TestDefaultsAreThePublishedOnes(t *testing.T) {
	c := defaults()
	require.Equal(t, 0.01, c.driftFactor)
	require.Equal(t, 2*time.Millisecond, c.driftBase)
	require.Equal(t, 10*time.Millisecond, c.retryMin)
	require.Equal(t, 250*time.Millisecond, c.retryMax)
	require.Equal(t, 10*time.Minute, c.retention)
	require.True(t, c.fenced())
	require.Empty(t, c.prefix)
	require.Nil(t, c.tls)
	require.Empty(t, c.clientOptions)
	require.Nil(t, c.observer.Round)
	require.Nil(t, c.observer.Instance)
	require.Nil(t, untouched(t).dispatcher, "silent by default")

	for ttl, want := range map[time.Duration]time.Duration{
		10 * time.Millisecond:  20 * time.Millisecond,
		200 * time.Millisecond: 20 * time.Millisecond,
		201 * time.Millisecond: 20100 * time.Microsecond,
		3 * time.Second:        300 * time.Millisecond,
		10 * time.Second:       time.Second,
		maxTTL:                 time.Second,
	} {
		require.Equal(t, want, c.voteLimit(ttl), "%v", ttl)
	}
	require.Equal(t, time.Second, c.closeLimit())
	require.Equal(t, time.Second, c.sendLimit())
	require.Equal(t, int64(600_000+10_000), c.keep(10*time.Second))
	require.Equal(t, int64(600_000+11), c.keep(10*time.Millisecond+1))
}

func TestAnInstanceTimeoutIsTheVotesLimit(t *testing.T) {
	for _, d := range []time.Duration{time.Millisecond, 50 * time.Millisecond, time.Second, time.Minute} {
		c := defaults()
		require.NoError(t, WithInstanceTimeout(d)(&c))
		for _, ttl := range []time.Duration{minTTL, time.Second, maxTTL} {
			require.Equal(t, d, c.voteLimit(ttl))
		}
		require.Equal(t, d, c.closeLimit())
		require.Equal(t, max(d, time.Second), c.sendLimit(), "one short-tempered lock breaks no connection")
	}
}

func TestGoodValuesAreTaken(t *testing.T) {
	source := tokenFunc(func(context.Context, string) (uint64, error) { return 1, nil })
	t13 := &tls.Config{MinVersion: tls.VersionTLS13}
	for name, c := range map[string]struct {
		o     Option
		holds func(c *config) bool
	}{
		"no drift":          {WithDrift(0, 0), func(c *config) bool { return c.driftFactor == 0 && c.driftBase == 0 }},
		"much drift":        {WithDrift(math.Nextafter(1, 0), time.Hour), func(c *config) bool { return c.driftFactor < 1 && c.driftBase == time.Hour }},
		"shortest time-out": {WithInstanceTimeout(time.Millisecond), func(c *config) bool { return c.instanceTimeout == time.Millisecond }},
		"longest time-out":  {WithInstanceTimeout(time.Minute), func(c *config) bool { return c.instanceTimeout == time.Minute }},
		"shortest delay":    {WithRetryDelay(1, 1), func(c *config) bool { return c.retryMin == 1 && c.retryMax == 1 }},
		"longest delay":     {WithRetryDelay(time.Minute, time.Minute), func(c *config) bool { return c.retryMin == time.Minute && c.retryMax == time.Minute }},
		"source":            {WithFencing(source), func(c *config) bool { return c.source != nil && !c.fenced() }},
		"no fencing":        {WithoutFencing(), func(c *config) bool { return c.withoutFencing && !c.fenced() }},
		"short retention":   {WithFenceRetention(time.Second), func(c *config) bool { return c.retention == time.Second }},
		"long retention":    {WithFenceRetention(maxTTL), func(c *config) bool { return c.retention == maxTTL }},
		"no prefix":         {WithKeyPrefix(""), func(c *config) bool { return c.prefix == "" }},
		"prefix":            {WithKeyPrefix("lock:\n\x00"), func(c *config) bool { return c.prefix == "lock:\n\x00" }},
		"long prefix":       {WithKeyPrefix(strings.Repeat("p", 1024)), func(c *config) bool { return len(c.prefix) == 1024 }},
		"observer":          {WithObserver(Observer{Round: func(RoundEvent) {}}), func(c *config) bool { return c.observer.Round != nil }},
		"TLS":               {WithTLSConfig(t13), func(c *config) bool { return c.tls == t13 }},
		"client options":    {WithClientOptions(func(*redis.Options) {}), func(c *config) bool { return len(c.clientOptions) == 1 }},
	} {
		got := defaults()
		require.NoError(t, c.o(&got), name)
		require.True(t, c.holds(&got), name)
	}
}

// badOptions are options that are refused, under the name that the error gives.
var badOptions = []struct {
	name string
	o    Option
}{
	{"WithDrift", WithDrift(-0.01, 0)},
	{"WithDrift", WithDrift(1, 0)},
	{"WithDrift", WithDrift(math.NaN(), 0)},
	{"WithDrift", WithDrift(math.Inf(1), 0)},
	{"WithDrift", WithDrift(math.Inf(-1), 0)},
	{"WithDrift", WithDrift(0.01, -1)},
	{"WithInstanceTimeout", WithInstanceTimeout(0)},
	{"WithInstanceTimeout", WithInstanceTimeout(-time.Second)},
	{"WithInstanceTimeout", WithInstanceTimeout(time.Millisecond - 1)},
	{"WithInstanceTimeout", WithInstanceTimeout(time.Minute + 1)},
	{"WithRetryDelay", WithRetryDelay(0, time.Second)},
	{"WithRetryDelay", WithRetryDelay(-1, time.Second)},
	{"WithRetryDelay", WithRetryDelay(2, 1)},
	{"WithRetryDelay", WithRetryDelay(1, time.Minute+1)},
	{"WithFencing", WithFencing(nil)},
	{"WithFenceRetention", WithFenceRetention(0)},
	{"WithFenceRetention", WithFenceRetention(-time.Hour)},
	{"WithFenceRetention", WithFenceRetention(time.Second - 1)},
	{"WithFenceRetention", WithFenceRetention(maxTTL + 1)},
	{"WithFenceRetention", WithFenceRetention(never)},
	{"WithKeyPrefix", WithKeyPrefix("{")},
	{"WithKeyPrefix", WithKeyPrefix("lock}:")},
	{"WithKeyPrefix", WithKeyPrefix("{lock}:")},
	{"WithKeyPrefix", WithKeyPrefix(strings.Repeat("p", 1025))},
	{"WithKeyPrefix", WithKeyPrefix("{\n" + strings.Repeat("p", 1<<20))},
	{"WithTLSConfig", WithTLSConfig(nil)},
	{"WithClientOptions", WithClientOptions(nil)},
	{"option", nil},
}

func TestEachBadValueIsRefusedByName(t *testing.T) {
	c := clientOf("h:1")
	defer c.Close()
	for i, bad := range badOptions {
		why := requireRefused(t, []string{"h:1"}, bad.o)
		require.Contains(t, why, bad.name, i)
		require.Less(t, len(why), 300, "%d: %s", i, why)

		l, err := New([]Instance{{Client: c}}, bad.o)
		require.ErrorContains(t, err, bad.name, i)
		require.NotContains(t, err.Error(), "\n", i)
		require.Nil(t, l)

		// A bad value changes nothing: it is not repaired.
		if bad.o != nil {
			got, want := defaults(), defaults()
			require.Error(t, bad.o(&got))
			for _, c := range []*config{&got, &want} { // functions can't be compared
				c.now, c.jitter, c.yield = nil, nil, nil
			}
			require.Equal(t, want, got, i)
		}
	}
}

func TestAllBadValuesAreInOneError(t *testing.T) {
	var opts []Option
	for _, bad := range badOptions {
		opts = append(opts, bad.o)
	}
	why := requireRefused(t, []string{"h:1", "h:1", ""}, opts...)
	require.Equal(t, len(badOptions)-1+2, strings.Count(why, "; "), "%s", why)
	_, err := New(nil, opts...)
	require.Equal(t, len(badOptions)-1+1, strings.Count(err.Error(), "; "), "%v", err)
	require.ErrorContains(t, err, "there is no instance")
}

func TestFencingIsOnceOrNever(t *testing.T) {
	source := tokenFunc(func(context.Context, string) (uint64, error) { return 1, nil })
	for _, opts := range [][]Option{
		{WithFencing(source), WithoutFencing()},
		{WithoutFencing(), WithFencing(source)},
	} {
		require.Contains(t, requireRefused(t, []string{"h:1"}, opts...), "WithFencing and WithoutFencing exclude each other")
	}
}

func TestWhatIsForOpenIsRefusedByNew(t *testing.T) {
	c := clientOf("h:1")
	defer c.Close()
	for _, o := range []Option{WithTLSConfig(&tls.Config{MinVersion: tls.VersionTLS13}), WithClientOptions(func(*redis.Options) {})} {
		_, err := New([]Instance{{Client: c}}, o)
		require.ErrorContains(t, err, "WithTLSConfig and WithClientOptions are for clients that Open builds")
	}
}

// A copy of this client can't be compared with another.
type incomparable struct {
	*redis.Client
	_ []int
}

func TestNewRefusesInstancesThatAreNone(t *testing.T) {
	a := clientOf("a:1")
	defer a.Close()
	alsoA := clientOf("a:1")
	defer alsoA.Close()
	b := clientOf("b:1")
	defer b.Close()
	for _, c := range []struct {
		name      string
		instances []Instance
		whys      []string
	}{
		{"none", nil, []string{"there is no instance"}},
		{"no client", []Instance{{Name: "a"}}, []string{"instance 1 has no client"}},
		{"typed nils", []Instance{
			{Client: (*redis.Client)(nil)}, {Client: (*redis.ClusterClient)(nil)}, {Client: (*redis.Ring)(nil)}, {Client: a},
		}, []string{"instance 1 has no client", "instance 2 has no client", "instance 3 has no client"}},
		{"one client, two names", []Instance{{"x", a}, {"y", b}, {"z", a}}, []string{"instance 3 has the client of instance 1"}},
		{"one name, two clients", []Instance{{"x", a}, {"x", b}}, []string{"instance 2 has the name of instance 1, x"}},
		{"one address", []Instance{{Client: a}, {Client: alsoA}}, []string{"instance 2 has the name of instance 1, a:1"}},
		{"a name that is an address", []Instance{{Client: a}, {"a:1", b}}, []string{"instance 2 has the name of instance 1, a:1"}},
		{"everything", []Instance{{Client: a}, {}, {Client: a}, {"a:1", b}}, []string{
			"instance 2 has no client", "instance 3 has the client of instance 1", "instance 4 has the name of instance", "instance 3 has the name of instance 1",
		}},
		{"incomparable", []Instance{{"x", incomparable{Client: a}}, {"x", incomparable{Client: a}}}, []string{"instance 2 has the name of instance 1, x"}},
	} {
		l, err := New(c.instances)
		require.Error(t, err, c.name)
		require.Nil(t, l, c.name)
		require.NotContains(t, err.Error(), "\n", c.name)
		for _, why := range c.whys {
			require.ErrorContains(t, err, why, c.name)
		}
	}

	var many []Instance
	for i := range maxInstances + 1 {
		c := clientOf("h:" + strconv.Itoa(1+i))
		defer c.Close()
		many = append(many, Instance{Client: c})
	}
	_, err := New(many)
	require.ErrorContains(t, err, "65 instances are more than 64")
	l, err := New(many[:maxInstances])
	require.NoError(t, err)
	require.NoError(t, l.Close())
}

func TestInstancesHaveTheirClientsNames(t *testing.T) {
	a := clientOf("a:1")
	cluster := redis.NewClusterClient(&redis.ClusterOptions{Addrs: []string{"c:1"}, Password: "s3cret"})
	ring := redis.NewRing(&redis.RingOptions{Addrs: map[string]string{"r": "r:1"}, HeartbeatFn: func(context.Context, *redis.Client) bool { return true }, HeartbeatFrequency: time.Hour})
	l, err := New([]Instance{{Client: a}, {Client: cluster}, {Client: ring}, {Name: "mine", Client: incomparable{Client: a}}})
	require.NoError(t, err)
	var names []string
	var sharded []bool
	for _, in := range l.instances {
		names, sharded = append(names, in.name), append(sharded, in.sharded.Load())
	}
	require.Equal(t, []string{"a:1", "instance 2", "instance 3", "mine"}, names)
	require.Equal(t, []bool{false, true, true, true}, sharded, "what may be sharded is treated so")
	require.True(t, l.sharded())
	require.NoError(t, l.Close())
	// Close leaves clients open: they can be closed, once.
	require.NoError(t, a.Close())
	require.NoError(t, cluster.Close())
	require.NoError(t, ring.Close())
}

// Acquire options.

func TestGoodAcquireOptionsAreTaken(t *testing.T) {
	l := untouched(t)
	q, err := l.newRequest(t.Context(), "r", time.Second, nil)
	require.NoError(t, err)
	require.Equal(t, never, q.maxWait)
	require.Zero(t, q.minValidity)
	require.Zero(t, q.maxHold)

	full := validity(time.Second, 0.01, 2*time.Millisecond)
	for _, c := range []struct{ maxWait, minValidity, maxHold time.Duration }{
		{0, 0, 1},
		{1, 1, full},
		{time.Hour, full - 1, time.Second},
		{never, full - 1, never},
	} {
		q, err = l.newRequest(t.Context(), "r", time.Second, []AcquireOption{WithMaxWait(c.maxWait), WithMinValidity(c.minValidity), WithMaxHold(c.maxHold)})
		require.NoError(t, err, "%v", c)
		require.Equal(t, c.maxWait, q.maxWait)
		require.Equal(t, c.minValidity, q.minValidity)
		require.Equal(t, c.maxHold, q.maxHold)
	}
}

// acquires are the ways to ask for a lock.
var acquires = map[string]func(*Locker, context.Context, string, time.Duration, ...AcquireOption) (*Lock, error){
	"Acquire":    (*Locker).Acquire,
	"TryAcquire": (*Locker).TryAcquire,
}

// requireNoLock requires that nothing is sent for such a lock, and that the error
// says why, on one short line.
func requireNoLock(t *testing.T, l *Locker, ctx context.Context, resource string, ttl time.Duration, why string, opts ...AcquireOption) {
	t.Helper()
	if ctx != nil { // an Acquire that is not refused would go on and on
		limited, cancel := context.WithTimeout(ctx, 5*time.Second)
		defer cancel()
		ctx = limited
	}
	for name, acquire := range acquires {
		k, err := acquire(l, ctx, resource, ttl, opts...)
		require.ErrorContains(t, err, why, name)
		require.Nil(t, k, name)
		require.NotContains(t, err.Error(), "\n", name)
		require.Less(t, len(err.Error()), 300, name)
		require.True(t, strings.HasPrefix(err.Error(), "redlock: "), "%s: %v", name, err)
		for _, sentinel := range []error{ErrTaken, ErrNoQuorum, ErrExpired, ErrLost, ErrClosed} {
			require.NotErrorIs(t, err, sentinel, "it is no outcome of a round")
		}
	}
}

func TestBadAcquireOptionsAreRefusedBeforeAnyIO(t *testing.T) {
	l := untouched(t)
	full := validity(time.Second, 0.01, 2*time.Millisecond)
	for _, c := range []struct {
		why  string
		opts []AcquireOption
	}{
		{"WithMaxWait: -1ns is negative", []AcquireOption{WithMaxWait(-1)}},
		{"WithMaxWait: ", []AcquireOption{WithMaxWait(math.MinInt64)}},
		{"WithMinValidity: -1ns is negative", []AcquireOption{WithMinValidity(-1)}},
		{"WithMinValidity: ", []AcquireOption{WithMinValidity(full + 1)}},
		{"WithMinValidity: ", []AcquireOption{WithMinValidity(never)}},
		{"WithMaxHold: 0s is not positive", []AcquireOption{WithMaxHold(0)}},
		{"WithMaxHold: -1ns is not positive", []AcquireOption{WithMaxHold(-1)}},
		{"acquire option 1 is nil", []AcquireOption{nil}},
		{"acquire option 3 is nil", []AcquireOption{WithMaxWait(0), WithMinValidity(0), nil}},
	} {
		requireNoLock(t, l, t.Context(), "r", time.Second, c.why, c.opts...)
	}
}

// A lock that is to end before it has the validity that is asked for can't be had,
// however long an Acquire tries: each round would be won, and given up as expired.
func TestAMinimumValidityBeyondTheLongestHoldIsRefused(t *testing.T) {
	requireNoLock(t, untouched(t), t.Context(), "r", 10*time.Second, "WithMinValidity: ", WithMinValidity(2*time.Second), WithMaxHold(time.Second))
}

// Arguments.

func TestATTLOutOfBoundsIsRefusedBeforeAnyIO(t *testing.T) {
	l := untouched(t)
	for _, ttl := range []time.Duration{0, -1, -time.Hour, math.MinInt64, 1, time.Millisecond, 9990 * time.Microsecond, minTTL - 1} {
		requireNoLock(t, l, t.Context(), "r", ttl, "is below 10ms")
	}
	for _, ttl := range []time.Duration{maxTTL + 1, never} {
		requireNoLock(t, l, t.Context(), "r", ttl, "is above 8760h0m0s")
	}
	for _, ttl := range []time.Duration{minTTL, time.Second, maxTTL} {
		_, err := l.newRequest(t.Context(), "r", ttl, nil)
		require.NoError(t, err)
	}
	// An extend has the same bounds.
	for _, ttl := range []time.Duration{0, -1, minTTL - 1, maxTTL + 1, never} {
		require.ErrorContains(t, (&Lock{locker: l}).Extend(t.Context(), ttl), "redlock: a ttl of", "%v", ttl)
	}
}

func TestATTLThatTheDriftEatsIsRefusedBeforeAnyIO(t *testing.T) {
	for _, c := range []struct {
		factor float64
		base   time.Duration
		ttl    time.Duration
	}{
		{0, time.Second, time.Second},
		{0.5, time.Second, 2 * time.Second},
		{0.01, never, maxTTL},
		{0, 10 * time.Millisecond, minTTL},
	} {
		l := untouched(t, WithDrift(c.factor, c.base))
		requireNoLock(t, l, t.Context(), "r", c.ttl, "the drift leaves nothing")
		require.ErrorContains(t, (&Lock{locker: l}).Extend(t.Context(), c.ttl), "the drift leaves nothing")
	}
}

func TestResourcesThatAreNoneAreRefusedBeforeAnyIO(t *testing.T) {
	const most = 64 << 10
	for _, l := range []*Locker{untouched(t), untouched(t, WithKeyPrefix("lock:")), untouched(t, WithoutFencing())} {
		requireNoLock(t, l, t.Context(), "", time.Second, "the resource is empty")
		requireNoLock(t, l, t.Context(), strings.Repeat("x", most+1), time.Second, "has 65537 bytes")
		requireNoLock(t, l, t.Context(), strings.Repeat("\n", 10*most), time.Second, "bytes, more than 64 KiB")
		for _, resource := range []string{"{r}:fence", "{r}::fence", "a{b:fence", "x{\n}:fence", fenceKey("", "r"), fenceKey("lock:", "r"), fenceKey("", "{r}")} {
			requireNoLock(t, l, t.Context(), resource, time.Second, "has the shape of a fence key")
		}
		for _, resource := range []string{"r", "\x00", "\n", " ", strings.Repeat("x", most), "{r}", "r:fence", "{r}:fences", "a}b", "}{"} {
			q, err := l.newRequest(t.Context(), resource, time.Second, nil)
			require.NoError(t, err, "%.40q", resource)
			require.Equal(t, l.prefix+resource, q.key)
			if l.fenced() {
				require.Equal(t, fenceKey(l.prefix, resource), q.fence)
			} else {
				require.Empty(t, q.fence)
			}
		}
	}
}

// On a cluster, both keys must be in one slot; elsewhere it does not matter.
func TestAResourceWithoutASlotForItsFenceIsRefusedOnAClusterOnly(t *testing.T) {
	source := tokenFunc(func(context.Context, string) (uint64, error) { return 1, nil })
	for _, resource := range []string{"a}b", "}", "{}", "{}{x}", "}{"} {
		for _, opts := range [][]Option{nil, {WithoutFencing()}, {WithFencing(source)}} {
			l := untouched(t, opts...)
			_, err := l.newRequest(t.Context(), resource, time.Second, nil)
			require.NoError(t, err)
			l.instances[1].sharded.Store(true)
			if l.fenced() {
				requireNoLock(t, l, t.Context(), resource, time.Second, "no hash tag")
			} else {
				_, err = l.newRequest(t.Context(), resource, time.Second, nil)
				require.NoError(t, err)
			}
			_, err = l.newRequest(t.Context(), "{a}b", time.Second, nil)
			require.NoError(t, err)
		}
	}
}

// Resources are bytes, and 64 KiB of them are not too many for a server.
func TestAnyBytesCanBeLocked(t *testing.T) {
	s := redistest.Start(t)
	all := make([]byte, 256)
	for i := range all {
		all[i] = byte(i)
	}
	for _, prefix := range []string{"", "lock:\r\n\x00"} {
		l := opened(t, []string{s.Addr()}, WithKeyPrefix(prefix))
		for _, resource := range []string{"\x00", "\n", "\r\n$5\r\n", " ", "%", "\xff\xfe", "{", "}", "{}", "a}b", string(all), strings.Repeat("x", 64<<10), strings.Repeat("\x00", 64<<10)} {
			k, err := l.TryAcquire(t.Context(), resource, 10*time.Second)
			require.NoError(t, err, "%.40q", resource)
			require.Equal(t, resource, k.Resource())
			require.Equal(t, k.Owner(), s.MustDo(t, "GET", prefix+resource))
			require.Equal(t, decimal(k.FencingToken()), s.MustDo(t, "GET", fenceKey(prefix, resource)))
			_, err = l.TryAcquire(t.Context(), resource, 10*time.Second)
			require.ErrorIs(t, err, ErrTaken)
			require.NotContains(t, err.Error(), "\n")
			require.NoError(t, k.Extend(t.Context(), 10*time.Second))
			require.NoError(t, k.Release(t.Context()))
			require.Nil(t, s.MustDo(t, "GET", prefix+resource))
		}
	}
}

func TestANilContextIsAnError(t *testing.T) {
	l := untouched(t)
	var none context.Context
	requireNoLock(t, l, none, "r", time.Second, "the context is nil")
	k := &Lock{locker: l}
	require.ErrorContains(t, k.Extend(none, time.Second), "the context is nil")
	require.ErrorContains(t, k.Release(none), "the context is nil")
}

func TestANilLockIsAnError(t *testing.T) {
	var k *Lock
	require.Empty(t, k.Resource())
	require.Empty(t, k.Owner())
	require.Zero(t, k.FencingToken())
	require.Zero(t, k.ValidUntil())
	require.Zero(t, k.Remaining())
	require.ErrorContains(t, k.Extend(t.Context(), time.Second), "the lock is nil")
	require.ErrorContains(t, k.Release(t.Context()), "the lock is nil")
	require.Error(t, k.Extend(nil, time.Second)) //nolint:staticcheck // both are nil
	require.Error(t, k.Release(nil))             //nolint:staticcheck // both are nil
}

// A context that has ended asks nobody any more.
func TestAnEndedContextIsRefusedBeforeAnyIO(t *testing.T) {
	l := untouched(t)
	cause := errors.New("the request was withdrawn")
	ctx, cancel := context.WithCancelCause(t.Context())
	cancel(cause)
	for name, acquire := range acquires {
		_, err := acquire(l, ctx, "r", time.Second)
		require.ErrorIs(t, err, context.Canceled, name)
		require.ErrorIs(t, err, cause, name)
	}
	require.ErrorIs(t, (&Lock{locker: l}).Extend(ctx, time.Second), context.Canceled)

	past, cancelPast := context.WithDeadline(t.Context(), time.Now().Add(-time.Hour))
	defer cancelPast()
	requireNoLock(t, l, past, "r", time.Second, "context deadline exceeded")
}

func TestAClosedLockerAsksNobody(t *testing.T) {
	l := untouched(t)
	require.NoError(t, l.Close())
	for name, acquire := range acquires {
		k, err := acquire(l, t.Context(), "r", time.Second)
		require.ErrorIs(t, err, ErrClosed, name)
		require.Nil(t, k)
	}
}
