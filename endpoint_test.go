package redlock

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"net"
	"net/url"
	"strconv"
	"strings"
	"testing"
	"testing/synctest"
	"time"
	"unicode"

	"github.com/redis/go-redis/v9"
	"github.com/redis/go-redis/v9/maintnotifications"
	"github.com/stretchr/testify/require"

	"github.com/quorumlock/redlock/internal/redistest"
)

// fresh returns opts and what they need on servers that have just been started.
func fresh(opts []Option) []Option { return append([]Option{WithQuarantine(0), LongVotes()}, opts...) }

// opened opens endpoints and returns the Locker, which is closed with the test.
func opened(t *testing.T, endpoints []string, opts ...Option) *Locker {
	t.Helper()
	l, err := Open(endpoints, fresh(opts)...)
	require.NoError(t, err, "%q", endpoints)
	t.Cleanup(func() { require.NoError(t, l.Close()) })
	return l
}

// optionsOf returns the settings of the client that a Locker built for its i-th
// endpoint.
func optionsOf(t *testing.T, l *Locker, i int) *redis.Options {
	t.Helper()
	c, ok := l.instances[i].other.(*redis.Client)
	require.True(t, ok)
	return c.Options()
}

// requireRefused requires that Open refuses endpoints, on one line, and returns
// why.
func requireRefused(t *testing.T, endpoints []string, opts ...Option) string {
	t.Helper()
	l, err := Open(endpoints, opts...)
	if l != nil {
		_ = l.Close()
	}
	require.Error(t, err, "%q", endpoints)
	require.Nil(t, l)
	require.NotContains(t, err.Error(), "\n")
	require.True(t, strings.HasPrefix(err.Error(), "redlock: "), err.Error())
	return err.Error()
}

func TestEveryFormOfAnEndpoint(t *testing.T) {
	for _, c := range []struct {
		text, name, network string
		db                  int
		user, password      string
		tls                 bool
	}{
		{"localhost:6379", "localhost:6379", "tcp", 0, "", "", false},
		{"10.0.0.1:7000", "10.0.0.1:7000", "tcp", 0, "", "", false},
		{"[::1]:7000", "[::1]:7000", "tcp", 0, "", "", false},
		{"Redis-1.Example.COM.:7000", "redis-1.example.com:7000", "tcp", 0, "", "", false},
		{":7000", "localhost:7000", "tcp", 0, "", "", false},
		{" localhost:7000\n", "localhost:7000", "tcp", 0, "", "", false},
		{"redis://h", "h:6379", "tcp", 0, "", "", false},
		{"redis://h:7000", "h:7000", "tcp", 0, "", "", false},
		{"redis://h:", "h:6379", "tcp", 0, "", "", false},
		{"redis://:7000", "localhost:7000", "tcp", 0, "", "", false},
		{"REDIS://H:7000/3", "h:7000", "tcp", 3, "", "", false},
		{"redis://h?db=3", "h:6379", "tcp", 3, "", "", false},
		{"valkey://h/3", "h:6379", "tcp", 3, "", "", false},
		{"rediss://h", "h:6379", "tcp", 0, "", "", true},
		{"valkeys://h:7000", "h:7000", "tcp", 0, "", "", true},
		{"ValKeyS://h:7000", "h:7000", "tcp", 0, "", "", true},
		{"redis://:pw@h", "h:6379", "tcp", 0, "", "pw", false},
		{"redis://me:pw@h:7000/1", "h:7000", "tcp", 1, "me", "pw", false},
		{"valkey://me:pw@h", "h:6379", "tcp", 0, "me", "pw", false},
		{"redis://me:p%40s%2Fs%23%25%20@h", "h:6379", "tcp", 0, "me", "p@s/s#% ", false},
		{"redis://me:p:w@h", "h:6379", "tcp", 0, "me", "p:w", false},
		{"redis://me:p@w@h", "h:6379", "tcp", 0, "me", "p@w", false},
		{"redis://[::1]", "[::1]:6379", "tcp", 0, "", "", false},
		{"redis://me:pw@[2001:DB8::0:1]:7000", "[2001:db8::1]:7000", "tcp", 0, "me", "pw", false},
		{"unix:///run/redis.sock", "/run/redis.sock", "unix", 0, "", "", false},
		{"unix:///run//a/../redis.sock?db=2", "/run/redis.sock", "unix", 2, "", "", false},
		{"UNIX://me:pw@/run/Redis.sock", "/run/Redis.sock", "unix", 0, "me", "pw", false},
	} {
		l := opened(t, []string{c.text})
		o := optionsOf(t, l, 0)
		require.Equal(t, c.name, l.instances[0].name, "%q", c.text)
		require.Equal(t, c.name, o.Addr, "%q", c.text)
		require.Equal(t, c.network, o.Network, "%q", c.text)
		require.Equal(t, c.db, o.DB, "%q", c.text)
		require.Equal(t, c.user, o.Username, "%q", c.text)
		require.Equal(t, c.password, o.Password, "%q", c.text)
		require.Equal(t, c.tls, o.TLSConfig != nil, "%q", c.text)
	}
}

