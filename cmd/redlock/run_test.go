//go:build linux || darwin || freebsd || netbsd || openbsd || dragonfly

package main

import (
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/quorumlock/redlock/internal/redistest"
)

func ownGroup(cmd *exec.Cmd) { cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true} }

func beating(file string, stubborn ...string) []string {
	return append([]string{os.Args[0], beatCommand, file}, stubborn...)
}

// startBeat starts a run of a beat, and returns when the command runs.
func startBeat(t *testing.T, servers []*redistest.Server, flags []string, command ...string) *program {
	t.Helper()
	return startBeatOf(t, servers, "job", flags, command...)
}

func startBeatOf(t *testing.T, servers []*redistest.Server, name string, flags []string, command ...string) *program {
	t.Helper()
	args := append(onFresh(flags...), name, "--")
	p := start(t, urls(servers), append(args, command...)...)
	p.says("beating")
	return p
}

// windowEnd returns an instant at which the window of the lock, that has not been
// renewed yet, is over for sure: what the instances have left of it was counted from
// a later moment than it, and is shorter by the drift.
func windowEnd(t *testing.T, servers []*redistest.Server, name string, ttl time.Duration) time.Time {
	t.Helper()
	var end time.Time
	for _, s := range servers {
		ms, _ := s.MustDo(t, "PTTL", name).(int64)
		require.Positive(t, ms)
		e := time.Now().Add(time.Duration(ms)*time.Millisecond - ttl/100 - 2*time.Millisecond)
		if end.IsZero() || e.Before(end) {
			end = e
		}
	}
	return end
}

func TestTheExitCodeIsTheCommands(t *testing.T) {
	t.Parallel()
	servers := redistest.StartN(t, 3)
	for script, want := range map[string]int{
		"exit 0":        0,
		"exit 1":        1,
		"exit 75":       75,
		"exit 255":      255,
		"kill -TERM $$": 143,
		"kill -KILL $$": 137,
		"kill -INT $$":  130,
	} {
		code, stdout, stderr := execute(t, urls(servers), onFresh("job", "--", "sh", "-c", "echo running; "+script)...)
		require.Equal(t, want, code, script)
		require.Equal(t, "running\n", stdout)
		require.Empty(t, stderr)
		requireUnlocked(t, servers...)
	}
}

func TestWhatCantBeRunIsNotLocked(t *testing.T) {
	t.Parallel()
	servers := redistest.StartN(t, 3)
	file := filepath.Join(t.TempDir(), "file")
	require.NoError(t, os.WriteFile(file, []byte("no program"), 0o600))
	for _, test := range []struct {
		command, says string
		code          int
	}{
		{"no-such-command-anywhere", "executable file not found", exitNotFound},
		{file + "-not", "no such file or directory", exitNotFound},
		{file, "permission denied", exitNotExecutable},
		{filepath.Dir(file), "is a directory", exitNotExecutable},
	} {
		code, _, stderr := execute(t, urls(servers), onFresh("job", "--", test.command)...)
		require.Equal(t, test.code, code, stderr)
		require.Contains(t, stderr, test.says)
		require.Zero(t, servers[0].MustDo(t, "DBSIZE"))
	}
	// What only shows when it is run is locked before, and free then.
	require.NoError(t, os.Chmod(file, 0o700)) //nolint:gosec // that is the test
	code, _, stderr := execute(t, urls(servers), onFresh("job", "--", file)...)
	require.Equal(t, exitNotExecutable, code)
	require.Contains(t, stderr, "exec format error")
	requireUnlocked(t, servers...)
}

func TestWhoComesSecondIsBusy(t *testing.T) {
	t.Parallel()
	servers := redistest.StartN(t, 3)
	startBeat(t, servers, nil, beating(filepath.Join(t.TempDir(), "beat"))...)
	for _, test := range []struct {
		flags []string
		code  int
	}{
		{[]string{"-n"}, 75},
		{[]string{"--wait", "0"}, 75},
		{[]string{"--wait=100ms"}, 75},
		{[]string{"-n", "-E", "0"}, 0},
		{[]string{"-E", "255", "-n"}, 255},
	} {
		began := time.Now()
		code, stdout, stderr := execute(t, urls(servers), onFresh(append(test.flags, "job", "--", "echo", "ran")...)...)
		require.Equal(t, test.code, code, test.flags)
		require.Empty(t, stdout)
		if test.code == 0 {
			require.Empty(t, stderr, "a success has nothing to tell")
		} else {
			require.Contains(t, stderr, `redlock run: taken: acquire "job"`)
		}
		require.Less(t, time.Since(began), 10*time.Second)
	}
}

