//go:build linux || darwin || freebsd || netbsd || openbsd || dragonfly

package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"os/signal"
	"runtime"
	"syscall"
	"time"
	"unsafe"

	"github.com/quorumlock/redlock"
)

// runLocked acquires the lock, runs the command while it holds, and releases it.
func (j *job) runLocked(ctx context.Context, locker *redlock.Locker) (int, error) {
	signals := make(chan os.Signal, 32)
	catch(signals, syscall.SIGHUP, syscall.SIGINT, syscall.SIGQUIT, syscall.SIGTERM)
	defer signal.Stop(signals)
	waiting, stop := endedBy(ctx, signals)
	// Less than that, and the command would be told to stop as it starts.
	enough := redlock.WithMinValidity(j.grace + margin(j.ttl))
	lock, err := locker.Acquire(waiting, j.name, j.ttl, append(j.wait, enough)...)
	stop()
	if err != nil {
		return j.why(waiting, err)
	}
	if waiting.Err() != nil { // at the last moment
		_ = lock.Release(ctx)
		return interrupted(waiting), context.Cause(waiting)
	}

	cmd := exec.Command(j.args[0], j.args[1:]...)
	cmd.Path, cmd.Err = j.path, nil
	cmd.Env = j.environment(lock)
	// Files, and no pipes: nobody has to copy, and no grandchild that keeps one open
	// is waited for.
	cmd.Stdin, cmd.Stdout, cmd.Stderr = os.Stdin, os.Stdout, os.Stderr
	s := &supervisor{lock: lock, grace: j.grace, margin: margin(j.ttl), tick: min(j.ttl/20, maxTick), signals: signals}
	kept := lock.KeepAlive(ctx)
	if err := s.run(cmd, kept); err != nil {
		_ = lock.Release(ctx)
		return cantRun(err)
	}
	code, lost := exitCode(s.status), context.Cause(kept)
	freed := lock.Release(ctx)
	switch {
	case s.reason != nil:
		return exitLost, s.account(cmp.Or(lost, freed)) // either names the instances
	case errors.Is(freed, redlock.ErrLost):
		return exitLost, fmt.Errorf("%w; the command had ended by itself, with code %d", freed, code)
	case s.lives:
		return exitLost, errLives
	case freed != nil:
		return code, fmt.Errorf("the lock stays until its ttl is over: %w", freed)
	}
	return code, nil
}

func exitCode(status syscall.WaitStatus) int {
	if status.Signaled() {
		return exitSignal + int(status.Signal())
	}
	return status.ExitStatus()
}

// catch relays signals, but those that whoever started us has had ignored, as
// nohup does: the command is to ignore them, too.
func catch(c chan<- os.Signal, signals ...syscall.Signal) {
	for _, s := range signals {
		if !signal.Ignored(s) {
			signal.Notify(c, s)
		}
	}
}

const (
	maxTick   = 100 * time.Millisecond // between two looks at the clocks
	maxMargin = 50 * time.Millisecond
	afterKill = time.Second          // what the kernel gets to remove a killed process
	pollGroup = 5 * time.Millisecond // nobody tells when the last process of a group has ended
)

// margin returns how long before the end of the window the command is killed: a
// SIGKILL takes a moment.
func margin(ttl time.Duration) time.Duration { return min(ttl/20, maxMargin) }

var (
	errNotRenewed = errors.New("the lock could not be renewed in time")
	errLives      = errors.New("what the command has started could not be killed")
)

// A supervisor runs a command for as long as a lock holds, and not longer. It does
// nothing that may take a while, such as printing, before no process is left.
type supervisor struct {
	lock    *redlock.Lock
	grace   time.Duration // between SIGTERM and SIGKILL
	margin  time.Duration
	tick    time.Duration
	signals chan os.Signal

	tty    *console           // nil: it is not ours to lend
	group  int                // the process group of the command, and its process id
	end    time.Time          // of the window, as it was last seen
	ended  bool               // the command has; others of its group may be left
	status syscall.WaitStatus // how it ended
	reason error              // why it is stopped; nil if it is not for the lock
	stops  time.Time          // when it got SIGTERM; zero if it did not
	killed time.Time          // when it got SIGKILL first; zero if it did not
	lives  bool               // not all of it could be killed
}