// A socket is a file, and may have any name.
func TestASocketMayHaveAnyName(t *testing.T) {
	for text, name := range map[string]string{
		"unix:///-run/-redis":           "/-run/-redis",
		"unix:///run/a%23b%3Fc":         "/run/a#b?c",
		"unix:///run/redis@1.sock":      "/run/redis@1.sock",
		"unix:///run/a%20b.sock?db=1":   "/run/a b.sock",
		"unix://me:pw@/run/6379:1.sock": "/run/6379:1.sock",
	} {
		t.Run(text, func(t *testing.T) { require.Equal(t, name, opened(t, []string{text}).instances[0].name) })
	}
}

// Names are in every error, and an error is one line of text.
func TestNamesAreText(t *testing.T) {
	var odd []string
	for _, c := range []string{"\x00", "\x07", "\n", "\v", "\f", "\r", "\x1b", "\x7f", "\u0085", "\u2028"} {
		for _, text := range []string{"h" + c + "h:6379", "redis://h" + c + "h:6379", "unix:///run/" + url.PathEscape(c) + ".sock"} {
			_, err := Open([]string{text, text}) // refused as a duplicate, or for itself
			require.Error(t, err)
			if strings.ContainsFunc(err.Error(), func(r rune) bool { return !unicode.IsPrint(r) }) {
				odd = append(odd, err.Error())
			}
		}
	}
	require.Empty(t, odd, "%q", odd)
}

// The zone of an address is the name of an interface, and those have a case.
func TestAZoneKeepsItsCase(t *testing.T) {
	for _, text := range []string{"redis://[fe80::1%25Eth0]:7000", "[FE80::1%Eth0]:7000"} {
		require.Equal(t, "[fe80::1%Eth0]:7000", opened(t, []string{text}).instances[0].name, "%q", text)
	}
}

