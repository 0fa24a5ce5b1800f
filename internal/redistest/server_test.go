package redistest

import (
	"bufio"
	"bytes"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"sync"
	"testing"

	"github.com/stretchr/testify/require"
)

func TestCloseLeavesNothing(t *testing.T) {
	Need(t)
	s, err := Launch()
	require.NoError(t, err)
	pid := s.PID()
	require.DirExists(t, s.Dir())
	require.Equal(t, "redis://"+s.Addr()+"/0", s.URL())
	require.Equal(t, "PONG", s.MustDo(t, "PING"))

	require.NoError(t, s.Close())
	require.NoDirExists(t, s.Dir())
	require.NoDirExists(t, fmt.Sprintf("/proc/%d", pid))
	require.Zero(t, s.PID())
	_, err = s.Do("PING")
	require.ErrorContains(t, err, "connection refused")

	require.NoError(t, s.Close())
	require.NoError(t, s.Kill())
	require.ErrorContains(t, s.Restart(), "closed")
	require.Error(t, s.Pause())
	require.Error(t, s.Resume())
}

func TestDoReadsEveryKindOfReply(t *testing.T) {
	t.Parallel()
	s := Start(t)
	require.Equal(t, "OK", s.MustDo(t, "SET", "k", "two\r\nlines\x00"))
	require.Equal(t, "two\r\nlines\x00", s.MustDo(t, "GET", "k"))
	require.Equal(t, "", s.MustDo(t, "ECHO", ""))
	require.Nil(t, s.MustDo(t, "GET", "none"))
	require.Nil(t, s.MustDo(t, "BLPOP", "none", "0.01"))
	require.Equal(t, int64(-7), s.MustDo(t, "DECRBY", "n", "7"))
	require.Equal(t, []any{int64(1), "a", nil, []any{}, replyError("MY error")},
		s.MustDo(t, "EVAL", "return {1, 'a', false, {}, redis.error_reply('MY error')}", "0"))

	_, err := s.Do("INCR", "k")
	require.EqualError(t, err, "ERR value is not an integer or out of range")
}

func TestServersThatRefuseAreReady(t *testing.T) {
	t.Parallel()
	t.Run("requirepass", func(t *testing.T) {
		_, err := Start(t, "--requirepass", "secret").Do("PING")
		require.EqualError(t, err, "NOAUTH Authentication required.")
	})
	t.Run("no INFO", func(t *testing.T) {
		s := Start(t, "--rename-command", "INFO", "")
		require.Equal(t, "PONG", s.MustDo(t, "PING"))
	})
	// Neither the wait for the server nor a Do leaves a connection behind that
	// would make the next one too many.
	t.Run("maxclients", func(t *testing.T) {
		s := Start(t, "--maxclients", "1")
		for range 100 {
			require.Equal(t, "PONG", s.MustDo(t, "PING"))
		}
		c := connect(t, s.Addr())
		c.send("PING")
		c.reply("PONG")
		_, err := s.Do("PING")
		require.EqualError(t, err, "ERR max number of clients reached")
	})
	t.Run("loading", func(t *testing.T) {
		// One millisecond a key: a quarter of a second at first, then ten.
		s := Start(t, "--enable-debug-command", "yes", "--key-load-delay", "1000", "--loading-process-events-interval-bytes", "1024")
		s.MustDo(t, "DEBUG", "POPULATE", "250")
		s.MustDo(t, "SAVE")
		require.NoError(t, s.Restart())
		require.Equal(t, "value:1", s.MustDo(t, "GET", "key:1"))

		s.MustDo(t, "DEBUG", "POPULATE", "10000")
		s.MustDo(t, "SAVE")
		require.NoError(t, s.Restart())
		_, err := s.Do("GET", "key:1")
		require.ErrorContains(t, err, "LOADING")
	})
	t.Run("unixsocket", func(t *testing.T) {
		s := Start(t, "--unixsocket", "redis.sock")
		conn, err := net.Dial("unix", filepath.Join(s.Dir(), "redis.sock"))
		require.NoError(t, err)
		require.NoError(t, conn.Close())
	})
}

func TestRestartForgetsAllButPortAndDirectory(t *testing.T) {
	s := Start(t)
	addr, dir, pid := s.Addr(), s.Dir(), s.PID()
	s.MustDo(t, "SET", "k", "v")
	require.NoError(t, s.Kill())
	require.NoError(t, s.Kill())
	require.Zero(t, s.PID())

	require.NoError(t, s.Restart())
	require.Nil(t, s.MustDo(t, "GET", "k"))
	require.Equal(t, addr, s.Addr())
	require.Equal(t, dir, s.Dir())
	require.NotEqual(t, pid, s.PID())
}

