package main

import (
	"errors"
	"os"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/quorumlock/redlock"
)

func TestColorChangesNothingElse(t *testing.T) {
	event := redlock.RoundEvent{Votes: []redlock.InstanceVote{
		{Instance: "127.0.0.1:7001", Vote: "granted", Fence: 42},
		{Instance: strings.Repeat("long.", 20) + "example.com:6379", Vote: "refused", Err: errors.New("held by another owner")},
		{Instance: "b:1", Vote: "failed", Err: errors.New(strings.Repeat("dial tcp b:1: ", 12) + "\x1b[2Jgone")},
		{Instance: "c:1", Vote: "pending"},
	}}
	var plain, colored strings.Builder
	(&page{out: &plain}).votes(event)
	(&page{out: &colored, color: true}).votes(event)
	requireReadable(t, plain.String())
	require.Equal(t, plain.String(), strings.NewReplacer(
		"\x1b[31m", "", "\x1b[32m", "", "\x1b[33m", "", "\x1b[0m", "").Replace(colored.String()))
	require.Contains(t, colored.String(), "\x1b[32mgranted")
	require.Contains(t, colored.String(), "\x1b[33mrefused")
	require.Contains(t, colored.String(), "\x1b[31mfailed")
}

func TestOnlyATerminalGetsColor(t *testing.T) {
	file, err := os.Create(t.TempDir() + "/out")
	require.NoError(t, err)
	defer file.Close()
	require.False(t, newPage(&strings.Builder{}).color)
	require.False(t, newPage(file).color)

	tty, err := os.OpenFile("/dev/ptmx", os.O_RDWR, 0)
	if err != nil {
		t.Skipf("SKIPPED, NOT PASSED: no terminal to be had: %v", err)
	}
	defer tty.Close()
	t.Setenv("TERM", "xterm")
	t.Setenv("NO_COLOR", "")
	require.True(t, newPage(tty).color)
	t.Setenv("NO_COLOR", "1")
	require.False(t, newPage(tty).color)
}
