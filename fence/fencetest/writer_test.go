//go:build linux

package fencetest

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/quorumlock/redlock"
	"github.com/quorumlock/redlock/fence"
)

// A job is what a writer process is told at its start.
type job struct {
	Spec      spec
	Endpoints []string
	TTL       time.Duration
}

// serveWriter is the other process: a holder that does one step for each line that
// it reads, and answers with a line.
//
//	acquire R  take the lock of R, read through the guard, and look at the clock: the last look.
//	           "held TOKEN", or "late" if the window was over by then
//	write      write, without another look: "written", "stale CURRENT", or "failed ..."
//	release    give the lock up: "released", "lost", "unknown" if too few instances answered, or "failed ..."
func serveWriter(text string, in io.Reader, out io.Writer) error {
	var j job
	if err := json.Unmarshal([]byte(text), &j); err != nil {
		return err
	}
	locker, err := redlock.Open(j.Endpoints, redlock.WithInstanceTimeout(time.Second), redlock.WithQuarantine(0)) // on a busy machine, too
	if err != nil {
		return err
	}
	defer locker.Close()
	sub, err := open(j.Spec)
	if err != nil {
		return err
	}
	defer sub.close()

	ctx := context.Background()
	var lock *redlock.Lock
	for lines := bufio.NewScanner(in); lines.Scan(); {
		var answer string
		switch step, resource, _ := strings.Cut(lines.Text(), " "); step {
		case "acquire":
			if lock, err = locker.Acquire(ctx, resource, j.TTL); err == nil {
				err = sub.read(ctx, resource, lock.FencingToken())
			}
			switch {
			case err != nil:
				answer = "failed " + err.Error()
			case lock.Remaining() <= 0:
				answer = "late"
			default:
				answer = fmt.Sprint("held ", lock.FencingToken())
			}
		case "write":
			err := sub.write(ctx, lock.Resource(), lock.FencingToken())
			var stale *fence.StaleError
			switch {
			case err == nil:
				answer = "written"
			case errors.As(err, &stale):
				answer = fmt.Sprint("stale ", stale.Current)
			default:
				answer = "failed " + err.Error()
			}
		case "release":
			switch err := lock.Release(ctx); {
			case err == nil:
				answer = "released"
			case errors.Is(err, redlock.ErrLost):
				answer = "lost"
			case errors.Is(err, redlock.ErrNoQuorum):
				answer = "unknown"
			default:
				answer = "failed " + err.Error()
			}
		}
		if _, err := fmt.Fprintln(out, strings.ReplaceAll(answer, "\n", " ")); err != nil {
			return err
		}
	}
	return nil
}

// A writer is such a process, as its parent sees it.
type writer struct {
	t     testing.TB
	cmd   *exec.Cmd
	in    io.WriteCloser
	lines *bufio.Scanner
}

func startWriter(t testing.TB, j job) *writer {
	t.Helper()
	text, err := json.Marshal(j)
	require.NoError(t, err)
	binary, err := os.Executable()
	require.NoError(t, err)
	cmd := exec.Command(binary)
	cmd.Env = append(os.Environ(), writerEnv+"="+string(text))
	cmd.Stderr = os.Stderr
	in, err := cmd.StdinPipe()
	require.NoError(t, err)
	out, err := cmd.StdoutPipe()
	require.NoError(t, err)
	require.NoError(t, cmd.Start())
	t.Cleanup(func() {
		_ = cmd.Process.Kill() // which reaches a stopped process, too
		_ = cmd.Wait()
	})
	return &writer{t, cmd, in, bufio.NewScanner(out)}
}

// ask sends a line; answer returns the next one that the writer sends.
func (w *writer) ask(line string) {
	w.t.Helper()
	_, err := fmt.Fprintln(w.in, line)
	require.NoError(w.t, err)
}

func (w *writer) answer() string {
	w.t.Helper()
	require.True(w.t, w.lines.Scan(), "the writer has ended: %v", w.lines.Err())
	return w.lines.Text()
}

func (w *writer) do(line string) string {
	w.t.Helper()
	w.ask(line)
	return w.answer()
}

// stop stops the process, and returns when it has.
func (w *writer) stop() {
	w.t.Helper()
	require.NoError(w.t, w.cmd.Process.Signal(syscall.SIGSTOP))
	require.Eventually(w.t, func() bool { return w.state() == 'T' }, 10*time.Second, time.Millisecond)
}

func (w *writer) resume() {
	w.t.Helper()
	require.NoError(w.t, w.cmd.Process.Signal(syscall.SIGCONT))
}

// state returns the letter of the process's state: it follows the name, which is in
// parentheses and may hold some itself.
func (w *writer) state() byte {
	stat, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", w.cmd.Process.Pid))
	require.NoError(w.t, err)
	return stat[strings.LastIndex(string(stat), ")")+2]
}