// run starts the command, and returns when all of its process group have ended;
// with an error, it has not started. kept ends with the lock.
func (s *supervisor) run(cmd *exec.Cmd, kept context.Context) error {
	// Where the kernel ends the command with us, it does so when the thread ends that
	// started it.
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	adoptOrphans()
	s.tty = openConsole()
	defer s.tty.close()
	cmd.SysProcAttr = inOwnGroup()
	catch(s.signals, syscall.SIGUSR1, syscall.SIGUSR2, syscall.SIGALRM, syscall.SIGWINCH, syscall.SIGTSTP, syscall.SIGCONT)
	if err := cmd.Start(); err != nil {
		return err
	}
	// After the start: what is ignored now the command does not inherit. The first is
	// for using a terminal that was lent, the other for a reader of ours that is gone.
	signal.Ignore(syscall.SIGTTOU, syscall.SIGPIPE)
	s.group = cmd.Process.Pid
	_ = cmd.Process.Release() // see wait
	if s.tty.lend(s.group) {
		s.signal(syscall.SIGCONT) // it may have been stopped for reading too early
	}
	statuses := make(chan syscall.WaitStatus)
	go wait(s.group, statuses)

	lost := kept.Done()
	timer := time.NewTimer(0)
	defer timer.Stop()
	for !s.gone() {
		timer.Reset(s.enforce())
		select {
		case status := <-statuses:
			s.changed(status)
		case sig := <-s.signals:
			s.pass(sig)
		case <-lost:
			lost = nil
			s.stop(context.Cause(kept))
		case <-timer.C:
		}
	}
	s.lives = s.alive()
	return nil
}

// enforce stops and kills the command when it is time, and returns how long nothing
// else has to be done.
func (s *supervisor) enforce() time.Duration {
	now := time.Now()
	left := s.left(now)
	if s.stops.IsZero() && left <= max(s.grace, s.margin) {
		s.stop(errNotRenewed)
	}
	if left <= s.margin || !s.stops.IsZero() && now.Sub(s.stops) >= s.grace {
		if s.killed.IsZero() {
			s.killed = now
		}
		s.signal(syscall.SIGKILL)
	}
	next := s.tick
	switch {
	case !s.killed.IsZero():
	case s.stops.IsZero():
		next = min(next, left-s.grace, left-s.margin)
	default:
		next = min(next, s.grace-now.Sub(s.stops), left-s.margin)
	}
	if s.ended {
		next = min(next, pollGroup)
	}
	return max(next, 0)
}

// left returns what is left of the window, on both clocks: the monotonic one stops
// while a machine is suspended, and the other one can be set. A lock that is lost
// has nothing left; then it is what was left before.
func (s *supervisor) left(now time.Time) time.Duration {
	if left := s.lock.Remaining(); left > 0 {
		s.end = now.Add(left)
	}
	return min(s.end.Sub(now), s.end.Round(0).Sub(now.Round(0)))
}

// stop tells the command, and what it has started, to end; reason is nil if that is
// not for the lock. There is no way back, also if the lock is renewed after all: a
// command that has half ended is of no use.
func (s *supervisor) stop(reason error) {
	if s.reason == nil {
		s.reason = reason
	}
	if !s.stops.IsZero() {
		return
	}
	s.stops = time.Now()
	if s.left(s.stops) <= s.margin {
		return // it is killed at once, as it is: one that is stopped does not run again
	}
	s.signal(syscall.SIGTERM)
	s.signal(syscall.SIGCONT) // one that is stopped hears nothing
}

// signal signals all processes of the group.
func (s *supervisor) signal(sig syscall.Signal) { _ = syscall.Kill(-s.group, sig) }

// gone reports whether the command has ended, and all of its group; or those that
// are left can't be killed.
func (s *supervisor) gone() bool {
	if !s.ended {
		return false
	}
	return !s.alive() || !s.killed.IsZero() && time.Since(s.killed) > afterKill
}

// alive reports whether a process of the group is left.
func (s *supervisor) alive() bool { return !errors.Is(syscall.Kill(-s.group, 0), syscall.ESRCH) }

// changed takes what the command has done: stopped or ended.
func (s *supervisor) changed(status syscall.WaitStatus) {
	if status.Stopped() {
		switch {
		case s.tty == nil, status.StopSignal() == syscall.SIGSTOP: // the other signals are a terminal's
		case hasShell():
			s.suspend(0) // with the job that we are a part of
		case status.StopSignal() == syscall.SIGTSTP:
			s.signal(syscall.SIGCONT) // nobody else would
		}
		return
	}
	s.ended, s.status = true, status
	lent := s.tty.takeBack(s.group)
	if sig := status.Signal(); lent && status.Signaled() && (sig == syscall.SIGINT || sig == syscall.SIGQUIT) {
		_ = syscall.Kill(0, sig) // it was meant for the whole job, which may be a script
	}
	if !s.gone() {
		s.stop(nil) // what it has started
	}
}

