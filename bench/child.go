package main

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"sync"
	"time"
)

// childJob is the environment variable that makes a process of this binary a child, and holds its job.
const childJob = "REDLOCK_BENCH_CHILD"

// A job is what a child process does: its waiters lock one resource over and over, and hold it for a time.
type job struct {
	Contender string
	Addrs     []string
	TTL       time.Duration
	Waiters   int
	Hold      time.Duration
	Duration  time.Duration
}

// A testimony is what a child saw.
type testimony struct {
	Turns  []turn
	Waited time.Duration // of all waiters, also for what they did not get
	Errors []string
}

// A turn is one waiter's time with the lock, in nanoseconds of the wall clock.
type turn struct{ Acquired, Released int64 }

const crowdResource = "bench/crowd"

// obey does the job that the parent left in the environment: it says "ready", waits for a line, works, and answers with
// a testimony. It ends with its standard input, so that it never outlives the parent.
func obey(text string, in io.Reader, out io.Writer) error {
	var j job
	if err := json.Unmarshal([]byte(text), &j); err != nil {
		return err
	}
	cs, err := choose(contenders(), j.Contender)
	if err != nil {
		return err
	}
	l, err := cs[0].open(j.Addrs, j.TTL)
	if err != nil {
		return err
	}
	defer l.close()
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()

	begin := make(chan struct{})
	go func() {
		defer cancel()
		lines := bufio.NewReader(in)
		if _, err := lines.ReadString('\n'); err != nil {
			return
		}
		close(begin)
		_, _ = io.Copy(io.Discard, lines)
	}()
	// The connections and the script are not a part of it.
	if _, err := lockOnce(ctx, l, fmt.Sprintf("bench/child/%d", os.Getpid())); err != nil {
		return err
	}
	fmt.Fprintln(out, "ready")
	select {
	case <-begin:
	case <-ctx.Done():
		return context.Cause(ctx)
	}
	return json.NewEncoder(out).Encode(j.work(ctx, l))
}

func (j job) work(ctx context.Context, l locker) testimony {
	ctx, cancel := context.WithTimeout(ctx, j.Duration)
	defer cancel()
	var (
		mu  sync.Mutex
		sum testimony
		all sync.WaitGroup
	)
	for range j.Waiters {
		all.Go(func() {
			t := j.wait(ctx, l)
			mu.Lock()
			defer mu.Unlock()
			sum = testimony{append(sum.Turns, t.Turns...), sum.Waited + t.Waited, append(sum.Errors, t.Errors...)}
		})
	}
	all.Wait()
	return sum
}

func (j job) wait(ctx context.Context, l locker) testimony {
	var t testimony
	for ctx.Err() == nil {
		begin := time.Now()
		lock, err := l.acquire(ctx, crowdResource)
		acquired := time.Now()
		t.Waited += acquired.Sub(begin)
		switch {
		case err != nil && ctx.Err() != nil:
			return t // out of time
		case err != nil:
			t.Errors = append(t.Errors, "acquire: "+err.Error())
			continue
		}
		time.Sleep(j.Hold)
		t.Turns = append(t.Turns, turn{acquired.UnixNano(), time.Now().UnixNano()})
		if err := lock.Release(context.WithoutCancel(ctx)); err != nil {
			t.Errors = append(t.Errors, "release: "+err.Error())
		}
	}
	return t
}

// A child is a process with a job, seen from its parent.
type child struct {
	cmd *exec.Cmd
	in  io.WriteCloser
	out *bufio.Reader
}

// start starts a child; it is killed when ctx ends.
func (j job) start(ctx context.Context) (*child, error) {
	text, err := json.Marshal(j)
	if err != nil {
		return nil, err
	}
	self, err := os.Executable()
	if err != nil {
		return nil, err
	}
	cmd := exec.CommandContext(ctx, self)
	cmd.Env = append(os.Environ(), childJob+"="+string(text))
	cmd.Stderr = os.Stderr
	in, err := cmd.StdinPipe()
	if err != nil {
		return nil, err
	}
	out, err := cmd.StdoutPipe()
	if err != nil {
		return nil, err
	}
	return &child{cmd, in, bufio.NewReader(out)}, cmd.Start()
}

// ready returns when the child is.
func (c *child) ready() error {
	line, err := c.out.ReadString('\n')
	if err != nil || line != "ready\n" {
		return fmt.Errorf("a child process said %q: %w", line, errors.Join(err, errNotReady))
	}
	return nil
}

var errNotReady = errors.New("it is not ready")

func (c *child) begin() error {
	_, err := io.WriteString(c.in, "go\n")
	return err
}

func (c *child) testify() (t testimony, err error) {
	err = json.NewDecoder(c.out).Decode(&t)
	return t, err
}

// end ends the child, whatever it does, and waits for it.
func (c *child) end() error {
	_ = c.in.Close()
	_, _ = io.Copy(io.Discard, c.out)
	return c.cmd.Wait()
}
