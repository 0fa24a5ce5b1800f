package redistest

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"runtime"
	"time"
)

const (
	pauseTimeout = 2 * time.Second
	pausePoll    = 100 * time.Microsecond
)

// Process is a child process: a server, or a client that is to be stopped past
// its lease. On Linux it dies with this process, however that ends. The nil
// Process is a dead one.
type Process struct {
	cmd  *exec.Cmd
	done chan struct{} // closed once the process has been waited for
}

// Spawn starts cmd and waits for it in the background; end it with Kill.
//
// It forks on a goroutine that keeps its thread until the process has been waited
// for. Pdeathsig is sent when the thread that forked ends, not when the process
// does: forking on the caller's thread would kill the child whenever that thread
// happens to go. The goroutine is also the one who waits, so it lives exactly as
// long as the child and Kill waits for it.
func Spawn(cmd *exec.Cmd) (*Process, error) {
	cmd.SysProcAttr = procAttr()
	p := &Process{cmd: cmd, done: make(chan struct{})}
	started := make(chan error)
	go func() {
		runtime.LockOSThread()
		defer runtime.UnlockOSThread()
		err := cmd.Start()
		started <- err
		if err == nil {
			_ = cmd.Wait() // "signal: killed" is the usual end
		}
		close(p.done)
	}()
	if err := <-started; err != nil {
		return nil, err
	}
	return p, nil
}

// PID returns the id of the process, also when it is dead.
func (p *Process) PID() int { return p.cmd.Process.Pid }

// Done returns a channel that is closed when the process has ended and was waited
// for.
func (p *Process) Done() <-chan struct{} { return p.done }

// ExitCode returns what it exited with once it is done, and -1 if a signal ended it.
func (p *Process) ExitCode() int { return p.cmd.ProcessState.ExitCode() }

// Alive reports whether the process has not been waited for yet.
func (p *Process) Alive() bool {
	if p == nil {
		return false
	}
	select {
	case <-p.done:
		return false
	default:
		return true
	}
}

// Kill ends the process with SIGKILL, which reaches a stopped one too, and returns
// when it is gone. Killing a dead one is no error.
func (p *Process) Kill() error {
	if !p.Alive() {
		return nil
	}
	if err := p.cmd.Process.Kill(); err != nil && !errors.Is(err, os.ErrProcessDone) {
		return err
	}
	<-p.done
	return nil
}

// Pause stops the process with SIGSTOP and returns when it has really stopped:
// the signal is only on its way when kill(2) returns.
func (p *Process) Pause() error {
	if !p.Alive() {
		return errNotRunning
	}
	if _, err := stopped(p.PID()); err != nil {
		return err
	}
	if err := p.cmd.Process.Signal(sigStop); err != nil {
		return err
	}
	for deadline := time.Now().Add(pauseTimeout); ; time.Sleep(pausePoll) {
		is, err := stopped(p.PID())
		if is || err != nil {
			return err
		}
		if time.Now().After(deadline) {
			return fmt.Errorf("process %d does not stop", p.PID())
		}
	}
}

// Resume lets a paused process go on, and does nothing to one that is not paused.
func (p *Process) Resume() error {
	if !p.Alive() {
		return errNotRunning
	}
	return p.cmd.Process.Signal(sigCont)
}

var errNotRunning = errors.New("the process does not run")
