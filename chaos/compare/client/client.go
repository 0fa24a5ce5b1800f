// Package client is what the client processes of the comparison do, whichever
// library they lock with: that module's and this one's run the same code, so that
// their figures differ by the library alone.
//
// A client process reads lines on its standard input. The first is a [Job], in
// JSON; it answers "ready" when it has had a lock. "start" begins the work, "stop"
// ends it and is answered with a [Testimony], in JSON. The process ends with its
// input, so it never outlives who started it.
package client

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"sync"
	"time"
)

// A Locker is what a lock library comes down to.
type Locker interface {
	// Acquire waits until ctx ends.
	Acquire(ctx context.Context, resource string) (Lease, error)
	Close() error
}

// A Lease is a lock that is held. It is used by one goroutine.
type Lease interface {
	Until() time.Time // when it ends, as far as the holder knows; in the past once it is lost
	Token() uint64    // 0 where the library has none
	Extend(ctx context.Context) error
	Release(ctx context.Context) error
}

// An Observed Locker tells more than it must.
type Observed interface {
	// Quarantines returns when instances were seen not to count, so far.
	Quarantines() []Quarantine
}

// A Job says what a client process does.
type Job struct {
	Client    int // 0, 1, ...
	Endpoints []string
	Register  string // the address of the registers
	Seed      uint64
	TTL       time.Duration

	// Resources that nobody else wants: an attempt begins every Every, whatever
	// became of those before, and fails if it has no lock after Budget.
	Private int
	Every   time.Duration
	Budget  time.Duration

	// Contended resources, each wanted by Waiters of each process, which look at
	// their lease, work for Work, and write: Writes[i] times for each lock of
	// resource i.
	Waiters int
	Work    time.Duration
	Writes  []int
}

// A Testimony is what a client process did and saw. Instants are nanoseconds since
// 1970: all processes run on one machine and share its clock.
type Testimony struct {
	Attempts    []Attempt
	Holds       []Hold
	Quarantines []Quarantine
	Failed      int      // acquires of contended resources that ended with an error
	Errors      []string // that should not be: of the registers
}

// An Attempt is one acquire of a private resource.
type Attempt struct {
	At      int64
	Took    time.Duration
	Granted bool
}

// A Hold is one lock of a contended resource, as its holder knew it.
type Hold struct {
	ID       int64
	Client   int
	Resource int
	Call     int64 // when the acquire began
	Acquired int64 // when it returned
	Until    int64 // the end of the last lease
	End      int64 // when the holder gave it up: before it sent the release
	Token    uint64
}

// A Quarantine is an instance's time without a vote, after a restart or a failover.
type Quarantine struct {
	Instance string
	At       int64
	For      time.Duration
}

const (
	readyTimeout = 30 * time.Second // a new deployment waits once for the quarantine
	leaveTimeout = 2 * time.Second
	rest         = 20 * time.Millisecond // of a waiter between its locks, at most
)

// Serve is the client process. open opens the Locker that a Job needs.
func Serve(ctx context.Context, open func(Job) (Locker, error), in io.Reader, out io.Writer) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	lines := make(chan string)
	go func() { // ends with the process: a read of standard input can't be interrupted
		defer cancel()
		for s := bufio.NewScanner(in); s.Scan(); {
			select {
			case lines <- s.Text():
			case <-ctx.Done():
				return
			}
		}
	}()
	next := func(want string) (string, error) {
		select {
		case line := <-lines:
			if want != "" && line != want {
				return "", fmt.Errorf("%q was expected, not %q", want, line)
			}
			return line, nil
		case <-ctx.Done():
			return "", context.Cause(ctx)
		}
	}

	var job Job
	line, err := next("")
	if err == nil {
		err = json.Unmarshal([]byte(line), &job)
	}
	if err != nil {
		return fmt.Errorf("the job: %w", err)
	}
	locker, err := open(job)
	if err != nil {
		return err
	}
	w := &worker{Job: job, locker: locker}
	err = func() error {
		if err := w.warmUp(ctx); err != nil {
			return err
		}
		fmt.Fprintln(out, "ready")
		if _, err := next("start"); err != nil {
			return err
		}
		work, stop := context.WithCancel(ctx)
		var all sync.WaitGroup
		all.Go(func() { w.run(work) })
		_, err := next("stop")
		stop()
		all.Wait()
		if err != nil {
			return err
		}
		if o, ok := locker.(Observed); ok {
			w.seen.Quarantines = o.Quarantines()
		}
		return json.NewEncoder(out).Encode(w.seen)
	}()
	return errors.Join(err, locker.Close())
}

type worker struct {
	Job
	locker Locker

	mu   sync.Mutex
	seen Testimony
}

func (w *worker) note(f func(t *Testimony)) {
	w.mu.Lock()
	defer w.mu.Unlock()
	f(&w.seen)
}