func TestRestartWithChangesTheArgumentsForGood(t *testing.T) {
	s := Start(t)
	require.NoError(t, s.RestartWith("--appendonly", "yes", "--appendfsync", "always"))
	s.MustDo(t, "SET", "k", "v")
	require.NoError(t, s.Restart()) // while it runs
	require.Equal(t, "v", s.MustDo(t, "GET", "k"))
}

func TestServerThatEndedByItselfRestarts(t *testing.T) {
	s := Start(t)
	_, err := s.Do("SHUTDOWN", "NOSAVE")
	require.Error(t, err)
	eventually(t, func() bool { return s.PID() == 0 }, "the server ends")
	require.NoError(t, s.Restart())
	require.Equal(t, "PONG", s.MustDo(t, "PING"))
}

func TestPausedServerKeepsRequestsWaiting(t *testing.T) {
	t.Parallel()
	s := Start(t)
	c := connect(t, s.Addr())
	for range 20 {
		require.NoError(t, s.Pause())
		is, err := stopped(s.PID())
		require.NoError(t, err)
		require.True(t, is, "Pause returns when the server has really stopped")
		require.NoError(t, s.Resume())
	}
	require.NoError(t, s.Pause())
	require.NoError(t, s.Pause())
	c.send("INCR k")
	c.silent()
	connect(t, s.Addr()) // the kernel accepts
	require.NoError(t, s.Resume())
	c.reply(int64(1))

	require.NoError(t, s.Pause())
	require.NoError(t, s.Restart(), "a paused server can be killed")
	require.Equal(t, "PONG", s.MustDo(t, "PING"))
	require.NoError(t, s.Pause())
	require.NoError(t, s.Close())
}

// The child is killed the hard way, so none of its own clean-up runs.
func TestServerDiesWithItsParent(t *testing.T) {
	Need(t)
	if runtime.GOOS != "linux" {
		t.Skip("SKIPPED, NOT PASSED: Pdeathsig needs Linux")
	}
	cmd := exec.Command(os.Args[0])
	cmd.Env = append(os.Environ(), childEnv+"=1", "TMPDIR="+t.TempDir())
	stdin, err := cmd.StdinPipe()
	require.NoError(t, err)
	defer stdin.Close()
	stdout, err := cmd.StdoutPipe()
	require.NoError(t, err)
	require.NoError(t, cmd.Start())
	addr, err := bufio.NewReader(stdout).ReadString('\n')
	require.NoError(t, err)

	c := connect(t, strings.TrimSpace(addr))
	c.send("PING")
	c.reply("PONG")
	require.NoError(t, cmd.Process.Kill())
	_ = cmd.Wait()
	c.ended()
}

// Pdeathsig follows a thread. Threads of a Go program end, for instance when a
// goroutine that is locked to one returns.
func TestServerOutlivesTheThreadThatAskedForIt(t *testing.T) {
	Need(t)
	var s *Server
	var err error
	onDyingThread(t, func() { s, err = Launch() })
	require.NoError(t, err)
	defer s.Close()
	require.Equal(t, "PONG", s.MustDo(t, "PING"))
	require.NotZero(t, s.PID())
}

func TestFailedStartShowsTheLogAndLeavesNothing(t *testing.T) {
	Need(t)
	dir := t.TempDir()
	t.Setenv("TMPDIR", dir)
	_, err := Launch("--no-such-option", "x")
	require.ErrorContains(t, err, "Bad directive")
	left, err := os.ReadDir(dir)
	require.NoError(t, err)
	require.Empty(t, left)
}

// The stranger answers like a Redis with a password. Taking it for the server
// would be the worst kind of flake.
func TestRestartIsNotFooledByAStrangerOnItsPort(t *testing.T) {
	s := Start(t)
	require.NoError(t, s.Kill())
	_, stranger := serve(t, s.Addr(), func(conn net.Conn) {
		_, _ = conn.Write([]byte("-NOAUTH Authentication required.\r\n"))
	})
	err := s.Restart()
	require.ErrorIs(t, err, ErrPortTaken)
	require.ErrorContains(t, err, "Address already in use")
	require.Zero(t, s.PID())

	stranger()
	require.NoError(t, s.Restart())
	require.Equal(t, "PONG", s.MustDo(t, "PING"))
}

// Another process may try whether a port is free just when its server is down.
func TestRestartWaitsForAPortThatIsTakenForAMoment(t *testing.T) {
	s := Start(t)
	require.NoError(t, s.Kill())
	_, stranger := serve(t, s.Addr(), func(net.Conn) {})
	restarted := make(chan error, 1)
	go func() { restarted <- s.Restart() }()
	require.Eventually(t, func() bool {
		log, err := os.ReadFile(filepath.Join(s.Dir(), "redis.log"))
		return err == nil && bytes.Contains(log, []byte("Address already in use"))
	}, startTimeout, startPoll)
	stranger()
	require.NoError(t, <-restarted)
	require.Equal(t, "PONG", s.MustDo(t, "PING"))
}