// Spellings of one server. A quorum of one server, counted twice, is none.
var spellings = [][]string{
	{
		"localhost:6379", "LOCALHOST:6379", "localhost.:6379", " localhost:6379 ", "localhost:06379", ":6379",
		"redis://localhost", "redis://localhost:6379", "redis://LocalHost.:6379/", "redis://localhost:", "redis://:6379", "redis://:06379",
		"redis://localhost/5", "redis://localhost?db=7", "redis://user@localhost", "redis://user:password@localhost/2", "redis://:password@:6379",
		"rediss://localhost", "valkey://localhost", "valkeys://other:password@localhost", "VALKEY://localhost", "redis://localhost?protocol=3",
	},
	{"127.0.0.1:6379", "redis://127.0.0.1", "redis://127.0.0.1.", "[::ffff:127.0.0.1]:6379", "redis://[::FFFF:7f00:1]", "redis://[0:0:0:0:0:ffff:127.0.0.1]:6379"},
	{"[::1]:6379", "redis://[::1]", "redis://[0:0:0:0:0:0:0:1]:6379", "[0::0:1]:6379", "valkey://user:password@[::1]/1"},
	{"[2001:db8::a]:7000", "redis://[2001:DB8:0:0::A]:7000", "[2001:0db8::000a]:07000"},
	{"redis-1.example.com:7000", "redis://Redis-1.EXAMPLE.com.:7000/3"},
	{"redis-2.example.com:7000"},
	{"redis-1.example.com:7001"},
	{"unix:///run/redis.sock", "unix:///run/./redis.sock", "unix:////run//redis.sock", "unix:///run/x/../redis.sock/", "unix:///run/redis.sock?db=3", "unix://user:password@/run/redis.sock", "UNIX:///run/redis%2Esock"},
	{"unix:///run/Redis.sock"},
	{"unix:///run/redis.sock2"},
}

func TestOneServerIsOneEndpointHoweverItIsSpelled(t *testing.T) {
	for _, same := range spellings {
		for i, text := range same {
			why := requireRefused(t, []string{same[0], text})
			require.Contains(t, why, "endpoint 2", "%q", text)
			require.Contains(t, why, "is the same as endpoint 1", "%q", text)
			require.NotContains(t, why, "password")
			// Also where the other one is first, and others are between them.
			why = requireRefused(t, []string{text, "a.example.com:1", "b.example.com:1", same[(i+1)%len(same)]})
			require.Contains(t, why, "endpoint 4", "%q", text)
			require.Contains(t, why, "is the same as endpoint 1", "%q", text)
		}
	}
}

func TestServersThatDifferAreNoDuplicates(t *testing.T) {
	var all []string
	for i, same := range spellings {
		all = append(all, same[i%len(same)])
	}
	l := opened(t, all)
	require.Len(t, l.instances, len(spellings))
	for i, in := range l.instances {
		require.Equal(t, i, in.index)
	}
}

func TestWhatIsNoEndpointIsRefused(t *testing.T) {
	for _, c := range []struct{ text, why string }{
		{"", "is blank"},
		{" \t\n", "is blank"},
		{"localhost", "has no port"},
		{"[::1]", "has no port"},
		{"::1:6379", "too many colons"},
		{"h:1:2", "too many colons"},
		{"[::1:6379", "has no port"},
		{"h:", "no valid port number"},
		{"h:0", "no valid port number"},
		{"h:65536", "no valid port number"},
		{"h:-1", "no valid port number"},
		{"h:+1", "no valid port number"},
		{"h:redis", "no valid port number"},
		{"a b:6379", "no valid host"},
		{"a\nb:6379", "no valid host"},
		{"me:pw@h:6379", "neither host:port nor a URL"},
		{"h:6379/1", "neither host:port nor a URL"},
		{"h:6379?db=1", "neither host:port nor a URL"},
		{"/run/redis.sock", "neither host:port nor a URL"},
		{"redis:/h:6379", "neither host:port nor a URL"},
		{"http://h:6379", "has none of the schemes"},
		{"://h:6379", "has none of the schemes"},
		{"tcp://h:6379", "has none of the schemes"},
		{"redis+tls://h:6379", "has none of the schemes"},
		{"redis://", "has no host"},
		{"redis:///1", "has no host"},
		{"redis://me:pw@/1", "has no host"},
		{"redis://h:0", "no valid port number"},
		{"redis://h:65536", "no valid port number"},
		{"redis://h:redis", "not a valid URL"},
		{"redis://h:-1", "not a valid URL"},
		{"redis://a b", "not a valid URL"},
		{"redis://[::1", "not a valid URL"},
		{"redis://h/one", "database number"},
		{"redis://h/1/2", "database number"},
		{"redis://h?db=one", "database number"},
		{"redis://h?unknown=1", "option that is not understood"},
		{"redis://h?read_timeout=soon", "option that is not understood"},
		{"unix://", ""},
		{"unix:///run/s?db=one", "database number"},
	} {
		why := requireRefused(t, []string{c.text})
		require.Contains(t, why, "endpoint 1 ", "%q", c.text)
		require.Contains(t, why, c.why, "%q", c.text)
	}
}

