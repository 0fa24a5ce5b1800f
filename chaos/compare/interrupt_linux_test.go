package compare

import (
	"bytes"
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/quorumlock/redlock/chaos/internal/cli"
	"github.com/quorumlock/redlock/internal/redistest"
)

// descendants returns the processes below pid.
func descendants(t *testing.T, pid int) []int {
	t.Helper()
	children := map[int][]int{}
	stats, err := filepath.Glob("/proc/[0-9]*/stat")
	require.NoError(t, err)
	for _, name := range stats {
		stat, err := os.ReadFile(name)
		if err != nil {
			continue // it has ended
		}
		child, _ := strconv.Atoi(strings.Split(name, "/")[2])
		fields := strings.Fields(string(stat[bytes.LastIndexByte(stat, ')')+1:]))
		parent, err := strconv.Atoi(fields[1])
		require.NoError(t, err)
		children[parent] = append(children[parent], child)
	}
	var found []int
	for next := []int{pid}; len(next) > 0; {
		below := children[next[0]]
		found, next = append(found, below...), append(next[1:], below...)
	}
	return found
}

// running reports whether the process is there and no zombie.
func running(pid int) bool {
	stat, err := os.ReadFile("/proc/" + strconv.Itoa(pid) + "/stat")
	return err == nil && !bytes.Contains(stat, []byte(") Z "))
}

func TestNoProcessIsLeftBehind(t *testing.T) {
	redistest.Need(t)
	for _, c := range []struct {
		name   string
		signal syscall.Signal
		clean  bool // it can still clean up
	}{
		{"interrupted", syscall.SIGINT, true},
		{"terminated", syscall.SIGTERM, true},
		{"killed", syscall.SIGKILL, false},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			dir := t.TempDir()
			cmd := exec.Command(os.Args[0], "-variants", "failover,three", "-quick", "-html", "page.html", "-md", "")
			cmd.Env = append(os.Environ(), wholeCommand+"=1", "TMPDIR="+dir)
			cmd.Dir = dir
			var stderr bytes.Buffer
			cmd.Stderr = &stderr
			require.NoError(t, cmd.Start())
			var err error
			ended := make(chan struct{})
			go func() {
				defer close(ended)
				err = cmd.Wait()
			}()
			defer func() {
				_ = cmd.Process.Kill()
				<-ended
			}()

			const all = 2 + 3 + 2*2 // servers and clients
			var pids []int
			require.Eventually(t, func() bool {
				pids = descendants(t, cmd.Process.Pid)
				return len(pids) == all
			}, 20*time.Second, 20*ms)
			require.NoError(t, cmd.Process.Signal(c.signal))
			select {
			case <-ended:
			case <-time.After(10 * time.Second):
				require.Fail(t, "it does not end")
			}
			for _, pid := range pids {
				require.Eventually(t, func() bool { return !running(pid) }, 5*time.Second, 10*ms)
			}
			if !c.clean {
				return
			}
			exit, ok := errors.AsType[*exec.ExitError](err)
			require.True(t, ok, "%v", err)
			require.Equal(t, cli.Interrupted, exit.ExitCode(), stderr.String())
			require.Contains(t, stderr.String(), "chaos compare: interrupted, nothing was written\n")
			files, err := os.ReadDir(dir)
			require.NoError(t, err)
			require.Empty(t, files)
		})
	}
}
