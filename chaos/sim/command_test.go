package sim

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/quorumlock/redlock/chaos/internal/cli"
)

func TestBadArgumentsAreRefusedInOneLine(t *testing.T) {
	for _, args := range []string{"-schedules 0", "-jobs 0", "-whole -replays", "nonsense"} {
		var stdout, stderr bytes.Buffer
		require.Equal(t, cli.Usage, Main(t.Context(), strings.Fields(args), &stdout, &stderr), args)
		require.Empty(t, stdout.String())
		require.Equal(t, "chaos sim: takes flags only, at least one schedule and one process, and -whole or -replays\n", stderr.String())
	}
	require.Zero(t, Main(t.Context(), []string{"-h"}, io.Discard, io.Discard))
}

// What two processes have run is added up, and nothing is left of them.
func TestSharesAreAddedUp(t *testing.T) {
	if raceDetector {
		t.Skip("SKIPPED, NOT PASSED: see onOneProcessor") // what it runs is not built for it, and known
	}
	t.Setenv("TMPDIR", t.TempDir())
	var stdout, stderr bytes.Buffer
	require.Zero(t, Main(t.Context(), strings.Fields("-schedules 5 -jobs 2 -seed 3"), &stdout, &stderr), stderr.String())
	require.Contains(t, stdout.String(), "5 schedules from seed 3: no rule was broken")
	var want Counts
	for seed := range uint64(5) {
		want.Add(simulated(t, NewSchedule(3+seed), Core, false).Counts)
	}
	require.Contains(t, stdout.String(), want.String())
	left, err := os.ReadDir(os.TempDir())
	require.NoError(t, err)
	require.Empty(t, left)
}

// No schedule is left out, and none runs twice.
func TestAllIsSharedOut(t *testing.T) {
	dir := t.TempDir()
	script := dir + "/share"
	// It says which seeds it had, and that it ran so many.
	require.NoError(t, os.WriteFile(script, []byte("#!/bin/sh\necho $7 $9 >> \"$0.log\"\necho \"{\\\"Schedules\\\":$7}\" > ${11}\n"), 0o700)) //nolint:gosec // it is run
	var progress bytes.Buffer
	s := shares{test: "TestCore", dir: dir, binary: script, progress: &progress}
	all, err := s.run(t.Context(), dir, 53, 7, 3)
	require.NoError(t, err)
	require.Equal(t, 53, all.Schedules)
	require.Contains(t, progress.String(), "53 of 53 after ")
	text, err := os.ReadFile(script + ".log")
	require.NoError(t, err)
	seen := map[int]bool{}
	for line := range strings.Lines(string(text)) {
		var n, seed int
		_, err := fmt.Sscan(line, &n, &seed)
		require.NoError(t, err)
		for i := range n {
			require.False(t, seen[seed+i])
			seen[seed+i] = true
		}
	}
	for seed := range 53 {
		require.True(t, seen[7+seed])
	}
}

// A share that fails ends the others, and says what it has printed.
func TestAShareThatFailsEndsTheRun(t *testing.T) {
	script := t.TempDir() + "/share"
	// The first one fails when it has the seed 1, and the other would take for ever.
	require.NoError(t, os.WriteFile(script, []byte("#!/bin/sh\ncase \"$*\" in *'-seed 1 '*) echo it broke; exit 1;; esac\nexec sleep 1000\n"), 0o700)) //nolint:gosec // it is run
	s := shares{test: "TestCore", dir: t.TempDir(), binary: script}
	_, err := s.run(t.Context(), t.TempDir(), 10, 1, 2)
	var failed *failedError
	require.ErrorAs(t, err, &failed)
	require.Equal(t, "it broke\n", string(failed.output))
}

// An interrupted run says so, and leaves nothing behind: Main returns when its processes
// have ended.
func TestAnInterruptedRun(t *testing.T) {
	t.Setenv("TMPDIR", t.TempDir())
	ctx, cancel := context.WithCancel(t.Context())
	read, write := io.Pipe()
	code := make(chan int)
	go func() { code <- Main(ctx, strings.Fields("-schedules 1000000 -jobs 2"), io.Discard, write) }()
	first := make([]byte, 1000)
	n, err := read.Read(first) // it is about to start them
	require.NoError(t, err)
	require.Contains(t, string(first[:n]), "1000000 schedules from seed 1, in 2 processes")
	cancel()
	rest := make([]byte, 1000)
	n, err = read.Read(rest)
	require.NoError(t, err)
	require.Equal(t, "chaos sim: interrupted; no process is left\n", string(rest[:n]))
	select {
	case c := <-code:
		require.Equal(t, cli.Interrupted, c)
	case <-time.After(time.Minute):
		require.Fail(t, "it does not end")
	}
	left, err := os.ReadDir(os.TempDir())
	require.NoError(t, err)
	require.Empty(t, left)
}
