package redistest

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"time"
)

const (
	startTimeout = 10 * time.Second // from the fork to the first answer
	startPoll    = 2 * time.Millisecond
	loadGrace    = 500 * time.Millisecond // from the first answer to the end of loading
	portTries    = 10                     // ports a Launch tries before it gives up
	portGrace    = 2 * time.Second        // for which a Restart waits until its port is free again
)

// Server is one redis-server process on 127.0.0.1. Its methods may be called
// from any goroutine.
type Server struct {
	bin string
	dir string
	env []string // besides that of this process

	mu     sync.Mutex
	addr   string // constant once Launch has returned
	args   []string
	proc   *Process // the last one started; it may be dead
	closed bool
}

// Launch starts a redis-server on a free port in a fresh temporary directory
// and returns when it answers, be it with -NOAUTH. args are further redis-server
// arguments; unless they say so nothing is persisted. If the start fails, the
// error ends with the last lines of the server's log. Stop the server with
// Close; on Linux it also dies with this process, however that ends.
func Launch(args ...string) (*Server, error) {
	return launch("", args, unprepared)
}

// LaunchOn is [Launch] for a server on addr, "127.0.0.1:port". It fails with
// [ErrPortTaken] if something else listens there.
func LaunchOn(addr string, args ...string) (*Server, error) { return launch(addr, args, unprepared) }

func unprepared(string) (env []string, err error) { return nil, nil }

// launch is LaunchOn, or Launch if addr is empty, with what prepare, which may put files into the server's
// directory, wants in its environment.
func launch(addr string, args []string, prepare func(dir string) (env []string, err error)) (*Server, error) {
	bin, err := binary()
	if err != nil {
		return nil, err
	}
	dir, err := os.MkdirTemp("", "redistest-")
	if err != nil {
		return nil, err
	}
	env, err := prepare(dir)
	if err != nil {
		return nil, errors.Join(err, os.RemoveAll(dir))
	}
	s := &Server{bin: bin, dir: dir, env: env, addr: addr, args: args}
	s.mu.Lock()
	defer s.mu.Unlock()
	if addr != "" {
		if err := s.startLocked(); err != nil {
			return nil, errors.Join(err, os.RemoveAll(dir))
		}
		return s, nil
	}
	// A port that was free a moment ago may be taken now, by the server of
	// another test process for one. Only the server's own bind decides.
	for range portTries {
		if s.addr, err = FreeAddr(); err != nil {
			break
		}
		if err = s.startLocked(); !errors.Is(err, ErrPortTaken) {
			break
		}
	}
	if err != nil {
		return nil, errors.Join(err, os.RemoveAll(dir))
	}
	return s, nil
}

// binary returns the path of the server's binary.
func binary() (string, error) {
	name := os.Getenv("REDLOCK_REDIS_SERVER")
	if name == "" {
		name = "redis-server"
	}
	return exec.LookPath(name)
}

// Addr returns "127.0.0.1:port". It survives restarts.
func (s *Server) Addr() string { return s.addr }

// URL returns "redis://127.0.0.1:port/0".
func (s *Server) URL() string { return "redis://" + s.addr + "/0" }

// Dir returns the server's working directory, which survives restarts.
func (s *Server) Dir() string { return s.dir }

// PID returns the id of the running process, and 0 when none runs.
func (s *Server) PID() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	if !s.proc.Alive() {
		return 0
	}
	return s.proc.PID()
}

// Kill ends the server with SIGKILL and returns when it is gone. What it had not
// yet written to disk is lost, what it had written is not: kill -9 is not a
// power loss. Killing a server that does not run is no error.
func (s *Server) Kill() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.proc.Kill()
}

// Restart kills the server if it runs and starts it again: same port, same
// directory, same arguments. It fails if something else took the port meanwhile,
// and keeps it for two seconds: [FreeAddr] of another process may just be trying it.
// A server that has much to load (more than half a second) still answers -LOADING
// when Restart returns, one that has little does not.
func (s *Server) Restart() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.restartLocked(s.args)
}

// RestartWith is Restart with these further arguments instead of the former
// ones, from now on.
func (s *Server) RestartWith(args ...string) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.restartLocked(args)
}

func (s *Server) restartLocked(args []string) error {
	if s.closed {
		return errors.New("redistest: the server is closed")
	}
	if err := s.proc.Kill(); err != nil {
		return err
	}
	s.args = args
	for end := time.Now().Add(portGrace); ; time.Sleep(startPoll) {
		if err := s.startLocked(); !errors.Is(err, ErrPortTaken) || time.Now().After(end) {
			return err
		}
	}
}

