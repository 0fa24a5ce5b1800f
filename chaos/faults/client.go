package faults

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"os/signal"
	"runtime"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/quorumlock/redlock"
	"github.com/quorumlock/redlock/chaos/history"
)

// clientVariable is the environment variable that makes this program a client process.
const clientVariable = "REDLOCK_CHAOS_FAULTS_CLIENT"

// voteLimit is more than the 30 ms that the default would be: on a machine that starts
// servers all the time, healthy ones miss that, and then nothing happens.
const voteLimit = 80 * time.Millisecond

// perProcess is how far apart the clients of two processes are numbered.
const perProcess = 1000

// A clientConfig says what a client process does.
type clientConfig struct {
	ID         int
	Endpoints  []string // of the locks
	Resources  string   // the address of the server that has them
	Each       int      // how many of each kind of resource there are
	Goroutines int
	TTL        time.Duration
	Long       time.Duration // the ttl of locks whose keys would be seen if they were left; 0: there are none
	Think      time.Duration // the longest time between a look at the lease and what it is for
	Quarantine time.Duration // negative: the default
	Seed       uint64
	Log        string // the file that gets its history
}

// Client runs the client process that this program was started to be, and reports
// false if it was not. A program that runs scenarios calls it first of all:
// they start it again for their clients.
//
// The process works until its standard input says stop, answers on its standard output
// that it has stopped, and ends with its input.
func Client() (exitCode int, isClient bool) {
	text := os.Getenv(clientVariable)
	if text == "" {
		return 0, false
	}
	signal.Ignore(os.Interrupt, syscall.SIGTERM) // of a terminal: who started it ends it, too
	var c clientConfig
	err := json.Unmarshal([]byte(text), &c)
	if err == nil {
		err = c.run(os.Stdin, os.Stdout)
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1, true
	}
	return 0, true
}

func (c clientConfig) run(in io.Reader, out io.Writer) error {
	goroutines := runtime.NumGoroutine()
	recorder, err := history.NewRecorder(c.Log)
	if err != nil {
		return err
	}
	resources, err := openResources(c.Resources, c.Goroutines, recorder)
	if err != nil {
		return err
	}
	opts := []redlock.Option{redlock.WithInstanceTimeout(voteLimit)}
	if c.Quarantine >= 0 {
		opts = append(opts, redlock.WithQuarantine(c.Quarantine))
	}
	locker, err := redlock.Open(c.Endpoints, opts...)
	if err != nil {
		return err
	}

	var stop atomic.Bool
	var workers sync.WaitGroup
	for i := range c.Goroutines {
		w := &worker{
			clientConfig: c, id: c.ID*perProcess + i, locker: locker, resources: resources, recorder: recorder, stop: &stop,
			rand: newRand(c.Seed, c.ID*perProcess+i),
		}
		workers.Go(w.work)
	}
	commands := bufio.NewReader(in)
	_, _ = commands.ReadString('\n') // stop, or the end of who started this
	stop.Store(true)
	workers.Wait()
	if _, err := fmt.Fprintln(out, "stopped"); err != nil {
		return err
	}
	// Until the end of the input the clean-up has time.
	_, _ = commands.ReadString('\n')
	closed := locker.Close()
	if errors.Is(closed, redlock.ErrNoQuorum) { // what it forgot is no affair of anybody any more
		closed = nil
	}
	return errors.Join(closed, resources.client.Close(), recorder.Close(), leak(goroutines))
}

// leak waits for the end of the goroutines, all but n of them, and returns an error if
// it does not come.
func leak(n int) error {
	for deadline := time.Now().Add(3 * time.Second); runtime.NumGoroutine() > n; time.Sleep(time.Millisecond) {
		if time.Now().After(deadline) {
			stacks := make([]byte, 1<<16)
			return fmt.Errorf("goroutines are left:\n%s", stacks[:runtime.Stack(stacks, true)])
		}
	}
	return nil
}

// A worker is one goroutine that locks resources and works on them.
type worker struct {
	clientConfig
	id        int // the client of its history
	locker    *redlock.Locker
	resources *resources
	recorder  *history.Recorder
	stop      *atomic.Bool
	rand      *rand.Rand
}

// The workloads, and how they name their resources. Those behind a guard have a name
// with "fenced" in it.
const (
	counter  = "counter"  // read, add one, write: a lost update is a second holder
	register = "register" // written without a look at it
	job      = "job"      // must run once: read whether it ran; if not, run it and say so
	long     = "long"     // locked for long, and released
)

// isLockKey reports whether a key of a server is that of a lock of the workloads.
func isLockKey(key string) bool {
	kind, _, _ := strings.Cut(key, "-")
	return kind == counter || kind == register || kind == job || kind == long
}

// jobEvery is how often there is a new job.
const jobEvery = 20 * time.Millisecond

func (w *worker) work() {
	for !w.stop.Load() {
		fenced := [2]string{"plain", "fenced"}[w.rand.IntN(2)]
		resource := func(kind string) string { return fmt.Sprintf("%s-%s-%d", kind, fenced, w.rand.IntN(w.Each)) }
		switch n := w.rand.IntN(100); {
		case n < 45:
			w.hold(resource(counter), w.TTL, w.count)
		case n < 89:
			w.hold(resource(register), w.TTL, w.set)
		case n < 95:
			// The same for all processes, so that they compete for it.
			slot := time.Now().UnixNano() / int64(jobEvery)
			w.hold(fmt.Sprintf("%s-%s-%d", job, fenced, slot), w.TTL, w.runOnce)
		case w.Long > 0:
			w.hold(fmt.Sprintf("%s-fenced-%d", long, w.id), w.Long, w.set)
		default:
			w.keep(resource(counter))
		}
	}
}

