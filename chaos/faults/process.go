package faults

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"time"

	"github.com/quorumlock/redlock/internal/redistest"
)

// A process is a client process.
type process struct {
	*redistest.Process
	name   string
	log    string // its history
	stderr string // the file that has its standard error
	in     io.WriteCloser
	out    *os.File // what it says
}

// startClient starts this program again as a client. Its files are in dir.
func startClient(c clientConfig, dir string) (*process, error) {
	p := &process{name: fmt.Sprintf("client %d", c.ID)}
	p.log = filepath.Join(dir, fmt.Sprintf("client%d.history", c.ID))
	p.stderr = filepath.Join(dir, fmt.Sprintf("client%d.err", c.ID))
	c.Log = p.log
	config, err := json.Marshal(c)
	if err != nil {
		return nil, err
	}
	self, err := os.Executable()
	if err != nil {
		return nil, err
	}
	stderr, err := os.Create(p.stderr)
	if err != nil {
		return nil, err
	}
	defer stderr.Close()
	out, theirs, err := os.Pipe()
	if err != nil {
		return nil, err
	}
	defer theirs.Close()
	cmd := exec.Command(self)
	cmd.Env = append(os.Environ(), clientVariable+"="+string(config))
	cmd.Stdout, cmd.Stderr = theirs, stderr
	if p.in, err = cmd.StdinPipe(); err == nil {
		p.Process, err = redistest.Spawn(cmd)
	}
	if err != nil {
		return nil, errors.Join(err, out.Close())
	}
	p.out = out
	return p, nil
}

// quiet tells it to stop working, and returns when it has.
func (p *process) quiet(ctx context.Context) error {
	if _, err := io.WriteString(p.in, "stop\n"); err != nil {
		return p.explain(err)
	}
	return p.await(ctx, "stop", func() error {
		_, err := bufio.NewReader(p.out).ReadString('\n')
		return err
	})
}

// end tells it to end, and returns when it has, with an error if it found something
// wrong with itself: a race, a goroutine that is left, a lock that it could not release.
func (p *process) end(ctx context.Context) error {
	_ = p.in.Close()
	return p.await(ctx, "end", func() error {
		<-p.Done()
		if code := p.ExitCode(); code != 0 {
			return fmt.Errorf("exit code %d", code)
		}
		return nil
	})
}

// clientPatience is for what takes a client some leases, and a Close.
const clientPatience = 60 * time.Second

func (p *process) await(ctx context.Context, what string, f func() error) error {
	var err error // of f, once it is done
	done := make(chan struct{})
	go func() {
		defer close(done)
		err = f()
	}()
	timeout := time.NewTimer(clientPatience)
	defer timeout.Stop()
	var early error
	select {
	case <-done:
		return p.explain(err)
	case <-ctx.Done():
		early = ctx.Err()
	case <-timeout.C:
		early = p.explain(fmt.Errorf("it does not %s within %v", what, clientPatience))
	}
	early = errors.Join(early, p.close())
	<-done // the end of the process is that of f
	return early
}

// explain adds what the process has said to err.
func (p *process) explain(err error) error {
	if err == nil {
		return nil
	}
	said, _ := os.ReadFile(p.stderr)
	return fmt.Errorf("%s: %w\n%s", p.name, err, said)
}

// close kills it, stopped or not.
func (p *process) close() error {
	err := p.Kill()
	_ = p.in.Close()
	_ = p.out.Close()
	return err
}
