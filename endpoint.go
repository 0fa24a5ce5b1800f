package redlock

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"net/url"
	"path"
	"strconv"
	"strings"
	"time"
	"unicode"
	"unicode/utf8"

	"github.com/redis/go-redis/v9"
	"github.com/redis/go-redis/v9/maintnotifications"
)

// An endpoint is the address of one instance, and how to reach it.
type endpoint struct {
	name    string // host:port or the path of a socket: what errors and logs show
	options *redis.Options
	tls     bool // WithTLSConfig is for it
}

// parseEndpoint reads redis://, rediss://, valkey://, valkeys:// and unix://
// URLs and plain host:port. Its errors never show the text: there may be a
// password in it, also where it is malformed.
func parseEndpoint(text string) (*endpoint, error) {
	text = strings.TrimSpace(text)
	if text == "" {
		return nil, errors.New("is blank")
	}
	scheme, rest, isURL := strings.Cut(text, "://")
	if !isURL {
		if strings.ContainsAny(text, "@/?#") {
			return nil, errors.New("is neither host:port nor a URL with a scheme")
		}
		name, err := normalAddress(text)
		if err != nil {
			return nil, err
		}
		return &endpoint{name: name, options: &redis.Options{Network: "tcp", Addr: name}, tls: true}, nil
	}

	scheme = strings.ToLower(scheme)
	switch scheme {
	case "valkey":
		scheme = "redis"
	case "valkeys":
		scheme = "rediss"
	case "redis", "rediss", "unix":
	default:
		return nil, errors.New("has none of the schemes redis, rediss, valkey, valkeys and unix")
	}
	u, err := url.Parse(scheme + "://" + rest)
	if err != nil {
		return nil, errors.New("is not a valid URL")
	}
	if u.Fragment != "" || strings.Contains(rest, "#") {
		return nil, errors.New("has a #, which a URL must write as %23")
	}
	options, err := redis.ParseURL(u.String())
	if err != nil || options.DB < 0 || scheme != "unix" && strings.HasPrefix(u.Path, "/-") {
		return nil, errors.New("has a database number or an option that is not understood")
	}
	e := &endpoint{options: options, tls: scheme == "rediss"}
	if scheme == "unix" {
		if u.Host != "" || !path.IsAbs(options.Addr) || !printable(options.Addr) {
			return nil, errors.New("has no absolute socket path of printable characters: unix:///path")
		}
		e.name = path.Clean(options.Addr)
		options.Addr = e.name
		return e, nil
	}
	if u.Hostname() == "" && u.Port() == "" {
		return nil, errors.New("has no host")
	}
	if e.name, err = normalAddress(options.Addr); err != nil {
		return nil, err
	}
	options.Addr = e.name
	return e, nil
}

// normalAddress returns the one form of a host:port by which duplicates are
// found.
func normalAddress(address string) (string, error) {
	host, port, err := net.SplitHostPort(address)
	if err != nil {
		return "", errors.New("has no port, or too many colons")
	}
	n, err := strconv.ParseUint(port, 10, 16)
	if err != nil || n == 0 {
		return "", errors.New("has no valid port number")
	}
	if !printable(host) || strings.ContainsAny(host, " @/") {
		return "", errors.New("has no valid host")
	}
	host, zone, hasZone := strings.Cut(host, "%") // the name of an interface keeps its case
	host = strings.TrimSuffix(strings.ToLower(host), ".")
	if host == "" {
		host = "localhost"
	}
	if ip, err := netip.ParseAddr(host); err == nil {
		host = ip.Unmap().String()
	}
	if hasZone {
		host += "%" + zone
	}
	return net.JoinHostPort(host, strconv.FormatUint(n, 10)), nil
}

// printable reports whether s can be shown in a line of text as it is.
func printable(s string) bool {
	return utf8.ValidString(s) && strings.IndexFunc(s, func(r rune) bool { return !unicode.IsPrint(r) }) < 0
}