func TestWhoWaitsRunsNext(t *testing.T) {
	t.Parallel()
	servers := redistest.StartN(t, 3)
	one, two := filepath.Join(t.TempDir(), "beat"), filepath.Join(t.TempDir(), "beat")
	holder := startBeat(t, servers, nil, beating(one)...)
	waiter := start(t, urls(servers), append(onFresh("job", "--"), beating(two)...)...)
	eventually(t, func() bool { return servers[0].MustDo(t, "EXISTS", "{}:waiting") == int64(1) })
	holder.send(syscall.SIGTERM)
	waiter.says("beating")
	require.Equal(t, 3, holder.code())
	require.Greater(t, first(t, two, "start"), last(t, one))
	waiter.send(syscall.SIGTERM)
	require.Equal(t, 3, waiter.code())
}

func TestWithoutAQuorumItIsUnavailable(t *testing.T) {
	t.Parallel()
	servers := redistest.StartN(t, 3)
	for _, s := range servers[:2] {
		require.NoError(t, s.Kill())
	}
	for _, flag := range []string{"-n", "--wait=100ms"} {
		code, stdout, stderr := execute(t, urls(servers), onFresh(flag, "job", "--", "echo", "ran")...)
		require.Equal(t, exitUnavailable, code)
		require.Empty(t, stdout)
		require.Contains(t, stderr, "redlock run: no quorum")
		require.Contains(t, stderr, servers[0].Addr()+": dial tcp")
		requireUnlocked(t, servers...)
	}
}

// An instance that has just been started may have forgotten who holds the lock.
func TestAFreshInstanceDoesNotCount(t *testing.T) {
	t.Parallel()
	servers := redistest.StartN(t, 1)
	code, _, stderr := execute(t, urls(servers), "run", "-n", "--quarantine", "1h", "job", "--", "true")
	require.Equal(t, exitUnavailable, code)
	require.Contains(t, stderr, "quarantined for 59m")
	code, _, stderr = execute(t, urls(servers), "run", "-n", "job", "--", "true")
	require.Equal(t, exitUnavailable, code)
	require.Regexp(t, `quarantined for (3[012]|2\d)\.\d+s more`, stderr, "the ttl and 2s")

	// Who waits is told, once.
	p := start(t, urls(servers), "run", "job", "--", "true")
	eventually(t, func() bool { return strings.Contains(p.stderr.String(), "\n") })
	require.Regexp(t, `^redlock run: waiting: no quorum: `+servers[0].Addr()+`: quarantined for [23]\d\.\d+s more: [^\n]*\n$`, p.stderr.String())
	p.send(syscall.SIGTERM)
	require.Equal(t, 128+int(syscall.SIGTERM), p.code())
	require.Equal(t, 1, strings.Count(p.stderr.String(), "waiting: "))
}

func TestTheCommandKnowsItsLock(t *testing.T) {
	t.Parallel()
	servers := redistest.StartN(t, 3)
	const show = `echo "$REDLOCK_NAME $REDLOCK_TTL_MS $REDLOCK_TOKEN"`
	var tokens []uint64
	for range 2 {
		p := prepare(t, urls(servers), onFresh("--ttl", "12345ms", "--prefix", "jobs:", "my job", "--", "sh", "-c", show)...)
		p.Env = append(p.Env, "REDLOCK_NAME=an outer one's", "REDLOCK_TOKEN=1")
		p.launch()
		require.Equal(t, 0, p.code(), p.stderr.String())
		words := strings.TrimSpace(p.stdout.String())
		require.True(t, strings.HasPrefix(words, "my job 12345 "), words)
		token, err := strconv.ParseUint(words[len("my job 12345 "):], 10, 64)
		require.NoError(t, err)
		has := 0
		for _, s := range servers {
			if s.MustDo(t, "GET", "jobs:{jobs:my job}:fence") == strconv.FormatUint(token, 10) {
				has++
			}
		}
		require.GreaterOrEqual(t, has, 2, "a minority need not have heard of so short a lock")
		tokens = append(tokens, token)
	}
	require.Greater(t, tokens[1], tokens[0])
}

func TestASignalEndsTheWait(t *testing.T) {
	t.Parallel()
	servers := redistest.StartN(t, 3)
	holder := startBeat(t, servers, nil, beating(filepath.Join(t.TempDir(), "beat"))...)
	for _, sig := range []syscall.Signal{syscall.SIGINT, syscall.SIGTERM, syscall.SIGHUP, syscall.SIGQUIT} {
		p := start(t, urls(servers), onFresh("job", "--", "echo", "ran")...)
		eventually(t, func() bool { return servers[0].MustDo(t, "EXISTS", "{}:waiting") == int64(1) })
		p.send(sig)
		began := time.Now()
		require.Equal(t, 128+int(sig), p.code())
		require.Less(t, time.Since(began), 5*time.Second)
		require.Empty(t, p.stdout.String())
		require.Contains(t, p.stderr.String(), "before that: taken")
		servers[0].MustDo(t, "DEL", "{}:waiting")
	}
	holder.send(syscall.SIGTERM)
	require.Equal(t, 3, holder.code())
	requireUnlocked(t, servers...)
}