// warmUp returns when there was a lock: servers that have just started don't count
// for a while, and the first use of a connection and of a script costs more.
func (w *worker) warmUp(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, readyTimeout)
	defer cancel()
	for {
		lease, err := w.locker.Acquire(ctx, fmt.Sprint("warm-up/", w.Client))
		if err == nil {
			if err = lease.Release(ctx); err == nil {
				return nil
			}
		}
		if ctx.Err() != nil {
			return fmt.Errorf("no lock within %v: %w", readyTimeout, err)
		}
	}
}

func (w *worker) run(ctx context.Context) {
	var all sync.WaitGroup
	defer all.Wait()
	for r := range w.Writes {
		for i := range w.Waiters {
			all.Go(func() { w.contend(ctx, r, i) })
		}
	}
	tick := time.NewTicker(w.Every)
	defer tick.Stop()
	for n := 0; ; n++ {
		select {
		case <-tick.C:
			all.Go(func() { w.attempt(ctx, fmt.Sprintf("private/%d/%d", w.Client, n%w.Private)) })
		case <-ctx.Done():
			return
		}
	}
}

// attempt locks a resource that nobody else wants. Attempts don't wait for each
// other: a library that hangs must not be asked less often for it.
func (w *worker) attempt(ctx context.Context, resource string) {
	limited, cancel := context.WithTimeout(ctx, w.Budget)
	defer cancel()
	begin := time.Now()
	lease, err := w.locker.Acquire(limited, resource)
	took := time.Since(begin)
	if err == nil {
		w.release(lease)
	}
	if err != nil && ctx.Err() != nil {
		return // out of time
	}
	w.note(func(t *Testimony) {
		t.Attempts = append(t.Attempts, Attempt{begin.UnixNano(), took, err == nil && took <= w.Budget})
	})
}

// release gives the lock back, whatever becomes of it: who waits is served when
// the lease ends.
func (w *worker) release(lease Lease) {
	ctx, cancel := context.WithTimeout(context.Background(), leaveTimeout)
	defer cancel()
	_ = lease.Release(ctx)
}

// contend locks resource r over and over and writes to its registers.
func (w *worker) contend(ctx context.Context, r, i int) {
	seed := uint64(w.Client*len(w.Writes)*w.Waiters + r*w.Waiters + i)
	random := rand.New(rand.NewPCG(w.Seed, seed)) //nolint:gosec // a workload
	registers, err := dialRegisters(w.Register)
	if err != nil {
		w.note(func(t *Testimony) { t.Errors = append(t.Errors, err.Error()) })
		return
	}
	defer registers.close()
	for n := int64(0); ctx.Err() == nil; n++ {
		h := Hold{ID: int64(seed)<<32 | n, Client: w.Client, Resource: r, Call: time.Now().UnixNano()} //nolint:gosec // small
		lease, err := w.locker.Acquire(ctx, fmt.Sprint("shared/", r))
		if err != nil {
			w.note(func(t *Testimony) { t.Failed++ })
			pause(ctx, rest)
			continue
		}
		h.Acquired, h.Token, h.Until = time.Now().UnixNano(), lease.Token(), lease.Until().UnixNano()
		err = w.use(ctx, lease, &h, registers)
		h.End = time.Now().UnixNano()
		w.release(lease)
		w.note(func(t *Testimony) {
			t.Holds = append(t.Holds, h)
			if err != nil {
				t.Errors = append(t.Errors, err.Error())
			}
		})
		pause(ctx, time.Duration(random.Int64N(int64(rest))))
	}
}

// use is the work under the lock. It looks at the lease before each write, as it
// should, and then works for a while, as everybody does: a pause in between is what
// no look can help against.
func (w *worker) use(ctx context.Context, lease Lease, h *Hold, registers *registers) error {
	if err := registers.do(Operation{Hold: h.ID, Resource: h.Resource, Token: h.Token}); err != nil {
		return err
	}
	for range w.Writes[h.Resource] {
		left := time.Until(lease.Until())
		if left <= 0 || ctx.Err() != nil {
			return nil
		}
		if left < w.TTL*2/3 {
			limited, cancel := context.WithTimeout(ctx, left)
			_ = lease.Extend(limited) // what became of it, Until says
			cancel()
			h.Until = lease.Until().UnixNano()
			if time.Until(lease.Until()) <= 0 {
				return nil
			}
		}
		time.Sleep(w.Work)
		if err := registers.do(Operation{Hold: h.ID, Resource: h.Resource, Token: h.Token, Write: true}); err != nil {
			return err
		}
	}
	return nil
}

func pause(ctx context.Context, d time.Duration) {
	select {
	case <-ctx.Done():
	case <-time.After(d):
	}
}
