package redistest

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"net"
	"os"
	"sync"
	"testing"
)

// Need skips the test, loudly, when there is no redis-server; with
// REDLOCK_REQUIRE_REDIS=1 in the environment it fails it.
func Need(tb testing.TB) {
	tb.Helper()
	_, err := binary()
	switch {
	case err == nil:
	case os.Getenv("REDLOCK_REQUIRE_REDIS") == "1":
		tb.Fatalf("REDLOCK_REQUIRE_REDIS=1, and no redis-server on PATH: %v", err)
	default:
		tb.Skipf("SKIPPED, NOT PASSED: no redis-server on PATH (install one, or name it in REDLOCK_REDIS_SERVER): %v", err)
	}
}

// Start is [Launch] for a test, which it fails if the server does not come up.
// The server is closed with the test.
func Start(tb testing.TB, args ...string) *Server {
	tb.Helper()
	return StartN(tb, 1, args...)[0]
}

// StartN starts n servers with the same arguments, in parallel.
func StartN(tb testing.TB, n int, args ...string) []*Server {
	tb.Helper()
	Need(tb)
	servers, errs := make([]*Server, n), make([]error, n)
	var wg sync.WaitGroup
	for i := range n {
		wg.Go(func() { servers[i], errs[i] = Launch(args...) })
	}
	wg.Wait()
	for _, s := range servers {
		if s == nil {
			continue
		}
		tb.Cleanup(func() {
			if err := s.Close(); err != nil {
				tb.Errorf("closing the server on %s: %v", s.Addr(), err)
			}
		})
	}
	if err := errors.Join(errs...); err != nil {
		tb.Fatal(err)
	}
	return servers
}

// Addrs returns the servers' addresses, in order.
func Addrs(servers []*Server) []string {
	addrs := make([]string, len(servers))
	for i, s := range servers {
		addrs[i] = s.Addr()
	}
	return addrs
}

// MustDo is Do; it fails the test at any error, an error reply too. It must be
// called from the test's own goroutine.
func (s *Server) MustDo(tb testing.TB, args ...string) any {
	tb.Helper()
	reply, err := s.Do(args...)
	if err != nil {
		tb.Fatal(err)
	}
	return reply
}

// FreeAddr returns a loopback address on which nothing listens. Its port is
// below the ones that Linux hands out by itself (32768 and up): no outgoing
// connection and no other test's ":0" listener takes it a moment later, and
// dialing it cannot connect to itself.
func FreeAddr() (string, error) {
	for range 100 {
		addr := fmt.Sprintf("127.0.0.1:%d", 10000+rand.IntN(22000))
		l, err := net.Listen("tcp", addr)
		if err != nil {
			continue // taken
		}
		if err := l.Close(); err != nil {
			return "", err
		}
		// Closed here, the listener lives on in a child that was forked meanwhile
		// and has not reached its exec. Only a refused connection proves the end.
		conn, err := net.Dial("tcp", addr)
		if err != nil {
			return addr, nil
		}
		_ = conn.Close()
	}
	return "", errors.New("redistest: no free port in 100 tries")
}

// Mute returns the address of a listener that accepts connections and never
// says a word: a server that hangs. It ends with the test.
func Mute(tb testing.TB) string {
	tb.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		tb.Fatal(err)
	}
	var wg sync.WaitGroup
	wg.Go(func() {
		var conns []net.Conn
		for {
			conn, err := l.Accept()
			if err != nil {
				break
			}
			conns = append(conns, conn)
		}
		for _, conn := range conns {
			_ = conn.Close()
		}
	})
	tb.Cleanup(func() {
		_ = l.Close()
		wg.Wait()
	})
	return l.Addr().String()
}
