package main

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"net"
	"sync"

	"github.com/alicebob/miniredis/v2"
	"github.com/redis/go-redis/v9"
)

// A server is one instance as the demo sees it: it can be taken away and given
// back, and asked for a key.
type server interface {
	name() string // as in the events of a Locker
	kill()
	revive() error
	has(ctx context.Context, key string) (bool, error)
	close()
}

// embedded is an instance inside this process.
type embedded struct {
	*miniredis.Miniredis
	addr string // which it does not tell while it is dead
}

// startEmbedded starts n instances. The caller closes those that it gets, also
// with an error.
func startEmbedded(n int) (servers []server, err error) {
	for range n {
		var m *miniredis.Miniredis
		// A port below those that a system hands out by itself: no connection of
		// anybody takes it while the instance is dead.
		for range 50 {
			m = miniredis.NewMiniRedis()
			if err = m.StartAddr(fmt.Sprintf("127.0.0.1:%d", 10000+rand.IntN(20000))); err == nil {
				break
			}
		}
		if err != nil {
			return servers, err
		}
		m.ClockTTL(true) // keys expire by themselves, as on a server
		servers = append(servers, embedded{m, m.Addr()})
	}
	return servers, nil
}

func (e embedded) name() string  { return e.addr }
func (e embedded) kill()         { e.Close() }
func (e embedded) revive() error { return e.Restart() } // with what it knew
func (e embedded) close()        { e.Close() }

func (e embedded) has(_ context.Context, key string) (bool, error) { return e.Exists(key), nil }

// A line is the demo's way to a server of the user's. The demo can't kill that
// server, but it can cut the line: all connections of its Lockers end, and no new
// one is made. A Locker can't tell the difference.
//
// The line ends where a Locker dials, not at a relay on a port of its own: so
// the names and the errors stay those of the server, and TLS and sockets work as
// always.
type line struct {
	options redis.Options // with which a Locker reaches the server
	client  *redis.Client // of the demo's own, never cut

	mu    sync.Mutex
	cut   bool
	conns []net.Conn
}

// lines are those to the servers of the user's, in the order of their endpoints.
type lines struct{ servers []server }

// attach makes a client of a Locker dial through a line: the same one for each
// Locker that has this server.
func (ls *lines) attach(o *redis.Options) {
	for _, s := range ls.servers {
		if l := s.(*line); l.name() == o.Addr {
			l.attach(o)
			return
		}
	}
	l := &line{options: *o}
	l.client = redis.NewClient(&l.options)
	l.attach(o)
	ls.servers = append(ls.servers, l)
}

var errCut = errors.New("cut off by the demo")

func (l *line) attach(o *redis.Options) {
	dial := redis.NewDialer(o)
	o.Dialer = func(ctx context.Context, network, addr string) (net.Conn, error) {
		if l.isCut() {
			return nil, errCut
		}
		conn, err := dial(ctx, network, addr)
		if err != nil {
			return nil, err
		}
		l.mu.Lock()
		defer l.mu.Unlock()
		if l.cut {
			_ = conn.Close()
			return nil, errCut
		}
		l.conns = append(l.conns, conn)
		return conn, nil
	}
}

func (l *line) isCut() bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.cut
}

func (l *line) name() string { return l.options.Addr }

func (l *line) kill() {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.cut = true
	for _, conn := range l.conns {
		_ = conn.Close()
	}
	l.conns = nil
}

func (l *line) revive() error {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.cut = false
	return nil
}

// has asks with GET: a right that a user who may lock has.
func (l *line) has(ctx context.Context, key string) (bool, error) {
	err := l.client.Get(ctx, key).Err()
	if errors.Is(err, redis.Nil) {
		return false, nil
	}
	return err == nil, err
}

func (l *line) close() { _ = l.client.Close() }