// Also while an instance hangs.
func TestASignalEndsAnAcquire(t *testing.T) {
	t.Parallel()
	mute, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	defer mute.Close()
	p := start(t, []string{mute.Addr().String()}, onFresh("job", "--", "echo", "ran")...)
	conn, err := mute.Accept()
	require.NoError(t, err)
	defer conn.Close()
	p.send(syscall.SIGTERM)
	began := time.Now()
	require.Equal(t, 143, p.code())
	require.Less(t, time.Since(began), 6*time.Second)
	require.Empty(t, p.stdout.String())
}

func TestSignalsReachTheCommand(t *testing.T) {
	t.Parallel()
	servers := redistest.StartN(t, 3)
	file := filepath.Join(t.TempDir(), "beat")
	p := startBeat(t, servers, nil, beating(file)...)
	for _, sig := range []syscall.Signal{syscall.SIGHUP, syscall.SIGINT, syscall.SIGQUIT, syscall.SIGUSR1, syscall.SIGUSR2, syscall.SIGALRM, syscall.SIGWINCH} {
		p.send(sig)
		eventually(t, func() bool { return len(pulses(t, file, sig.String())) == 1 })
	}
	p.send(syscall.SIGINT) // a second ctrl-C
	eventually(t, func() bool { return len(pulses(t, file, syscall.SIGINT.String())) == 2 })
	p.send(syscall.SIGTERM)
	require.Equal(t, 3, p.code(), "the command's own")
	require.Empty(t, p.stderr.String())
	requireUnlocked(t, servers...)
}

// nohup redlock run ... is to work as redlock run ... nohup would.
func TestWhatIsIgnoredStaysIgnored(t *testing.T) {
	t.Parallel()
	servers := redistest.StartN(t, 1)
	p := prepare(t, urls(servers))
	p.Path, p.Args = "/bin/sh", append([]string{"sh", "-c", `trap "" HUP; exec "$TEST_BINARY" "$@"`, "sh"},
		onFresh("job", "--", "sh", "-c", "kill -HUP $$; echo lives")...)
	p.launch()
	require.Equal(t, 0, p.code())
	require.Equal(t, "lives\n", p.stdout.String())
}

func TestALostLockStopsTheCommand(t *testing.T) {
	t.Parallel()
	const ttl, grace = 6 * time.Second, 1500 * time.Millisecond
	flags := []string{"--ttl", ttl.String(), "--grace", grace.String()}
	for name, test := range map[string]struct {
		says string
		lose func(s *redistest.Server, name string)
	}{
		"deleted":    {"expired", func(s *redistest.Server, name string) { s.MustDo(t, "DEL", name) }},
		"taken over": {"taken over", func(s *redistest.Server, name string) { s.MustDo(t, "SET", name, "somebody else") }},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			servers := redistest.StartN(t, 3)
			obedient, stubborn := filepath.Join(t.TempDir(), "beat"), filepath.Join(t.TempDir(), "beat")
			p := startBeatOf(t, servers, "obedient", flags, beating(obedient)...)
			q := startBeatOf(t, servers, "stubborn", flags, beating(stubborn, "stubborn")...)
			end := windowEnd(t, servers, "stubborn", ttl)
			for _, s := range servers[:2] { // a majority is enough
				test.lose(s, "obedient")
				test.lose(s, "stubborn")
			}
			lost := time.Now()
			require.Less(t, lost, end.Add(-2*ttl/3), "the test is too slow for its lock: it was renewed")

			require.Equal(t, exitLost, p.code())
			require.Contains(t, p.stderr.String(), test.says)
			require.Contains(t, p.stderr.String(), "the command was told to stop, and ended")
			require.Less(t, first(t, obedient, syscall.SIGTERM.String()).Sub(lost), ttl/3+slack, "at the next renewal")
			requireDead(t, obedient)

			require.Equal(t, exitLost, q.code())
			require.Contains(t, q.stderr.String(), test.says)
			require.Contains(t, q.stderr.String(), "the command was told to stop, and killed")
			told, died := first(t, stubborn, syscall.SIGTERM.String()), last(t, stubborn)
			require.GreaterOrEqual(t, died.Sub(told), grace-slack/2)
			require.Less(t, died.Sub(told), grace+slack)
			require.Less(t, died, end)
			requireDead(t, stubborn)
		})
	}
}