// What would be dropped without a word is a mistake of whoever wrote it.
func TestNothingOfAnEndpointIsIgnored(t *testing.T) {
	for _, text := range []string{
		"unix://run/redis.sock",      // the socket would be /redis.sock
		"unix://./redis.sock",        // and so would this one's
		"unix://localhost/run/redis", // nobody's host
		"redis://h:6379#1",
		"redis://h#1",
		"unix:///run/redis.sock#1",
		"redis://h/-1", // the database would be 0
		"redis://h?db=-1",
	} {
		t.Run(text, func(t *testing.T) { requireRefused(t, []string{text}) })
	}
}

func TestAllFaultsAreInOneErrorOnOneLine(t *testing.T) {
	why := requireRefused(t, []string{"", "h:1", "h:0", "redis://H:1/3", "ftp://x", "h:1", "redis://h:1?db=x"},
		WithDrift(2, 0), nil, WithRetryDelay(-1, 0), WithTLSConfig(nil))
	for _, fault := range []string{
		"endpoint 1 is blank",
		"endpoint 3 has no valid port number",
		"endpoint 4 (h:1) is the same as endpoint 2",
		"endpoint 5 has none of the schemes",
		"endpoint 6 (h:1) is the same as endpoint 2",
		"endpoint 7 has a database number",
		"WithDrift: ",
		"option 2 is nil",
		"WithRetryDelay: ",
		"WithTLSConfig: the configuration is nil",
	} {
		require.Contains(t, why, fault)
	}
	require.NotContains(t, why, "endpoint 2 has")

	why = requireRefused(t, nil, WithFenceRetention(0))
	require.Contains(t, why, "there is no endpoint")
	require.Contains(t, why, "WithFenceRetention: ")
	require.Contains(t, requireRefused(t, []string{}), "there is no endpoint")
}

func TestMoreInstancesThanALockCanCountAreRefused(t *testing.T) {
	var endpoints []string
	for i := range maxInstances + 1 {
		endpoints = append(endpoints, "h:"+strconv.Itoa(1+i))
	}
	require.Contains(t, requireRefused(t, endpoints), "65 endpoints are more than 64")
	require.Len(t, opened(t, endpoints[:maxInstances]).instances, maxInstances)
}

