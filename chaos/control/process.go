package control

import (
	"bufio"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"os/exec"
	"strings"
	"time"

	"github.com/quorumlock/redlock"
)

// childEnv makes this program a holder in a process of its own.
const childEnv = "REDLOCK_CONTROL_HOLDER"

// A job is what a holder's process is told at its start.
type job struct {
	Endpoints []string
	TTL       time.Duration
	Fenced    bool
}

// Child is the other process, if this one was started as that: the program and the
// tests call it first. It reports whether it was.
func Child() bool {
	text := os.Getenv(childEnv)
	if text == "" {
		return false
	}
	if err := hold(text, os.Stdin, os.Stdout); err != nil {
		fmt.Fprintln(os.Stderr, err)
	}
	return true
}

// hold locks the resource, looks at the clock for the last time and says its token.
// Then it says "write" for each line that it reads, and does not look again.
func hold(text string, in io.Reader, out io.Writer) error {
	var j job
	if err := json.Unmarshal([]byte(text), &j); err != nil {
		return err
	}
	x := &Stage{how: how{fenced: j.Fenced}}
	l, err := redlock.Open(j.Endpoints, x.options(nil)...)
	if err != nil {
		return err
	}
	defer l.Close()
	var lock *redlock.Lock
	for lock == nil || lock.Remaining() <= 0 { // a busy machine may have outlasted it already
		if lock, err = l.Acquire(context.Background(), resource, j.TTL); err != nil {
			return err
		}
	}
	fmt.Fprintln(out, "held", lock.FencingToken())
	for lines := bufio.NewScanner(in); lines.Scan(); {
		fmt.Fprintln(out, "write")
	}
	return nil
}

// A Process is a holder in a process of its own, that can be stopped.
type Process struct {
	*Holder
	cmd   *exec.Cmd
	in    io.Writer
	lines *bufio.Scanner
}

// Process starts a process that holds the lock, and has looked at the clock.
func (x *Stage) Process(endpoints []string, ttl time.Duration) *Process {
	text, err := json.Marshal(job{endpoints, ttl, x.how.fenced})
	x.must(err)
	binary, err := os.Executable()
	x.must(err)
	cmd := exec.Command(binary, "control")
	cmd.Env = append(os.Environ(), childEnv+"="+string(text))
	cmd.Stderr = os.Stderr
	in, err := cmd.StdinPipe()
	x.must(err)
	out, err := cmd.StdoutPipe()
	x.must(err)
	x.must(x.start(cmd))
	p := &Process{cmd: cmd, in: in, lines: bufio.NewScanner(out)}
	var token uint64
	_, err = fmt.Sscanf(p.line(x), "held %d", &token)
	x.must(err)
	p.Holder = x.holder(token)
	p.until = time.Now().Add(ttl)
	return p
}

func (p *Process) line(x *Stage) string {
	if !p.lines.Scan() {
		x.Fatalf("the holder's process has ended: %v", p.lines.Err())
	}
	return p.lines.Text()
}

// Ask tells the process to write, whenever it runs.
func (p *Process) Ask() {
	_, err := fmt.Fprintln(p.in, "write")
	p.x.must(err)
}

// Write writes when the process says so.
func (p *Process) Write() {
	if line := p.line(p.x); !strings.HasPrefix(line, "write") {
		p.x.Fatal(line)
	}
	p.Holder.Write()
}