// A held is a lock, and the record of it.
type held struct {
	*worker
	lock   *redlock.Lock
	record history.Hold
}

// acquire returns nil if it got none.
func (w *worker) acquire(resource string, ttl time.Duration) *held {
	h := &held{worker: w, record: history.Hold{Client: w.id, Resource: resource, Sent: time.Now().UnixNano()}}
	var err error
	if w.rand.IntN(3) == 0 {
		h.lock, err = w.locker.Acquire(context.Background(), resource, ttl, redlock.WithMaxWait(w.TTL))
	} else {
		h.lock, err = w.locker.TryAcquire(context.Background(), resource, ttl)
	}
	if err != nil {
		if !errors.Is(err, redlock.ErrTaken) { // nobody can be asked: don't spin
			time.Sleep(time.Duration(1+w.rand.IntN(5)) * time.Millisecond)
		}
		return nil
	}
	h.record.Answered, h.record.Result, h.record.Token = time.Now().UnixNano(), history.OK, h.lock.FencingToken()
	return h
}

// hold locks resource, lets do work on it and releases it; once in a while it forgets
// to, or extends the lock first.
func (w *worker) hold(resource string, ttl time.Duration, do func(*held)) {
	h := w.acquire(resource, ttl)
	if h == nil {
		return
	}
	do(h)
	if w.rand.IntN(10) == 0 {
		h.extend(ttl)
	}
	if ttl == w.TTL && w.rand.IntN(100) == 0 {
		h.record.Until = h.lock.ValidUntil().UnixNano() // forgotten
	} else {
		h.release()
	}
	w.recorder.Hold(h.record)
}

// keep keeps resource locked for some leases, counts now and then, and notes when it is
// told that the lock is lost.
func (w *worker) keep(resource string) {
	h := w.acquire(resource, w.TTL)
	if h == nil {
		return
	}
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	kept := h.lock.KeepAlive(ctx)
	var signal atomic.Int64
	watched := make(chan struct{})
	context.AfterFunc(kept, func() {
		defer close(watched)
		if lost, ok := errors.AsType[*redlock.LostError](context.Cause(kept)); ok && lost.Reason != redlock.LostReleased {
			signal.Store(time.Now().UnixNano())
		}
	})
	for range 4 * (1 + w.rand.IntN(4)) {
		w.count(h)
		select {
		case <-time.After(w.TTL / 4):
		case <-kept.Done():
		}
		if kept.Err() != nil || w.stop.Load() {
			break
		}
	}
	h.release()
	cancel()
	<-watched
	h.record.Signal = signal.Load()
	w.recorder.Hold(h.record)
}

func (h *held) extend(ttl time.Duration) {
	step := history.Step{Sent: time.Now().UnixNano()}
	err := h.lock.Extend(context.Background(), ttl)
	step.Answered, step.Result = time.Now().UnixNano(), resultOf(err)
	h.record.Extends = append(h.record.Extends, step)
}

func (h *held) release() {
	h.record.Until = h.lock.ValidUntil().UnixNano()
	h.record.Release.Sent = time.Now().UnixNano()
	err := h.lock.Release(context.Background())
	h.record.Release.Answered, h.record.Release.Result = time.Now().UnixNano(), resultOf(err)
}

func resultOf(err error) history.Result {
	switch {
	case err == nil:
		return history.OK
	case errors.Is(err, redlock.ErrLost):
		return history.Refused
	}
	return history.Unknown
}

// access reports false if it was not applied: the lease is over, or somebody with a
// larger token was there.
func (h *held) access(kind history.Kind, base, value uint64) (before uint64, ok bool) {
	if h.lock.Remaining() <= 0 {
		return 0, false
	}
	// Here a holder may be stopped for as long as you like, and it often thinks.
	if h.rand.IntN(4) == 0 {
		time.Sleep(time.Duration(h.rand.Int64N(int64(h.Think))))
	}
	before, err := h.resources.access(history.Access{
		Client: h.id, Resource: h.record.Resource, Fenced: strings.Contains(h.record.Resource, "fenced"), Token: h.record.Token,
		Kind: kind, Base: base, Value: value,
	})
	return before, err == nil
}

// count adds to the resource, step by step. A holder that keeps it alone need not read
// again what it wrote.
func (w *worker) count(h *held) {
	n, ok := h.access(history.Read, 0, 0)
	for range 1 + w.rand.IntN(4) {
		if !ok {
			return
		}
		_, ok = h.access(history.Update, n, n+1)
		n++
	}
}

func (w *worker) set(h *held) {
	for range 1 + w.rand.IntN(4) {
		if _, ok := h.access(history.Write, 0, uint64(time.Now().UnixNano())); !ok { //nolint:gosec // positive
			return
		}
	}
}

func (w *worker) runOnce(h *held) {
	if done, ok := h.access(history.Read, 0, 0); ok && done == 0 {
		h.access(history.Update, 0, 1)
	}
}