// Pause stops the server with SIGSTOP and returns when it has really stopped:
// the signal is only on its way when kill(2) returns, and a command could slip
// in. The kernel still accepts connections for a paused server.
func (s *Server) Pause() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if err := s.proc.Pause(); err != nil {
		return fmt.Errorf("redistest: pause: %w", err)
	}
	return nil
}

// Resume lets a paused server go on. Resuming one that is not paused does
// nothing; one that does not run is an error.
func (s *Server) Resume() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if err := s.proc.Resume(); err != nil {
		return fmt.Errorf("redistest: resume: %w", err)
	}
	return nil
}

// Close kills the server, paused or not (SIGKILL reaches a stopped process too),
// waits for it and removes its directory. A second Close does nothing.
func (s *Server) Close() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closed {
		return nil
	}
	s.closed = true
	return errors.Join(s.proc.Kill(), os.RemoveAll(s.dir))
}

// ErrPortTaken is what a start fails with when something else listens on the
// server's port.
var ErrPortTaken = errors.New("the port is taken")

// startLocked starts a process and waits until it answers. It leaves no process
// behind when it fails.
func (s *Server) startLocked() error {
	log, err := os.OpenFile(filepath.Join(s.dir, "redis.log"), os.O_CREATE|os.O_APPEND|os.O_RDWR, 0o600)
	if err != nil {
		return err
	}
	defer log.Close()
	from, err := log.Seek(0, io.SeekEnd)
	if err != nil {
		return err
	}
	ownLog := func() []byte { // what this process has logged so far
		text, _ := io.ReadAll(io.NewSectionReader(log, from, 1<<20))
		return text
	}

	_, port, _ := strings.Cut(s.addr, ":")
	args := []string{
		"--port", port, "--bind", "127.0.0.1", "--protected-mode", "no", "--daemonize", "no",
		"--dir", s.dir, "--save", "", "--appendonly", "no",
	}
	cmd := exec.Command(s.bin, append(args, s.args...)...)
	cmd.Env = append(os.Environ(), s.env...)
	cmd.Dir, cmd.Stdout, cmd.Stderr = s.dir, log, log
	if s.proc, err = Spawn(cmd); err != nil {
		return err
	}
	if err = s.awaitReady(ownLog); err == nil {
		return nil
	}
	err = errors.Join(err, s.proc.Kill())
	if bytes.Contains(ownLog(), []byte("Address already in use")) {
		err = errors.Join(ErrPortTaken, err)
	}
	return fmt.Errorf("redistest: %s on %s: %w\n%s", s.bin, s.addr, err, tail(ownLog(), 20))
}

// awaitReady returns when the process answers and, if that is soon, has loaded
// its data. An answer alone proves nothing, because it may come from a stranger
// who holds the port while this process is about to fail: the answer must name
// this process, or, if it is an error reply, this process must have logged that
// its listeners are up.
func (s *Server) awaitReady(ownLog func() []byte) error {
	name := fmt.Sprintf("\r\nprocess_id:%d\r\n", s.proc.PID())
	timeout := time.After(startTimeout)
	var answered time.Time
	for {
		var up, loading bool
		reply, err := roundTrip(s.addr, []string{"INFO"})
		if info, ok := reply.(string); ok {
			up = strings.Contains(info, name)
			loading = strings.Contains(info, "\r\nloading:1\r\n")
		} else if isReply(err) {
			log := ownLog()
			up = bytes.Contains(log, []byte("Server initialized"))
			loading = !bytes.Contains(log, []byte("Ready to accept connections"))
		}
		if up && answered.IsZero() {
			answered = time.Now()
		}
		if up && (!loading || time.Since(answered) > loadGrace) {
			return nil
		}
		select {
		case <-s.proc.done:
			return fmt.Errorf("it ended at once: %v", s.proc.cmd.ProcessState)
		case <-timeout:
			return errors.Join(fmt.Errorf("no answer of its own in %v", startTimeout), err)
		case <-time.After(startPoll):
		}
	}
}

// tail returns the last n lines of text.
func tail(text []byte, n int) string {
	lines := strings.Split(strings.TrimSpace(string(text)), "\n")
	return strings.Join(lines[max(0, len(lines)-n):], "\n")
}