// A password, or a part of one, never gets into an error or a name, whether the
// URL can be read or not.
func TestAPasswordIsNeverShown(t *testing.T) {
	for _, c := range []struct{ text, secrets string }{
		{"redis://:s3cret@h:7000", "s3cret"},
		{"redis://me:s3cret@h:7000/3", "s3cret"},
		{"rediss://me:s3cret@[::1]", "s3cret"},
		{"valkey://me:s3cret@h?db=1", "s3cret"},
		{"unix://me:s3cret@/run/redis.sock", "s3cret"},
		{"redis://me:s3cret%40%23%25@h", "s3cret @#"},
		{"redis://me:s3cret@x@h", "s3cret"},
		// Malformed, in the scheme, the port, the database, an option.
		{"me:s3cret@h:7000", "s3cret"},
		{":s3cret@h:7000", "s3cret"},
		{"redis:me:s3cret@h:7000", "s3cret"},
		{"redis:/me:s3cret@h:7000", "s3cret"},
		{"redi://me:s3cret@h:7000", "s3cret"},
		{"http://me:s3cret@h:7000", "s3cret"},
		{"redis://me:s3cret@h:port", "s3cret"},
		{"redis://me:s3cret@h:99999", "s3cret"},
		{"redis://me:s3cret@h:0", "s3cret"},
		{"redis://me:s3cret@", "s3cret"},
		{"redis://me:s3cret@/1", "s3cret"},
		{"redis://me:s3cret@h/x", "s3cret"},
		{"redis://me:s3cret@h?x=s3cret", "s3cret"},
		{"redis://me:s3cret@[::1", "s3cret"},
		{"unix://me:s3cret@", "s3cret"},
		{"unix://me:s3cret@run/redis.sock", "s3cret"},
		// Characters that a URL needs escaped.
		{"redis://me:s3cret word@h", "s3cret word"},
		{"redis://me:s3cret%zz@h", "s3cret %zz"},
		{"redis://me:%s3cret@h", "s3cret"},
		{"redis://me:s3cret%@h", "s3cret"},
		{"redis://me:s3\ncret@h", "s3 cret"},
		{"redis://me:s3\tcret@h", "s3 cret"},
		{"redis://me:s3\x00cret@h", "s3 cret"},
		{"redis://me:s3/cret@h", "s3 cret"},
		{"redis://me:s3?cret@h", "s3 cret"},
		{"redis://me:s3#cret@h", "s3 cret"},
		{"redis://me:s3[cret]@h", "s3[ cret"},
		{"redis://me:s3\\cret@h", "s3 cret"},
		{"redis://me:s3\"cret@h", "s3 cret"},
		{"redis://me:s3<cret>@h", "s3 cret"},
		{"redis://me:/s3cret@h", "s3cret"},
		{"redis://me:?s3cret@h", "s3cret"},
		{"redis://me:#s3cret@h", "s3cret"},
		{"redis://:#s3cret@h", "s3cret"},
		// A password that begins like a port: a URL that means something else.
		{"redis://me:4711/cret@h:7000", "4711 cret"},
		{"redis://me:4711?cret@h:7000", "4711 cret"},
		{"redis://me:4711#cret@h:7000", "4711 cret"},
		{"rediss://me:4711#cret@h:7000", "4711 cret"},
		{"unix://me:4711/s3cret@/run/redis.sock", "4711 s3cret"},
		{"unix://me:4711#s3cret@/run/redis.sock", "4711 s3cret"},
	} {
		t.Run(c.text, func(t *testing.T) {
			conceals := func(text string) {
				t.Helper()
				for secret := range strings.FieldsSeq(c.secrets) {
					require.NotContains(t, text, secret, "%q", c.text)
				}
			}
			// Twice, so that there always is an error.
			conceals(requireRefused(t, []string{c.text, c.text}))
			l, err := Open([]string{c.text}, WithQuarantine(0))
			if err != nil {
				conceals(err.Error())
				return
			}
			defer func() { require.NoError(t, l.Close()) }()
			conceals(l.instances[0].name)
		})
	}
}

// Nor does it get into what an instance is said to have answered, or not.
func TestAPasswordIsInNoErrorOfACall(t *testing.T) {
	s := redistest.Start(t, "--requirepass", "the-right-one")
	nobody, err := redistest.FreeAddr()
	require.NoError(t, err)
	var told []string
	l := opened(t, []string{"redis://me:s3cret@" + s.Addr(), "redis://me:s3cret@" + nobody, "unix://me:s3cret@/nowhere/redis.sock"})
	_, err = l.TryAcquire(t.Context(), "r", 10*time.Second)
	require.ErrorIs(t, err, ErrNoQuorum)
	told = append(told, err.Error(), fmt.Sprintf("%+v %#v", err, err))
	var e *InstanceError
	require.ErrorAs(t, err, &e)
	told = append(told, fmt.Sprintf("%v %+v %#v", e, e, *e))
	for _, text := range told {
		require.NotContains(t, text, "s3cret")
	}
	require.Contains(t, err.Error(), nobody)
	require.Contains(t, err.Error(), "/nowhere/redis.sock")
}

