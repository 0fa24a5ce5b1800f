package compare

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"github.com/alicebob/miniredis/v2"

	"github.com/quorumlock/redlock/internal/redistest"
)

// A node is one Redis server.
type node interface {
	Addr() string
	Kill() error
	Restart() error // without its data, if it is a server
	Pause() error
	Resume() error
	Flush() error
	Shift(d time.Duration) error // of its clock
	Do(args ...string) (any, error)
	PID() int // 0 if it is no process of its own
	Close() error
}

// A server is a redis-server process.
type server struct {
	*redistest.Server
	clock *redistest.Clock // nil without one of its own
}

// launchServer starts a server without persistence, as a cache is run, and as most
// counter-examples want it. A replica gets its data at once, not after the 5 s in
// which a master waits for more replicas.
func launchServer(clock bool) (server, error) {
	args := []string{"--repl-diskless-sync-delay", "0"}
	if !clock {
		s, err := redistest.Launch(args...)
		return server{Server: s}, err
	}
	c, err := redistest.LaunchWithClock(args...)
	if err != nil {
		return server{}, err
	}
	return server{Server: c.Server, clock: c}, nil
}

func (s server) Shift(d time.Duration) error { return s.clock.Shift(d) }

func (s server) Flush() error {
	_, err := s.Do("FLUSHALL")
	return err
}

// embedded is an instance inside this process. It keeps its data when it is
// killed.
type embedded struct {
	*miniredis.Miniredis
	addr  string
	proxy *redistest.Proxy // which hangs for it
}

func launchEmbedded() (*embedded, error) {
	var err error
	for range 50 {
		// A port below those that a system hands out by itself: no connection of
		// anybody takes it while the instance is dead.
		m := miniredis.NewMiniRedis()
		if err = m.StartAddr(fmt.Sprintf("127.0.0.1:%d", 10000+rand.IntN(20000))); err == nil {
			m.ClockTTL(true) // keys expire by themselves, as on a server
			return &embedded{Miniredis: m, addr: m.Addr()}, nil
		}
	}
	return nil, err
}

func (e *embedded) Addr() string { return e.addr }

func (e *embedded) Kill() error {
	e.Miniredis.Close()
	return nil
}

func (e *embedded) Pause() error {
	e.proxy.HoldRequests(true)
	return nil
}

func (e *embedded) Resume() error {
	e.proxy.HoldRequests(false)
	return nil
}

func (e *embedded) Flush() error {
	e.FlushAll()
	return nil
}

var errEmbedded = errors.New("an embedded instance can't do that")

func (e *embedded) Shift(time.Duration) error   { return errEmbedded }
func (e *embedded) Do(_ ...string) (any, error) { return nil, errEmbedded }
func (e *embedded) PID() int                    { return 0 }
func (e *embedded) Close() error {
	e.Miniredis.Close()
	return nil
}

// cpuTime returns what the threads of a process have used so far, 0 if that can't be
// told. It is in nanoseconds, where /proc/pid/stat has hundredths of a second: a server
// that was little used would have used nothing.
func cpuTime(pid int) (used time.Duration) {
	threads, _ := filepath.Glob(fmt.Sprintf("/proc/%d/task/*/schedstat", pid))
	for _, file := range threads {
		text, err := os.ReadFile(file)
		if err != nil {
			continue // it has ended
		}
		first, _, _ := strings.Cut(string(text), " ")
		ns, _ := strconv.ParseInt(first, 10, 64)
		used += time.Duration(ns)
	}
	return used
}
