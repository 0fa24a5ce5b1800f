package main

import (
	"bytes"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"
	"unsafe"

	"github.com/stretchr/testify/require"

	"github.com/quorumlock/redlock/internal/redistest"
)

// state returns the state of a process, as ps shows it; "" if there is none.
func state(t *testing.T, pid int) string {
	t.Helper()
	stat, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	if os.IsNotExist(err) {
		return ""
	}
	require.NoError(t, err)
	return string(stat[bytes.LastIndex(stat, []byte(") "))+2])
}

// Suspended, neither of the two runs; and a command whose time is over by then does
// not run again.
func TestASuspendedCommandDoesNotOutliveItsLock(t *testing.T) {
	t.Parallel()
	servers := redistest.StartN(t, 3)
	file := filepath.Join(t.TempDir(), "beat")
	p := startBeat(t, servers, []string{"--ttl", "5s"}, beating(file)...)
	suspend := func() int {
		p.send(syscall.SIGTSTP)
		eventually(t, func() bool { return state(t, p.Process.Pid) == "T" })
		return len(pulses(t, file, ""))
	}
	n := suspend()
	requireDead(t, file)
	p.send(syscall.SIGCONT)
	eventually(t, func() bool { return len(pulses(t, file, "")) > n+10 })

	n = suspend()
	eventually(t, func() bool { return servers[0].MustDo(t, "EXISTS", "job") == int64(0) })
	p.send(syscall.SIGCONT)
	require.Equal(t, exitLost, p.code())
	require.Len(t, pulses(t, file, ""), n)
}

func TestTheCommandDiesWithItsRunner(t *testing.T) {
	t.Parallel()
	servers := redistest.StartN(t, 1)
	file := filepath.Join(t.TempDir(), "beat")
	p := startBeat(t, servers, nil, beating(file, "stubborn")...)
	var child int
	_, err := fmt.Sscanf(p.stdout.String(), "beating %d", &child)
	require.NoError(t, err)
	require.NotEmpty(t, state(t, child))
	require.NoError(t, p.Process.Kill())
	eventually(t, func() bool { return strings.Contains("Z", state(t, child)) }) // gone, or as good as
}

// A screen is a terminal with a shell in it.
type screen struct {
	t      *testing.T
	master *os.File
	output terminal
	seen   int // of the output
}

func openScreen(t *testing.T, servers []*redistest.Server) *screen {
	t.Helper()
	bash, err := exec.LookPath("bash")
	if err != nil {
		t.Skipf("SKIPPED, NOT PASSED: no bash: %v", err)
	}
	master, err := os.OpenFile("/dev/ptmx", os.O_RDWR|syscall.O_NOCTTY, 0)
	if err != nil {
		t.Skipf("SKIPPED, NOT PASSED: no terminal to be had: %v", err)
	}
	var number, unlock int32
	ioctl := func(request uintptr, value *int32) {
		conn, err := master.SyscallConn()
		require.NoError(t, err)
		require.NoError(t, conn.Control(func(fd uintptr) {
			_, _, errno := syscall.Syscall(syscall.SYS_IOCTL, fd, request, uintptr(unsafe.Pointer(value)))
			require.Zero(t, errno)
		}))
	}
	ioctl(syscall.TIOCGPTN, &number)
	ioctl(syscall.TIOCSPTLCK, &unlock)
	slave, err := os.OpenFile(fmt.Sprintf("/dev/pts/%d", number), os.O_RDWR|syscall.O_NOCTTY, 0)
	require.NoError(t, err)
	defer slave.Close()

	s := &screen{t: t, master: master}
	shell := exec.Command(bash, "--norc", "--noprofile", "-i")
	shell.Env = append(os.Environ(), programEnv+"=1", endpointsVariable+"="+strings.Join(urls(servers), ","),
		"redlock="+os.Args[0]+" "+strings.Join(onFresh(), " "), "PS1=prompt> ", "TERM=dumb")
	shell.Stdin, shell.Stdout, shell.Stderr = slave, slave, slave
	shell.SysProcAttr = &syscall.SysProcAttr{Setsid: true, Setctty: true}
	require.NoError(t, shell.Start())
	var reading sync.WaitGroup
	reading.Go(func() { _, _ = io.Copy(&s.output, master) })
	t.Cleanup(func() {
		_ = shell.Process.Kill()
		_ = shell.Wait()
		_ = master.Close() // hangs up: the jobs of the shell get SIGHUP
		reading.Wait()
	})
	return s
}