// pass passes a signal on to the command.
func (s *supervisor) pass(sig os.Signal) {
	switch sig {
	case syscall.SIGCONT:
		s.resume()
	case syscall.SIGTSTP:
		if hasShell() {
			s.suspend(os.Getpid())
		}
	default:
		if sig, ok := sig.(syscall.Signal); ok {
			s.signal(sig)
		}
	}
}

// suspend stops the command, and then us (whom: our process id, or 0 for all of our
// process group): while we are stopped, nobody watches the lock. It is SIGSTOP, as
// a Go program that has once caught SIGTSTP is not stopped by that any more.
func (s *supervisor) suspend(whom int) {
	s.signal(syscall.SIGSTOP)
	s.tty.takeBack(s.group)
	_ = syscall.Kill(whom, syscall.SIGSTOP)
}

// hasShell reports whether there may be a shell that continues us when we are
// stopped: the process group of who leads the session has none.
func hasShell() bool {
	leader, _, errno := syscall.RawSyscall(syscall.SYS_GETSID, 0, 0, 0)
	return errno == 0 && int(leader) != syscall.Getpgrp()
}

// resume lets the command go on, unless its time is over.
func (s *supervisor) resume() {
	if s.left(time.Now()) <= s.margin {
		return // it is killed as it is
	}
	s.tty.lend(s.group)
	s.signal(syscall.SIGCONT)
}

// account says what was done to the command, and why.
func (s *supervisor) account(detail error) error {
	done := "the command was told to stop, and ended"
	switch {
	case s.lives:
		done = errLives.Error()
	case !s.killed.IsZero():
		done = "the command was told to stop, and killed"
	}
	if detail == nil || errors.Is(detail, s.reason) {
		return fmt.Errorf("%w; %s", s.reason, done)
	}
	return fmt.Errorf("%w; %s (%w)", s.reason, done, detail)
}

// wait sends how the command was stopped and how it ended, and then waits for the
// orphans in its group, if they are ours.
func wait(group int, statuses chan<- syscall.WaitStatus) {
	pid := group
	for {
		var status syscall.WaitStatus
		_, err := syscall.Wait4(pid, &status, syscall.WUNTRACED, nil)
		switch {
		case errors.Is(err, syscall.EINTR):
			continue
		case err != nil:
			return
		}
		if pid == group {
			statuses <- status
		}
		if !status.Stopped() {
			pid = -group
		}
	}
}

// A console is the terminal that controls us and, as long as it is lent, the command:
// a process that is in another process group than the foreground one gets no key
// that is pressed, and no ctrl-C.
type console struct{ fd, own int }

// openConsole returns it; nil if there is none, or we are a part of a
// pipeline: the others need it, too.
func openConsole() *console {
	if isPipe(os.Stdin) || isPipe(os.Stdout) {
		return nil
	}
	fd, err := syscall.Open("/dev/tty", syscall.O_RDWR|syscall.O_CLOEXEC, 0)
	if err != nil {
		return nil
	}
	return &console{fd, syscall.Getpgrp()}
}

func isPipe(f *os.File) bool {
	info, err := f.Stat()
	return err == nil && info.Mode()&(os.ModeNamedPipe|os.ModeSocket) != 0
}

// lend puts group in the foreground, and reports whether it did: only who is there
// can give that away.
func (t *console) lend(group int) bool { return t != nil && t.move(t.own, group) }

// takeBack puts us in the foreground, and reports whether group was there.
func (t *console) takeBack(group int) bool { return t != nil && t.move(group, t.own) }

func (t *console) move(from, to int) bool {
	group := int32(from)
	if t.ioctl(syscall.TIOCGPGRP, &group) != 0 || int(group) != from {
		return false
	}
	group = int32(to)
	return t.ioctl(syscall.TIOCSPGRP, &group) == 0
}

func (t *console) ioctl(request uintptr, group *int32) syscall.Errno {
	_, _, errno := syscall.Syscall(syscall.SYS_IOCTL, uintptr(t.fd), request, uintptr(unsafe.Pointer(group)))
	return errno
}

func (t *console) close() {
	if t != nil {
		_ = syscall.Close(t.fd)
	}
}
