package redlocktest_test

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/quorumlock/redlock"
	"github.com/quorumlock/redlock/redlocktest"
)

// A Ledger is the resource of this example: it refuses who is late.
type Ledger struct {
	mu      sync.Mutex
	newest  uint64
	entries []string
}

var errStale = errors.New("a newer holder has written")

// Append writes an entry for the holder of the lock with this fencing token.
func (l *Ledger) Append(token uint64, entry string) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	if token < l.newest {
		return errStale
	}
	l.newest = token
	l.entries = append(l.entries, entry)
	return nil
}

// A Worker is what a team has written, and what it wants to test: it works under a
// lock, step by step, and stops when it has lost it.
type Worker struct {
	Locker *redlock.Locker
	Ledger *Ledger
	TTL    time.Duration
	Pause  time.Duration // between two steps
}

// Run works until ctx ends, or the lock is lost.
func (w *Worker) Run(ctx context.Context) error {
	return w.Locker.Do(ctx, "ledger", w.TTL, func(ctx context.Context, lock *redlock.Lock) error {
		for step := 1; ; step++ {
			if err := w.Ledger.Append(lock.FencingToken(), fmt.Sprint("step ", step)); err != nil {
				return err
			}
			select {
			case <-ctx.Done():
				return context.Cause(ctx)
			case <-time.After(w.Pause):
			}
		}
	})
}

// The test of the worker, in virtual time: minutes of work, and done at once.
func TestTheWorkerStopsWhenItHasLostItsLock(t *testing.T) {
	inBubble(t, func(t *testing.T) {
		cluster := redlocktest.New(t, 3)
		ledger := &Ledger{}
		ended := make(chan error)
		go func() {
			w := Worker{Locker: cluster.Locker(), Ledger: ledger, TTL: 30 * time.Second, Pause: time.Second}
			ended <- w.Run(t.Context())
		}()

		time.Sleep(2 * time.Minute) // far longer than the ttl: it keeps the lock alive
		synctest.Wait()
		require.True(t, cluster.Held("ledger"))
		require.Len(t, ledger.entries, 121)

		lost := time.Now()
		cluster.Lose("ledger")
		second, err := cluster.Locker().Acquire(t.Context(), "ledger", time.Minute)
		require.NoError(t, err)
		require.NoError(t, ledger.Append(second.FencingToken(), "the second holder"))

		require.ErrorIs(t, <-ended, errStale, "the ledger refuses it before the lock does")
		require.LessOrEqual(t, time.Since(lost), time.Second)
		require.Equal(t, "the second holder", ledger.entries[len(ledger.entries)-1])
	})
}

// The same without anybody who writes in between: then the lock's own signal ends the
// worker.
func TestTheWorkerStopsWhenNoQuorumIsLeft(t *testing.T) {
	inBubble(t, func(t *testing.T) {
		cluster := redlocktest.New(t, 3)
		w := Worker{Locker: cluster.Locker(), Ledger: &Ledger{}, TTL: 30 * time.Second, Pause: time.Second}
		time.AfterFunc(time.Minute, func() {
			cluster.Down(0)
			cluster.Slow(1, time.Hour)
		})
		start := time.Now()
		err := w.Run(t.Context())
		requireLost(t, err, redlock.LostNoQuorum)
		require.Less(t, time.Since(start), time.Minute+w.TTL)
	})
}

func Example() {
	t := &testing.T{} // a test has its own, and needs no Close
	cluster := redlocktest.New(t, 3)
	defer cluster.Close()

	ctx := context.Background()
	locker := cluster.Locker()
	lock, err := locker.Acquire(ctx, "invoice-42", 300*time.Millisecond)
	if err != nil {
		fmt.Println(err)
		return
	}
	fmt.Println("held:", cluster.Held("invoice-42"))
	work := lock.KeepAlive(ctx)

	cluster.Down(0) // a minority: nothing happens
	fmt.Println("extend:", lock.Extend(ctx, 300*time.Millisecond))

	cluster.Lose("invoice-42") // the next renewal finds out
	<-work.Done()
	var lost *redlock.LostError
	fmt.Println("lost:", errors.As(context.Cause(work), &lost), lost.Reason)
	// Output:
	// held: true
	// extend: <nil>
	// lost: true expired
}
