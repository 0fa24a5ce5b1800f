package redistest

import (
	"bytes"
	"fmt"
	"os"
	"syscall"
)

// procAttr makes the kernel kill the child when the thread that started it ends.
// Spawn keeps that thread for as long as the child runs.
func procAttr() *syscall.SysProcAttr {
	return &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
}

const (
	sigStop = syscall.SIGSTOP
	sigCont = syscall.SIGCONT
)

// stopped reports whether the process is stopped. It looks at the main thread
// only, the one that executes commands.
func stopped(pid int) (bool, error) {
	stat, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	if err != nil {
		return false, err
	}
	// "pid (comm) state ...", and comm may hold anything, parentheses too.
	end := bytes.LastIndex(stat, []byte(") "))
	if end < 0 || end+2 >= len(stat) {
		return false, fmt.Errorf("/proc/%d/stat: %q", pid, stat)
	}
	return stat[end+2] == 'T', nil
}