// Whatever the instances do, the command is dead before the window is over: told
// when the grace period is left, killed at the end.
func TestNoCommandOutlivesTheWindow(t *testing.T) {
	t.Parallel()
	const ttl, grace = 6 * time.Second, 2 * time.Second
	flags := []string{"--ttl", ttl.String(), "--grace", grace.String()}
	for name, fault := range map[string]func(s *redistest.Server) error{
		"hung":    (*redistest.Server).Pause,
		"stopped": (*redistest.Server).Kill,
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			servers := redistest.StartN(t, 3)
			obedient, stubborn := filepath.Join(t.TempDir(), "beat"), filepath.Join(t.TempDir(), "beat")
			p := startBeatOf(t, servers, "obedient", flags, beating(obedient)...)
			q := startBeatOf(t, servers, "stubborn", flags, beating(stubborn, "stubborn")...)
			pEnd, qEnd := windowEnd(t, servers, "obedient", ttl), windowEnd(t, servers, "stubborn", ttl)
			for _, s := range servers {
				require.NoError(t, fault(s))
			}
			require.Less(t, time.Now(), pEnd.Add(-2*ttl/3), "the test is too slow for its lock: it was renewed")
			for _, p := range []*program{p, q} {
				require.Equal(t, exitLost, p.code())
				require.Contains(t, p.stderr.String(), "could not be renewed")
				require.Contains(t, p.stderr.String(), servers[0].Addr(), "which instances, and why")
			}
			require.Less(t, last(t, obedient), pEnd)
			require.Less(t, last(t, stubborn), qEnd)
			require.Greater(t, last(t, stubborn), qEnd.Add(-slack), "and not before the end of the grace period")
			require.Greater(t, first(t, obedient, syscall.SIGTERM.String()), pEnd.Add(-grace-slack), "not before the grace period")
			require.Greater(t, first(t, stubborn, syscall.SIGTERM.String()), qEnd.Add(-grace-slack), "not before the grace period")
			requireDead(t, obedient)
			requireDead(t, stubborn)
		})
	}
}

// A lock that is renewed holds for longer than its ttl, with a minority down.
func TestTheLockIsRenewed(t *testing.T) {
	t.Parallel()
	servers := redistest.StartN(t, 3)
	file := filepath.Join(t.TempDir(), "beat")
	p := startBeat(t, servers, []string{"--ttl", "3s"}, beating(file)...)
	require.NoError(t, servers[2].Kill())
	eventually(t, func() bool { return last(t, file).Sub(first(t, file, "start")) > 4*time.Second })
	code, _, _ := execute(t, urls(servers), onFresh("-n", "job", "--", "true")...)
	require.Equal(t, exitBusy, code)
	p.send(syscall.SIGTERM)
	require.Equal(t, 3, p.code())
}

// The command obeys, what it has started does not: all of it is gone before the
// window is over.
func TestAGrandchildDiesWithTheLock(t *testing.T) {
	t.Parallel()
	const ttl, grace = 4 * time.Second, time.Second
	servers := redistest.StartN(t, 3)
	file := filepath.Join(t.TempDir(), "beat")
	p := startBeat(t, servers, []string{"--ttl", ttl.String(), "--grace", grace.String()},
		"sh", "-c", `"$TEST_BINARY" beat "$0" stubborn & wait`, file)
	end := windowEnd(t, servers, "job", ttl)
	for _, s := range servers {
		require.NoError(t, s.Pause())
	}
	require.Equal(t, exitLost, p.code())
	require.NotEmpty(t, pulses(t, file, syscall.SIGTERM.String()))
	require.Less(t, last(t, file), end)
	requireDead(t, file)
}

// The command ends by itself, and leaves somebody behind: the lock is free only
// when he is dead.
func TestNobodyIsLeftWhenTheLockIsFree(t *testing.T) {
	t.Parallel()
	servers := redistest.StartN(t, 3)
	file := filepath.Join(t.TempDir(), "beat")
	p := startBeat(t, servers, []string{"--grace", "1s"},
		"sh", "-c", `"$TEST_BINARY" beat "$0" stubborn & while ! [ -s "$0" ]; do sleep 0.01; done; exit 7`, file)
	next := start(t, urls(servers), onFresh("job", "--", "date", "+%s%N")...)
	require.Equal(t, 7, p.code())
	require.Empty(t, p.stderr.String())
	require.Equal(t, 0, next.code())
	began, err := strconv.ParseInt(strings.TrimSpace(next.stdout.String()), 10, 64)
	require.NoError(t, err)
	require.NotEmpty(t, pulses(t, file, syscall.SIGTERM.String()))
	died := last(t, file)
	require.GreaterOrEqual(t, died.Sub(first(t, file, syscall.SIGTERM.String())), time.Second-slack/2)
	require.Less(t, died, time.Unix(0, began))
	requireDead(t, file)
	requireUnlocked(t, servers...)
}