// Clients.

func TestClientsAreBuiltForLocks(t *testing.T) {
	for _, c := range []struct {
		opts  []Option
		limit time.Duration
	}{
		{nil, time.Second},
		{[]Option{WithInstanceTimeout(50 * time.Millisecond)}, time.Second}, // of the vote: the connection is kept for longer
		{[]Option{WithInstanceTimeout(5 * time.Second)}, 5 * time.Second},
	} {
		l := opened(t, []string{"h:1", "redis://me:pw@h:2/3", "rediss://h:3", "unix:///run/redis.sock"}, c.opts...)
		require.True(t, l.owned)
		for i := range l.instances {
			o := optionsOf(t, l, i)
			require.Zero(t, o.MaxRetries, "a retry behind our back")
			require.Equal(t, 1, o.DialerRetries)
			require.Equal(t, c.limit, o.DialTimeout)
			require.Equal(t, c.limit, o.ReadTimeout)
			require.Equal(t, c.limit, o.WriteTimeout)
			require.Equal(t, c.limit, o.PoolTimeout)
			require.Equal(t, 1, o.PoolSize)
			require.Negative(t, o.PipelinePoolSize)
			require.Zero(t, o.MinIdleConns)
			require.Equal(t, 2, o.Protocol)
			require.Equal(t, 64<<10, o.WriteBufferSize)
			require.Equal(t, 16<<10, o.ReadBufferSize)
			require.True(t, o.ContextTimeoutEnabled)
			require.Equal(t, "redlock", o.IdentitySuffix)
			require.Empty(t, o.ClientName, "CLIENT SETNAME is a right that few users have")
			require.Equal(t, maintnotifications.ModeDisabled, o.MaintNotificationsConfig.Mode)
			require.NotNil(t, o.Dialer)
			require.Nil(t, o.Limiter)
		}
	}
}

func TestSettingsOfAURLAreKept(t *testing.T) {
	l := opened(t, []string{"redis://h?max_retries=2&dial_timeout=7s&pool_timeout=3s&pool_size=4&pipeline_pool_size=2&protocol=3&client_name=me&conn_max_lifetime=1h"})
	o := optionsOf(t, l, 0)
	require.Equal(t, 2, o.MaxRetries)
	require.Equal(t, 7*time.Second, o.DialTimeout)
	require.Equal(t, 3*time.Second, o.PoolTimeout)
	require.Equal(t, 4, o.PoolSize)
	require.Equal(t, 2, o.PipelinePoolSize)
	require.Equal(t, 3, o.Protocol)
	require.Equal(t, "me", o.ClientName)
	require.Equal(t, time.Hour, o.ConnMaxLifetime)
}

// Whatever a URL or the caller's function says, a call comes back in time.
func TestTimeLimitsHold(t *testing.T) {
	forever := WithClientOptions(func(o *redis.Options) {
		o.ReadTimeout, o.WriteTimeout, o.ContextTimeoutEnabled = -1, -1, false
	})
	for _, l := range []*Locker{
		opened(t, []string{"redis://h?read_timeout=0&write_timeout=0"}),
		opened(t, []string{"redis://h?read_timeout=1h&write_timeout=1h"}),
		opened(t, []string{"h:1"}, forever),
	} {
		o := optionsOf(t, l, 0)
		require.Equal(t, time.Second, o.ReadTimeout)
		require.Equal(t, time.Second, o.WriteTimeout)
	}
}

// No limit is no limit, and not one of 0: an instance can be dialled with it.
func TestAURLWithoutTimeLimitsConnects(t *testing.T) {
	s := redistest.Start(t)
	for _, setting := range []string{"read_timeout", "write_timeout", "pool_timeout", "dial_timeout"} {
		t.Run(setting, func(t *testing.T) {
			l := opened(t, []string{s.URL() + "?" + setting + "=0"})
			k, err := l.TryAcquire(t.Context(), setting, 10*time.Second)
			require.NoError(t, err)
			require.NoError(t, k.Release(t.Context()))
		})
	}
}