// The wrapper fails like a server that lost the race for its port, once.
func TestLaunchTriesAnotherPort(t *testing.T) {
	Need(t)
	bin, err := binary()
	require.NoError(t, err)
	wrapper := filepath.Join(t.TempDir(), "server")
	ports := filepath.Join(t.TempDir(), "ports")
	script := fmt.Sprintf(`#!/bin/sh
echo "$2" >> %[1]s
if [ $(wc -l < %[1]s) = 1 ]; then echo "bind: Address already in use"; exit 1; fi
exec %[2]s "$@"
`, ports, bin)
	require.NoError(t, os.WriteFile(wrapper, []byte(script), 0o700))
	t.Setenv("REDLOCK_REDIS_SERVER", wrapper)

	s := Start(t)
	require.Equal(t, "PONG", s.MustDo(t, "PING"))
	text, err := os.ReadFile(ports)
	require.NoError(t, err)
	tried := strings.Fields(string(text))
	require.Len(t, tried, 2)
	require.NotEqual(t, tried[0], tried[1])
	require.Equal(t, "127.0.0.1:"+tried[1], s.Addr())
}

func TestServersAreDistinct(t *testing.T) {
	servers := StartN(t, 3)
	addrs := Addrs(servers)
	require.Len(t, addrs, 3)
	for i, s := range servers {
		require.Equal(t, s.Addr(), addrs[i])
		require.NotContains(t, addrs[:i], s.Addr())
		require.Nil(t, s.MustDo(t, "GET", "k"))
		s.MustDo(t, "SET", "k", "v")
	}
}

func TestMissingServerIsSkippedLoudlyOrFails(t *testing.T) {
	t.Setenv("REDLOCK_REDIS_SERVER", filepath.Join(t.TempDir(), "none"))
	t.Setenv("REDLOCK_REQUIRE_REDIS", "")
	var skip, fatal recorder
	skip.run(func() { Start(&skip) })
	require.Regexp(t, "^SKIPPED, NOT PASSED: no redis-server on PATH", skip.skipped)
	require.Empty(t, skip.failed)

	t.Setenv("REDLOCK_REQUIRE_REDIS", "1")
	fatal.run(func() { StartN(&fatal, 3) })
	require.Empty(t, fatal.skipped)
	require.Contains(t, fatal.failed, "no redis-server on PATH")
}

func TestFreeAddrRefuses(t *testing.T) {
	addr, err := FreeAddr()
	require.NoError(t, err)
	_, err = net.Dial("tcp", addr)
	require.ErrorContains(t, err, "connection refused")
}

func TestMuteAcceptsAndSaysNothing(t *testing.T) {
	t.Parallel()
	c := connect(t, Mute(t))
	c.send("PING")
	c.silent()
}

// recorder is a testing.TB that records how it was ended.
type recorder struct {
	testing.TB
	skipped, failed string
}

func (r *recorder) Helper() {}

func (r *recorder) Skipf(format string, args ...any) {
	r.skipped = fmt.Sprintf(format, args...)
	runtime.Goexit()
}

func (r *recorder) Fatalf(format string, args ...any) {
	r.failed = fmt.Sprintf(format, args...)
	runtime.Goexit()
}

func (r *recorder) run(f func()) {
	var wg sync.WaitGroup
	wg.Go(f)
	wg.Wait()
}

// serve answers every connection to addr with what handle does, until stop is
// called (the test's end does it too).
func serve(t *testing.T, addr string, handle func(net.Conn)) (listening string, stop func()) {
	t.Helper()
	l, err := net.Listen("tcp", addr)
	require.NoError(t, err)
	var wg sync.WaitGroup
	wg.Go(func() {
		for {
			conn, err := l.Accept()
			if err != nil {
				return
			}
			wg.Go(func() {
				defer conn.Close()
				handle(conn)
			})
		}
	})
	stop = sync.OnceFunc(func() {
		_ = l.Close()
		wg.Wait()
	})
	t.Cleanup(stop)
	return l.Addr().String(), stop
}

func TestAServerOnAPortThatIsTakenDoesNotStart(t *testing.T) {
	s := Start(t)
	_, err := LaunchOn(s.Addr())
	require.ErrorIs(t, err, ErrPortTaken)
	require.ErrorContains(t, err, s.Addr())
	require.NoError(t, s.Kill())
	other, err := LaunchOn(s.Addr())
	require.NoError(t, err)
	defer other.Close()
	require.Equal(t, s.Addr(), other.Addr())
	require.Equal(t, "PONG", other.MustDo(t, "PING"))
}
