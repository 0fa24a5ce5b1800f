package compare

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"strings"
	"sync"

	"github.com/quorumlock/redlock/chaos/compare/client"
	"github.com/quorumlock/redlock/internal/redistest"
)

// clientProcess is the environment variable that makes a process of this binary a
// client.
const clientProcess = "REDLOCK_COMPARE_CLIENT"

// A process is a client process, seen from here: package client tells what is said.
type process struct {
	*redistest.Process
	in     *os.File
	lines  chan string // of its output, closed at the end of it
	errors *tail
}

func startProcess(binary []string, job client.Job) (*process, error) {
	text, err := json.Marshal(job)
	if err != nil {
		return nil, err
	}
	// Pipes of our own: those of package exec are closed by its Wait.
	childIn, in, err := os.Pipe()
	if err != nil {
		return nil, err
	}
	out, childOut, err := os.Pipe()
	if err != nil {
		return nil, errors.Join(err, childIn.Close(), in.Close())
	}
	p := &process{in: in, lines: make(chan string, 4), errors: &tail{}}
	cmd := exec.Command(binary[0], binary[1:]...)
	cmd.Env = append(os.Environ(), clientProcess+"=1")
	cmd.Stdin, cmd.Stdout, cmd.Stderr = childIn, childOut, p.errors
	p.Process, err = redistest.Spawn(cmd)
	_, _ = childIn.Close(), childOut.Close() // the child has its own
	if err != nil {
		return nil, errors.Join(err, in.Close(), out.Close())
	}
	go p.read(out)
	return p, p.say(string(text))
}

// read ends with the process.
func (p *process) read(out *os.File) {
	defer out.Close()
	defer close(p.lines)
	for r := bufio.NewReader(out); ; {
		line, err := r.ReadString('\n')
		if err != nil {
			return
		}
		select {
		case p.lines <- strings.TrimSuffix(line, "\n"):
		default:
			return // it says more than it was asked
		}
	}
}

func (p *process) say(line string) error {
	if _, err := io.WriteString(p.in, line+"\n"); err != nil {
		return fmt.Errorf("a client process is gone: %w%s", err, p.errors)
	}
	return nil
}

func (p *process) hear(ctx context.Context) (string, error) {
	select {
	case line, ok := <-p.lines:
		if !ok {
			return "", fmt.Errorf("a client process ended%s", p.errors)
		}
		return line, nil
	case <-ctx.Done():
		return "", context.Cause(ctx)
	}
}

func (p *process) expect(ctx context.Context, want string) error {
	line, err := p.hear(ctx)
	if err == nil && line != want {
		err = fmt.Errorf("a client process said %q instead of %q", line, want)
	}
	return err
}

func (p *process) testify(ctx context.Context) (t client.Testimony, err error) {
	line, err := p.hear(ctx)
	if err != nil {
		return t, err
	}
	return t, json.Unmarshal([]byte(line), &t)
}

// close ends the process, whatever it does.
func (p *process) close() error {
	err := errors.Join(p.Kill(), p.in.Close())
	for range p.lines {
		continue // until its reader has ended
	}
	return err
}

// A tail keeps the end of what a process wrote to its standard error.
type tail struct {
	mu   sync.Mutex
	text []byte
}

func (t *tail) Write(b []byte) (int, error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.text = append(t.text, b...)
	t.text = t.text[max(0, len(t.text)-1000):]
	return len(b), nil
}

func (t *tail) String() string {
	t.mu.Lock()
	defer t.mu.Unlock()
	if text := strings.TrimSpace(string(t.text)); text != "" {
		return ": " + text
	}
	return ""
}
