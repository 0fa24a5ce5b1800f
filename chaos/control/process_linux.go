package control

import (
	"bytes"
	"fmt"
	"os"
	"os/exec"
	"runtime"
	"syscall"
)

// start starts cmd, and kills it when the play is over. It dies with this process,
// too, stopped or not: for that the thread that started it has to live as long.
func (x *Stage) start(cmd *exec.Cmd) error {
	cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	started := make(chan error)
	wait := x.Go(func() {
		runtime.LockOSThread()
		defer runtime.UnlockOSThread()
		err := cmd.Start()
		started <- err
		if err == nil {
			_, _ = cmd.Process.Wait() // and not cmd.Wait, which closes a pipe that is read
		}
	})
	err := <-started
	if err == nil {
		x.Cleanup(func() {
			_ = cmd.Process.Kill() // which reaches a stopped process, too
			wait()
		})
	}
	return err
}

// Stop stops the process, and returns when it has.
func (p *Process) Stop() {
	p.x.must(p.cmd.Process.Signal(syscall.SIGSTOP))
	p.x.Until("the process stops", func() bool {
		stat, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", p.cmd.Process.Pid))
		p.x.must(err)
		// "pid (comm) state ...", and comm may hold anything.
		i := bytes.LastIndex(stat, []byte(") "))
		return i >= 0 && bytes.HasPrefix(stat[i:], []byte(") T"))
	})
}

// Resume lets the process go on.
func (p *Process) Resume() { p.x.must(p.cmd.Process.Signal(syscall.SIGCONT)) }
