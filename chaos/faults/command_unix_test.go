//go:build unix

package faults

import (
	"fmt"
	"os"
	"os/exec"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/quorumlock/redlock/chaos/internal/cli"
	"github.com/quorumlock/redlock/internal/redistest"
)

// Ctrl-C reaches the whole process group; kill -9 nobody but the command itself, and
// its children all the same.
func TestASignalledCommandLeavesNoProcess(t *testing.T) {
	redistest.Need(t)
	if _, err := os.Stat("/proc/self/stat"); err != nil {
		t.Skip("SKIPPED, NOT PASSED: children are told on Linux only")
	}
	for _, signal := range []syscall.Signal{syscall.SIGINT, syscall.SIGKILL} {
		dir := t.TempDir()
		cmd := exec.Command(os.Args[0])
		cmd.Env = append(os.Environ(), commandVariable+"=-scenario clients -duration 1m", "TMPDIR="+dir)
		cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
		require.NoError(t, cmd.Start())
		var started []int
		require.Eventually(t, func() bool { // servers, the resources' one, two clients
			started = children(t, cmd.Process.Pid)
			return len(started) == 3+1+2
		}, 20*time.Second, 5*ms)
		target := cmd.Process.Pid
		if signal == syscall.SIGINT {
			target = -target
		}
		require.NoError(t, syscall.Kill(target, signal))
		_ = cmd.Wait()
		if signal == syscall.SIGINT {
			require.Equal(t, cli.Interrupted, cmd.ProcessState.ExitCode())
			requireEmpty(t, dir)
		}
		require.Eventually(t, func() bool {
			for _, pid := range started {
				if _, err := os.Stat(fmt.Sprintf("/proc/%d", pid)); err == nil {
					return false
				}
			}
			return true
		}, 10*time.Second, 5*ms, "%v: %v", signal, started)
	}
}
