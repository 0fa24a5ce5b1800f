//go:build linux || darwin || freebsd || netbsd || openbsd || dragonfly

package main

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"os/signal"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/quorumlock/redlock/internal/redistest"
)

const slack = time.Second // how late a busy machine may be

// A program is this program in a process of its own.
type program struct {
	*exec.Cmd
	t      *testing.T
	stdout terminal
	stderr terminal
	ended  chan struct{}
}

// start starts the program with endpoints in its environment.
func start(t *testing.T, endpoints []string, args ...string) *program {
	t.Helper()
	p := prepare(t, endpoints, args...)
	p.launch()
	return p
}

func prepare(t *testing.T, endpoints []string, args ...string) *program {
	t.Helper()
	p := &program{t: t, Cmd: exec.Command(os.Args[0], args...), ended: make(chan struct{})}
	p.Env = append(os.Environ(), programEnv+"=1", endpointsVariable+"="+strings.Join(endpoints, ","), "TEST_BINARY="+os.Args[0])
	p.Stdout, p.Stderr = &p.stdout, &p.stderr
	p.WaitDelay = longest // for a descendant that has its output
	ownGroup(p.Cmd)
	return p
}

func (p *program) launch() {
	p.t.Helper()
	require.NoError(p.t, p.Start())
	go func() {
		defer close(p.ended)
		_ = p.Wait()
	}()
	p.t.Cleanup(func() {
		_ = p.Process.Kill() // its command dies with it, and what that has started ends by itself: see beat
		<-p.ended
	})
}

// code waits for the program, and returns its exit code.
func (p *program) code() int {
	p.t.Helper()
	select {
	case <-p.ended:
	case <-time.After(longest):
		require.FailNow(p.t, "it does not end", "%s%s", p.stdout.String(), p.stderr.String())
	}
	return p.ProcessState.ExitCode()
}

func (p *program) send(sig syscall.Signal) {
	p.t.Helper()
	require.NoError(p.t, p.Process.Signal(sig))
}

// says waits until the program, or what it runs, has printed text.
func (p *program) says(text string) {
	p.t.Helper()
	eventually(p.t, func() bool { return strings.Contains(p.stdout.String(), text) })
}

// execute runs the program to its end.
func execute(t *testing.T, endpoints []string, args ...string) (code int, stdout, stderr string) {
	t.Helper()
	p := start(t, endpoints, args...)
	code = p.code()
	return code, p.stdout.String(), p.stderr.String()
}

// onFresh are the flags for servers that have just been started.
func onFresh(args ...string) []string {
	return append([]string{"run", "--quarantine", "0"}, args...)
}

// requireUnlocked requires that no lock key is left.
func requireUnlocked(t *testing.T, servers ...*redistest.Server) {
	t.Helper()
	for _, s := range servers {
		if s.PID() == 0 {
			continue
		}
		for _, key := range s.MustDo(t, "KEYS", "*").([]any) {
			require.Contains(t, []string{"{job}:fence", "{}:waiting", "job{}:waiting"}, key) // those that waited, for 2 s
		}
	}
}

// What a test runs under a lock.

const (
	beatCommand = "beat"
	beatEvery   = 2 * time.Millisecond
	beatMost    = 30 * time.Second // it ends by itself, whatever happens to the test
)

func init() {
	if len(os.Args) > 1 && os.Args[1] == beatCommand {
		beat(os.Args[2:])
	}
}

// beat writes to a file when it lives and what signals it gets: the file's name is
// the first argument. SIGTERM ends it, with 3, unless the second one is "stubborn".
func beat(args []string) {
	signals := make(chan os.Signal, 100)
	signal.Notify(signals) // all
	file, err := os.OpenFile(args[0], os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
	if err != nil {
		fmt.Println(err)
		os.Exit(1)
	}
	note := func(what string) {
		if _, err := fmt.Fprintln(file, time.Now().UnixNano(), what); err != nil {
			os.Exit(1)
		}
	}
	note("start")
	fmt.Println("beating", os.Getpid())
	for end := time.Now().Add(beatMost); time.Now().Before(end); {
		select {
		case s := <-signals:
			if s == syscall.SIGURG { // Go's own
				continue
			}
			note(s.String())
			if s == syscall.SIGTERM && len(args) < 2 {
				os.Exit(3)
			}
		case <-time.After(beatEvery):
			note("beat")
		}
	}
	os.Exit(1)
}

// A pulse is what a beat has written.
type pulse struct {
	at   time.Time
	what string
}

// pulses returns what the beats of a file have written: those of one kind, or all. A
// line without an end is still being written: where it crosses a page of the file, its
// first half can be read before the second one is there.
func pulses(t *testing.T, file, what string) (all []pulse) {
	t.Helper()
	text, err := os.ReadFile(file)
	if errors.Is(err, os.ErrNotExist) {
		return nil
	}
	require.NoError(t, err)
	for line := range strings.Lines(string(text)) {
		line, ended := strings.CutSuffix(line, "\n")
		if !ended {
			break
		}
		at, kind, complete := strings.Cut(line, " ")
		require.True(t, complete)
		n, err := strconv.ParseInt(at, 10, 64)
		require.NoError(t, err)
		if what == "" || what == kind {
			all = append(all, pulse{time.Unix(0, n), kind})
		}
	}
	return all
}

func first(t *testing.T, file, what string) time.Time {
	t.Helper()
	all := pulses(t, file, what)
	require.NotEmpty(t, all, what)
	return all[0].at
}

// last returns the last sign of life.
func last(t *testing.T, file string) time.Time {
	t.Helper()
	all := pulses(t, file, "")
	require.NotEmpty(t, all)
	return all[len(all)-1].at
}

// requireDead requires that nobody writes to file any more.
func requireDead(t *testing.T, file string) {
	t.Helper()
	n := len(pulses(t, file, ""))
	time.Sleep(50 * beatEvery) // for what must not happen
	require.Len(t, pulses(t, file, ""), n)
}