// shows waits for text on the screen, below what was waited for before.
func (s *screen) shows(text string) {
	s.t.Helper()
	for deadline := time.Now().Add(longest); ; time.Sleep(5 * time.Millisecond) {
		output := s.output.String()
		if at := strings.Index(output[s.seen:], text); at >= 0 {
			s.seen += at + len(text)
			return
		}
		if time.Now().After(deadline) {
			require.FailNow(s.t, "it does not show "+text, output)
		}
	}
}

// line types a line when the shell asks for one.
func (s *screen) line(text string) {
	s.t.Helper()
	s.shows("prompt> ")
	s.keys(text + "\n")
}

func (s *screen) keys(text string) {
	s.t.Helper()
	_, err := s.master.WriteString(text)
	require.NoError(s.t, err)
}

const ctrlC, ctrlZ = "\x03", "\x1a"

// interrupt types ctrl-C until the screen shows text: a shell that is just about to
// start its next command may lose one.
func (s *screen) interrupt(text string) {
	s.t.Helper()
	for range int(longest / time.Second) {
		s.keys(ctrlC)
		for deadline := time.Now().Add(time.Second); time.Now().Before(deadline); time.Sleep(5 * time.Millisecond) {
			if strings.Contains(s.output.String()[s.seen:], text) {
				s.shows(text)
				return
			}
		}
	}
	require.FailNow(s.t, "ctrl-C does not make it show "+text, s.output.String())
}

func TestTheCommandHasTheTerminal(t *testing.T) {
	t.Parallel()
	s := openScreen(t, redistest.StartN(t, 1))
	s.line(`$redlock job -- sh -c 'echo re""ady; read a; echo "got <$a>"; exit 5'; echo "code <$?>"`)
	s.shows("ready")
	s.keys("hello\n")
	s.shows("got <hello>")
	s.shows("code <5>")

	s.line(`$redlock job -- sh -c 'echo re""ady; sleep 60'; echo "code <$?>"`)
	s.shows("ready")
	s.interrupt("code <130>")
}

func TestTheShellsJobControlWorks(t *testing.T) {
	t.Parallel()
	s := openScreen(t, redistest.StartN(t, 1))
	s.line(`$redlock job -- sh -c 'echo re""ady; read a; echo "got <$a>"'`)
	s.shows("ready")
	s.keys(ctrlZ)
	s.shows("Stopped")
	s.line("fg")
	s.shows("sh -c")
	s.keys("one\n")
	s.shows("got <one>")

	// In the background it is stopped when it reads, as all others are.
	s.line(`$redlock job -- sh -c 'echo re""ady; read a; echo "got <$a>"' &`)
	s.shows("ready")
	s.keys("until jobs | grep -q Stop''ped; do sleep 0.05; done; jobs\n")
	s.shows("Stopped")
	s.line("fg")
	s.shows("sh -c")
	s.keys("two\n")
	s.shows("got <two>")

	// In a pipeline the terminal is not its own.
	s.line(`$redlock job -- sh -c 'echo re""ady; sleep 60' | cat; echo "code <${PIPESTATUS[0]}>"`)
	s.shows("ready")
	s.interrupt("prompt> ")
	s.keys("echo \"and <$?>\"\n")
	s.shows("and <130>")
}

// What ctrl-C ends is the whole script, not only the command.
func TestCtrlCReachesAScript(t *testing.T) {
	t.Parallel()
	s := openScreen(t, redistest.StartN(t, 1))
	s.line(`sh -c "$redlock job -- sh -c 'echo rea''dy; sleep 60'; echo went ''on"`)
	s.shows("ready")
	s.interrupt("prompt> ")
	s.keys("echo \"code <$?>\"\n")
	s.shows("code <130>")
	require.NotContains(t, s.output.String(), "went on")
}
