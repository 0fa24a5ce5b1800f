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

// A Process is a child process that does not outlive this one: on Linux it dies with
// it, however that ends, paused or not. The nil Process is a dead one. Its methods may
// be called from any goroutine.
type Process struct {
	cmd  *exec.Cmd
	done chan struct{} // closed once the process has been waited for
}

// Spawn starts cmd, whose SysProcAttr it sets.
//
// It does so on a goroutine that keeps its thread until the process has been waited
// for. Pdeathsig is sent when the thread that forked ends, not when
// the process does: forking on the caller's thread would kill the child
// whenever that thread happens to go. The goroutine is also the one who waits,
// so it lives exactly as long as the child and Kill waits for it.
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

// PID returns its id, also when it has ended.
func (p *Process) PID() int { return p.cmd.Process.Pid }

// Done returns a channel that is closed when the process has ended.
func (p *Process) Done() <-chan struct{} { return p.done }

// ExitCode returns what it exited with once it is done, and -1 if a signal ended it.
func (p *Process) ExitCode() int { return p.cmd.ProcessState.ExitCode() }

func (p *Process) alive() bool {
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

// Kill ends it with SIGKILL and returns when it is gone. Killing one that has ended is
// no error.
func (p *Process) Kill() error {
	if !p.alive() {
		return nil
	}
	if err := p.cmd.Process.Kill(); err != nil && !errors.Is(err, os.ErrProcessDone) {
		return err
	}
	<-p.done
	return nil
}

// Pause stops it with SIGSTOP and returns when it has really stopped: the signal is
// only on its way when kill(2) returns, and something could slip in.
func (p *Process) Pause() error {
	if !p.alive() {
		return errors.New("redistest: pause: the process does not run")
	}
	if _, err := stopped(p.PID()); err != nil {
		return fmt.Errorf("redistest: pause: %w", err)
	}
	if err := p.cmd.Process.Signal(sigStop); err != nil {
		return fmt.Errorf("redistest: pause: %w", err)
	}
	for deadline := time.Now().Add(pauseTimeout); ; time.Sleep(pausePoll) {
		is, err := stopped(p.PID())
		if is || err != nil {
			return err
		}
		if time.Now().After(deadline) {
			return fmt.Errorf("redistest: pause: process %d does not stop", p.PID())
		}
	}
}

// Resume lets a paused process go on. Resuming one that is not paused does nothing;
// one that has ended is an error.
func (p *Process) Resume() error {
	if !p.alive() {
		return errors.New("redistest: resume: the process does not run")
	}
	return p.cmd.Process.Signal(sigCont)
}