// newClients builds the clients of an endpoint, with what a lock needs: no retry
// behind our back, no long dial, and none beyond life, every call with a deadline,
// one connection. What
// the URL says for itself is kept, but for times that are longer than a batch may
// take.
//
// It returns two: one for locking, to be made again for each connection, with the tap
// on it; and one for the rest, and for all if there is no other.
func (e *endpoint) newClients(life context.Context, c *config) (locking func(*tap) *redis.Client, other *redis.Client, err error) {
	defer func() {
		if p := recover(); p != nil { // how the client refuses settings
			err = fmt.Errorf("(%s) has settings, of its URL or WithClientOptions, that the client refuses: %v", e.name, p)
		}
	}()
	o := e.options
	limit := c.sendLimit()
	o.MaxRetries = cmp.Or(o.MaxRetries, -1)
	o.DialerRetries = cmp.Or(o.DialerRetries, 1)
	o.PoolSize = cmp.Or(o.PoolSize, 1) // one batch in flight
	o.PipelinePoolSize = cmp.Or(o.PipelinePoolSize, -1)
	o.Protocol = cmp.Or(o.Protocol, 2)
	for _, t := range []*time.Duration{&o.DialTimeout, &o.PoolTimeout} {
		if *t <= 0 {
			*t = limit
		}
	}
	o.WriteBufferSize = 64 << 10 // a batch in few writes
	o.ReadBufferSize = 16 << 10
	o.ContextTimeoutEnabled = true
	o.IdentitySuffix = "redlock"
	o.MaintNotificationsConfig = &maintnotifications.Config{Mode: maintnotifications.ModeDisabled}
	if c.tls != nil && e.tls {
		t := c.tls.Clone()
		if t.ServerName == "" && !t.InsecureSkipVerify {
			t.ServerName, _, _ = net.SplitHostPort(o.Addr)
		}
		o.TLSConfig = t
	}
	for _, f := range c.clientOptions {
		f(o)
	}
	for _, t := range []*time.Duration{&o.ReadTimeout, &o.WriteTimeout} {
		if *t <= 0 || *t > limit {
			*t = limit
		}
	}
	dial := o.Dialer
	if dial == nil {
		dial = redis.NewDialer(o)
	}
	o.Dialer = func(ctx context.Context, network, addr string) (net.Conn, error) {
		ctx, cancel := context.WithCancel(ctx)
		defer cancel()
		defer context.AfterFunc(life, cancel)() // the client dials on a context of its own
		conn, err := dial(ctx, network, addr)
		if err != nil {
			return noConn{&dialError{err}}, nil
		}
		return conn, nil
	}
	other = redis.NewClient(o)
	if o.Limiter != nil || o.StreamingCredentialsProvider != nil || o.ClientSideCache != nil || o.ClientSideCacheConfig != nil {
		return nil, other, nil // which want to see every command, or every connection while it lives
	}
	return func(t *tap) *redis.Client {
		o := *o
		o.Dialer = t.wrap(o.Dialer)
		o.PoolSize, o.MinIdleConns, o.MaxIdleConns, o.MaxActiveConns = 1, 0, 0, 0 // of which the tap knows
		o.ConnMaxLifetime, o.ConnMaxIdleTime = 0, -1
		return redis.NewClient(&o)
	}, other, nil
}

// A noConn stands for a connection that could not be made: whoever uses it gets
// the error of the dial. The client logs a dial that fails, on a logger that all
// clients of a program share; a probe of an instance that is down would write a
// line there twice a second.
type noConn struct{ err *dialError }

func (c noConn) Read([]byte) (int, error)         { return 0, c.err }
func (c noConn) Write([]byte) (int, error)        { return 0, c.err }
func (c noConn) Close() error                     { return nil }
func (c noConn) LocalAddr() net.Addr              { return noAddr{} }
func (c noConn) RemoteAddr() net.Addr             { return noAddr{} }
func (c noConn) SetDeadline(time.Time) error      { return nil }
func (c noConn) SetReadDeadline(time.Time) error  { return nil }
func (c noConn) SetWriteDeadline(time.Time) error { return nil }

type noAddr struct{}

func (noAddr) Network() string { return "" }
func (noAddr) String() string  { return "" }

// A dialError is the error of a connection that could not be made: nothing was
// sent.
type dialError struct{ err error }

func (e *dialError) Error() string { return e.err.Error() }
func (e *dialError) Unwrap() error { return e.err }