// The caller's functions are called for each client, in their order, and after
// the library's own settings.
func TestClientOptionsHaveTheLastWord(t *testing.T) {
	var calls []string
	note := func(name string, f func(*redis.Options)) Option {
		return WithClientOptions(func(o *redis.Options) {
			calls = append(calls, name+" "+o.Addr)
			f(o)
		})
	}
	l := opened(t, []string{"a:1", "redis://me:pw@b:2"},
		note("first", func(o *redis.Options) { o.Protocol, o.Username = 3, "first" }),
		note("second", func(o *redis.Options) {
			if o.Protocol != 3 || o.IdentitySuffix != "redlock" || o.DialerRetries != 1 {
				calls = append(calls, "too early")
			}
			o.Username, o.IdentitySuffix = "second", "mine"
		}))
	require.Equal(t, []string{"first a:1", "second a:1", "first b:2", "second b:2"}, calls)
	for i := range l.instances {
		o := optionsOf(t, l, i)
		require.Equal(t, 3, o.Protocol)
		require.Equal(t, "second", o.Username)
		require.Equal(t, "mine", o.IdentitySuffix)
	}
	require.Equal(t, "pw", optionsOf(t, l, 1).Password)
}

// Misuse is an error, not a panic: the client panics at such settings.
func TestSettingsThatAreNoneAreAnError(t *testing.T) {
	open := func(t *testing.T, endpoint string, opts ...Option) (l *Locker, err error) {
		t.Helper()
		defer func() {
			if p := recover(); p != nil {
				require.Fail(t, "a panic", "%v", p)
			}
		}()
		return Open([]string{endpoint}, fresh(opts)...)
	}
	for _, endpoint := range []string{
		"redis://h?pool_size=-1",
		"redis://h?pool_size=99999999999",
		"redis://h?pipeline_pool_size=99999999999",
	} {
		t.Run(endpoint, func(t *testing.T) {
			_, err := open(t, endpoint)
			require.ErrorContains(t, err, "endpoint 1 ")
		})
	}
	t.Run("WithClientOptions", func(t *testing.T) {
		_, err := open(t, "h:1", WithClientOptions(func(o *redis.Options) { o.PoolSize = -1 }))
		require.ErrorContains(t, err, "WithClientOptions")
	})
}

func TestTLSIsForThoseWhoWantIt(t *testing.T) {
	mine := &tls.Config{MinVersion: tls.VersionTLS13}
	named := &tls.Config{MinVersion: tls.VersionTLS13, ServerName: "other.example.com"}
	blind := &tls.Config{MinVersion: tls.VersionTLS13, InsecureSkipVerify: true}

	endpoints := []string{"a.example.com:1", "rediss://B.example.com.:2", "valkeys://[::1]", "redis://c:3", "valkey://c:4", "unix:///run/redis.sock"}
	names := []string{"a.example.com", "b.example.com", "::1"}
	l := opened(t, endpoints, WithTLSConfig(mine))
	for i := range l.instances {
		o := optionsOf(t, l, i)
		if i >= len(names) {
			require.Nil(t, o.TLSConfig, "%q", endpoints[i])
			continue
		}
		require.NotNil(t, o.TLSConfig, "%q", endpoints[i])
		require.Equal(t, names[i], o.TLSConfig.ServerName)
		require.Equal(t, uint16(tls.VersionTLS13), o.TLSConfig.MinVersion)
		require.False(t, o.TLSConfig.InsecureSkipVerify)
	}
	require.Empty(t, mine.ServerName, "the caller's is not touched")

	require.Equal(t, "other.example.com", optionsOf(t, opened(t, endpoints[:1], WithTLSConfig(named)), 0).TLSConfig.ServerName)
	require.True(t, optionsOf(t, opened(t, endpoints[:1], WithTLSConfig(blind)), 0).TLSConfig.InsecureSkipVerify)

	// By default, the system's for those that ask for TLS, and none for plain ones.
	l = opened(t, endpoints)
	require.Nil(t, optionsOf(t, l, 0).TLSConfig)
	require.NotEmpty(t, optionsOf(t, l, 1).TLSConfig.ServerName)
	require.False(t, optionsOf(t, l, 1).TLSConfig.InsecureSkipVerify)

	require.Contains(t, requireRefused(t, endpoints[3:], WithTLSConfig(mine)), "WithTLSConfig: no endpoint uses it")
}

