package faults

import (
	"bytes"
	"context"
	"net"
	"os"
	"os/signal"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/quorumlock/redlock/chaos/internal/cli"
	"github.com/quorumlock/redlock/internal/redistest"
)

// commandVariable makes this binary the command: its value is the arguments.
const commandVariable = "REDLOCK_CHAOS_FAULTS_COMMAND"

func command(args string) int {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt)
	defer stop()
	return Main(ctx, strings.Fields(args), os.Stdout, os.Stderr)
}

// run calls the command with a directory of its own for temporary files, and requires
// that nothing is left in it, nor any process.
func run(t *testing.T, ctx context.Context, args ...string) (code int, stdout, stderr string) {
	t.Helper()
	t.Setenv("TMPDIR", t.TempDir())
	before := children(t, os.Getpid())
	var out, errs bytes.Buffer
	code = Main(ctx, args, &out, &errs)
	require.Equal(t, before, children(t, os.Getpid()))
	requireEmpty(t, os.TempDir())
	return code, out.String(), errs.String()
}

func requireEmpty(t *testing.T, dir string) {
	t.Helper()
	left, err := os.ReadDir(dir)
	require.NoError(t, err)
	require.Empty(t, left)
}

// children returns the ids of a process's children; none where there is no /proc.
func children(t *testing.T, pid int) []int {
	t.Helper()
	stats, err := filepath.Glob("/proc/[0-9]*/stat")
	require.NoError(t, err)
	var ids []int
	for _, path := range stats {
		text, err := os.ReadFile(path)
		if err != nil {
			continue // it has ended
		}
		// "pid (comm) state ppid ...", and comm may hold anything.
		fields := strings.Fields(string(text[bytes.LastIndexByte(text, ')')+1:]))
		if fields[1] == strconv.Itoa(pid) && fields[0] != "Z" {
			id, err := strconv.Atoi(filepath.Base(filepath.Dir(path)))
			require.NoError(t, err)
			ids = append(ids, id)
		}
	}
	return ids
}

func TestBadArgumentsAreRefusedInOneLine(t *testing.T) {
	for args, want := range map[string]string{
		"-scenario nonsense": `chaos faults: there is no scenario "nonsense"; -list shows all`,
		"-duration -1s":      "chaos faults: -duration -1s is not positive",
		"-processes 1":       "chaos faults: -processes 1 is not between 2 and 64",
		"-goroutines 1000":   "chaos faults: -goroutines 1000 is not between 1 and 999",
		"-port 65534":        "chaos faults: -port 65534 is not between 0 and 65530",
		"network":            `chaos faults: unexpected argument "network"`,
	} {
		code, stdout, stderr := run(t, t.Context(), strings.Fields(args)...)
		require.Equal(t, cli.Usage, code, args)
		require.Empty(t, stdout)
		require.True(t, strings.HasPrefix(stderr, want), stderr)
		require.Equal(t, 1, strings.Count(stderr, "\n"), stderr)
	}
	code, _, stderr := run(t, t.Context(), "-nonsense")
	require.Equal(t, cli.Usage, code)
	require.Contains(t, stderr, "flag provided but not defined: -nonsense")
	code, _, stderr = run(t, t.Context(), "-h")
	require.Zero(t, code)
	require.Contains(t, stderr, "Usage: go run ./chaos faults")
}

func TestTheListNamesEveryScenario(t *testing.T) {
	code, stdout, _ := run(t, t.Context(), "-list")
	require.Zero(t, code)
	require.Equal(t, len(scenarios()), strings.Count(stdout, "\n"))
	for _, s := range scenarios() {
		require.Contains(t, stdout, s.name+" ")
	}
}

func TestAMissingServerIsSaid(t *testing.T) {
	for _, name := range []string{"no-such-redis-server", "/no/such/redis-server"} {
		t.Setenv("REDLOCK_REDIS_SERVER", name)
		code, _, stderr := run(t, t.Context())
		require.Equal(t, cli.Unavailable, code)
		require.Contains(t, stderr, name)
		require.Contains(t, stderr, "install redis-server, or name one in REDLOCK_REDIS_SERVER\n")
		require.Equal(t, 1, strings.Count(stderr, "\n"), stderr)
	}
}

func TestAPortInUseIsSaid(t *testing.T) {
	redistest.Need(t)
	addr, err := redistest.FreeAddr()
	require.NoError(t, err)
	taken, err := net.Listen("tcp", addr)
	require.NoError(t, err)
	defer taken.Close()
	first, err := strconv.Atoi(port(addr))
	require.NoError(t, err)
	code, _, stderr := run(t, t.Context(), "-scenario", "network", "-port", strconv.Itoa(first-1))
	require.Equal(t, cli.Unavailable, code)
	require.Contains(t, stderr, addr+": the port is taken")
	require.Contains(t, stderr, "choose another -port\n")
	require.Equal(t, 1, strings.Count(stderr, "\n"), stderr)
}

func TestARunIsSummedUp(t *testing.T) {
	redistest.Need(t)
	code, stdout, stderr := run(t, t.Context(), "-scenario", "servers", "-duration", "1s", "-seed", "3")
	require.Zero(t, code, stdout+stderr)
	require.Regexp(t, `servers +3 +\d+ +\d+ +0 +\d+ +0 +0 `, stdout)
	require.Regexp(t, `1 runs in \d+s, 0 failed: \d+ operations checked, \d+ faults that hit something`, stdout)
	require.Empty(t, stderr)
}

// Interrupted at any moment, the command ends what it has begun.
func TestAnInterruptedRunLeavesNothing(t *testing.T) {
	redistest.Need(t)
	for _, after := range []time.Duration{50 * ms, 500 * ms, 2 * time.Second} {
		ctx, cancel := context.WithTimeout(t.Context(), after)
		code, stdout, stderr := run(t, ctx, "-scenario", "failover", "-seed", "5", "-duration", "1m")
		cancel()
		require.Equal(t, cli.Interrupted, code)
		require.Equal(t, "chaos faults: interrupted in failover, seed 5; what it began is ended\n", stderr)
		require.Contains(t, stdout, "0 runs in ")
	}
}