// Open dials nothing, so that whatever is down is no error; nor does a Locker that
// nobody uses.
func TestOpenDialsNothing(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		dials := 0
		l, err := Open([]string{"h:1", "redis://me:pw@h:2", "rediss://h:3", "unix:///run/redis.sock"}, WithClientOptions(func(o *redis.Options) {
			o.Dialer = func(context.Context, string, string) (net.Conn, error) {
				dials++
				return nil, errors.New("nobody is there")
			}
		}))
		require.NoError(t, err)
		synctest.Wait()
		time.Sleep(24 * time.Hour) // of the bubble: whatever runs by the clock has run
		require.NoError(t, l.Close())
		require.Zero(t, dials)
	})
}

func TestOpenReachesNoServer(t *testing.T) {
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	defer listener.Close()
	addr := listener.Addr().String()
	l, err := Open([]string{addr, "redis://me:pw@localhost:1", "no-such-host.invalid:6379", "unix:///nowhere/redis.sock"})
	require.NoError(t, err)
	require.NoError(t, l.Close())

	// Connections are accepted in their order: the first is this one.
	mine, err := net.Dial("tcp", addr)
	require.NoError(t, err)
	defer mine.Close()
	first, err := listener.Accept()
	require.NoError(t, err)
	defer first.Close()
	require.Equal(t, mine.LocalAddr().String(), first.RemoteAddr().String())
}

// A dial that never comes back, whatever it was told, costs a call its own limit
// and no more.
func TestADialThatHangsBlocksNobody(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		end := make(chan struct{})
		l, err := Open([]string{"h:1"}, WithClientOptions(func(o *redis.Options) {
			o.DialTimeout = time.Hour
			o.Dialer = func(context.Context, string, string) (net.Conn, error) {
				<-end
				return nil, net.ErrClosed
			}
		}))
		require.NoError(t, err)
		start := time.Now()
		_, err = l.TryAcquire(t.Context(), "r", 2*time.Second)
		require.ErrorIs(t, err, ErrNoQuorum)
		require.Equal(t, 200*time.Millisecond, time.Since(start), "a tenth of the ttl")

		start = time.Now()
		_ = l.Close()
		require.LessOrEqual(t, time.Since(start), l.closeLimit()+2*closeGrace)
		close(end)
	})
}

// What a dial says is the cause that the caller reads, and it is asked once.
func TestADialThatFailsIsTheCause(t *testing.T) {
	cause := errors.New("nobody is there")
	synctest.Test(t, func(t *testing.T) {
		dials := 0
		l, err := Open([]string{"h:1"}, WithClientOptions(func(o *redis.Options) {
			o.Dialer = func(context.Context, string, string) (net.Conn, error) {
				dials++
				return nil, cause
			}
		}))
		require.NoError(t, err)
		start := time.Now()
		_, err = l.TryAcquire(t.Context(), "r", 10*time.Second)
		require.ErrorIs(t, err, ErrNoQuorum)
		require.ErrorIs(t, err, cause)
		require.Zero(t, time.Since(start))
		require.Equal(t, 1, dials)
		require.NoError(t, l.Close())
	})
}
