package redlock_test

import (
	"context"
	"errors"
	"fmt"
	"reflect"
	"runtime"
	"strconv"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/quorumlock/redlock"
	"github.com/quorumlock/redlock/internal/redistest"
)

// A record is all that an Observer was told, as it came.
type record struct {
	mu     sync.Mutex
	events []any
	next   chan struct{}
}

func newRecord() *record { return &record{next: make(chan struct{}, 1)} }

func (r *record) add(e any) {
	r.mu.Lock()
	r.events = append(r.events, e)
	r.mu.Unlock()
	select {
	case r.next <- struct{}{}:
	default:
	}
}

func (r *record) observer() redlock.Observer {
	return redlock.Observer{
		Opened:   func(l *redlock.Locker) { r.add(opened{l}) },
		Closed:   func(l *redlock.Locker) { r.add(closed{l}) },
		Acquire:  func(e redlock.AcquireEvent) { r.add(e) },
		Extend:   func(e redlock.ExtendEvent) { r.add(e) },
		Lost:     func(e redlock.LostEvent) { r.add(e) },
		Outlived: func(e redlock.OutlivedEvent) { r.add(e) },
		Release:  func(e redlock.ReleaseEvent) { r.add(e) },
		Round:    func(e redlock.RoundEvent) { r.add(e) },
		Instance: func(e redlock.InstanceEvent) { r.add(e) },
	}
}

type (
	opened struct{ l *redlock.Locker }
	closed struct{ l *redlock.Locker }
)

// told returns the events of one type.
func told[E any](r *record) []E {
	r.mu.Lock()
	defer r.mu.Unlock()
	var found []E
	for _, e := range r.events {
		if e, ok := e.(E); ok {
			found = append(found, e)
		}
	}
	return found
}

// await returns the first event of a type that passes.
func await[E any](t testing.TB, r *record, is func(E) bool) E {
	t.Helper()
	late := time.After(6 * soon) // it is told when it is told
	for {
		for _, e := range told[E](r) {
			if is(e) {
				return e
			}
		}
		select {
		case <-r.next:
		case <-late:
			require.FailNow(t, fmt.Sprintf("no such %T was told", *new(E)))
		}
	}
}

func anyEvent[E any](E) bool { return true }

func TestObserverHearsTheLifeOfALock(t *testing.T) {
	t.Parallel()
	r := newRecord()
	l, _ := open(t, 3, redlock.WithObserver(r.observer()))
	type key struct{}
	call := func(name string) context.Context { return context.WithValue(t.Context(), key{}, name) }

	lock, err := l.TryAcquire(call("acquire"), "r", long)
	require.NoError(t, err)
	require.NoError(t, lock.Extend(call("extend"), long))
	require.NoError(t, lock.Release(call("release")))
	require.NoError(t, lock.Release(call("release")), "again")
	require.ErrorIs(t, lock.Extend(call("extend"), long), redlock.ErrLost)
	require.NoError(t, l.Close())

	a := await(t, r, anyEvent[redlock.AcquireEvent])
	require.Equal(t, redlock.OutcomeAcquired, a.Outcome)
	require.NoError(t, a.Err)
	require.Equal(t, "acquire", a.Context.Value(key{}))
	require.Equal(t, "r", a.Resource)
	require.Equal(t, lock.FencingToken(), a.Token)
	require.Equal(t, redlock.OwnerDigest(lock.Owner()), a.Owner)
	require.Equal(t, long, a.TTL)
	require.Less(t, a.Remaining, long)
	require.Greater(t, a.Remaining, long/2)
	require.Zero(t, a.Waited)
	require.True(t, a.End.After(a.Start))
	require.Len(t, a.Last, a.Rounds)
	require.Equal(t, "acquire", a.Last[0].Op)
	require.Positive(t, a.Last[0].Granted)

	e := await(t, r, anyEvent[redlock.ExtendEvent])
	require.Equal(t, redlock.OutcomeExtended, e.Outcome)
	require.Equal(t, "extend", e.Context.Value(key{}))
	require.Equal(t, a.Owner, e.Owner)
	require.False(t, e.Renewal)
	require.Less(t, e.Left, a.Remaining, "it is what was left of the window before")
	require.Greater(t, e.Remaining, e.Left)
	require.GreaterOrEqual(t, e.Round.Granted, 2)

	f := await(t, r, anyEvent[redlock.ReleaseEvent])
	require.Equal(t, redlock.OutcomeReleased, f.Outcome)
	require.Equal(t, "release", f.Context.Value(key{}))
	require.Equal(t, a.Owner, f.Owner)
	require.False(t, f.Acquired.Before(a.Start))
	require.False(t, f.Start.Before(e.End), "the hold is until the call")
	require.True(t, f.End.After(f.Start))
	require.Positive(t, f.Used)
	require.Less(t, f.Used, 0.5)
	require.Zero(t, f.Outlived)
	require.GreaterOrEqual(t, f.Round.Granted, 2)
	require.Equal(t, 1, f.Extends)
	require.Equal(t, []redlock.RoundTally{e.Round}, f.Last)

	require.Len(t, told[redlock.ReleaseEvent](r), 1, "the second one released nothing")
	require.Len(t, told[redlock.ExtendEvent](r), 1, "the second one asked nobody")
	require.Empty(t, told[redlock.LostEvent](r))
	require.Empty(t, told[redlock.OutlivedEvent](r))
	for _, e := range told[redlock.RoundEvent](r) {
		require.Equal(t, a.Owner, e.Owner)
		for _, v := range e.Votes {
			if e.Op != "raise" {
				require.Equal(t, v.Vote != "pending", v.Took > 0, "%s at %s: %s", e.Op, v.Instance, v.Vote)
			}
			require.LessOrEqual(t, v.Took, e.End.Sub(e.Start))
		}
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	require.Equal(t, opened{l}, r.events[0])
	require.Equal(t, closed{l}, r.events[len(r.events)-1])
}

func TestOutcomeSaysHowAnAcquireEnded(t *testing.T) {
	t.Parallel()
	for outcome, fails := range map[redlock.Outcome]func(t *testing.T, l *redlock.Locker, servers []*redistest.Server){
		redlock.OutcomeTaken: func(t *testing.T, l *redlock.Locker, servers []*redistest.Server) {
			occupy(t, servers, "r", "other")
			_, err := l.TryAcquire(t.Context(), "r", long)
			require.ErrorIs(t, err, redlock.ErrTaken)
		},
		redlock.OutcomeNoQuorum: func(t *testing.T, l *redlock.Locker, servers []*redistest.Server) {
			require.NoError(t, servers[0].Kill())
			require.NoError(t, servers[1].Kill())
			_, err := l.TryAcquire(t.Context(), "r", long)
			require.ErrorIs(t, err, redlock.ErrNoQuorum)
		},
		redlock.OutcomeExpired: func(t *testing.T, l *redlock.Locker, _ []*redistest.Server) {
			_, err := l.TryAcquire(t.Context(), "r", time.Second, redlock.WithMinValidity(time.Second-time.Second/100-2*time.Millisecond-1))
			require.ErrorIs(t, err, redlock.ErrExpired)
		},
		redlock.OutcomeCancelled: func(t *testing.T, l *redlock.Locker, servers []*redistest.Server) {
			occupy(t, servers, "r", "other")
			ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
			defer cancel()
			_, err := l.Acquire(ctx, "r", long)
			require.ErrorIs(t, err, context.DeadlineExceeded)
		},
	} {
		t.Run(string(outcome), func(t *testing.T) {
			t.Parallel()
			r := newRecord()
			l, servers := open(t, 3, redlock.WithObserver(r.observer()))
			fails(t, l, servers)
			e := await(t, r, anyEvent[redlock.AcquireEvent])
			require.Equal(t, outcome, e.Outcome)
			require.Error(t, e.Err)
			require.Zero(t, e.Remaining)
			require.Positive(t, e.Rounds)
			require.Equal(t, outcome == redlock.OutcomeCancelled, e.Waited > 0)
		})
	}
	t.Run("failed", func(t *testing.T) {
		t.Parallel()
		r := newRecord()
		l, _ := open(t, 3, redlock.WithObserver(r.observer()), redlock.WithFencing(sourceFunc(
			func(context.Context, string) (uint64, error) { return 0, errors.New("no number") })))
		_, err := l.TryAcquire(t.Context(), "r", long)
		require.Error(t, err)
		require.Equal(t, redlock.OutcomeFailed, await(t, r, anyEvent[redlock.AcquireEvent]).Outcome)
	})
}

// A lock that waits for hours may ask a thousand times.
func TestAcquireEventRemembersItsLastRounds(t *testing.T) {
	t.Parallel()
	r := newRecord()
	l, servers := open(t, 1, redlock.WithObserver(r.observer()), redlock.WithRetryDelay(time.Millisecond, time.Millisecond))
	occupy(t, servers, "r", "other")
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	done := make(chan error, 1)
	go func() {
		_, err := l.Acquire(ctx, "r", long)
		done <- err
	}()
	require.Eventually(t, func() bool { return len(told[redlock.RoundEvent](r)) > 2*40 }, 6*soon, 5*time.Millisecond, "an acquire and a release for each")
	require.Equal(t, 1, l.Stats().Waiting)
	cancel()
	require.ErrorIs(t, <-done, context.Canceled)
	require.Zero(t, l.Stats().Waiting)
	e := await(t, r, anyEvent[redlock.AcquireEvent])
	require.Greater(t, e.Rounds, 32)
	require.Len(t, e.Last, 32)
	for i := range e.Last[1:] {
		require.True(t, e.Last[i+1].Start.After(e.Last[i].Start), "in their order")
	}
	require.Equal(t, e.Last[30].Refused, 1)
	require.Greater(t, e.Waited, e.End.Sub(e.Start)/2)
}

func TestRenewalsAreTold(t *testing.T) {
	t.Parallel()
	r := newRecord()
	l, servers := open(t, 3, redlock.WithObserver(r.observer()))
	lock, err := l.TryAcquire(t.Context(), "r", time.Second)
	require.NoError(t, err)
	ctx := lock.KeepAlive(t.Context())
	e := await(t, r, anyEvent[redlock.ExtendEvent])
	require.True(t, e.Renewal)
	require.Equal(t, redlock.OutcomeExtended, e.Outcome)
	require.Greater(t, e.Left, 300*time.Millisecond, "it left at a third")
	require.Less(t, e.Left, 700*time.Millisecond)

	require.NoError(t, servers[0].Kill())
	require.NoError(t, servers[1].Kill())
	e = await(t, r, func(e redlock.ExtendEvent) bool { return e.Err != nil })
	require.Equal(t, redlock.OutcomeNoQuorum, e.Outcome)
	require.Positive(t, e.Remaining, "the window is as it was")

	<-ctx.Done()
	lost := await(t, r, anyEvent[redlock.LostEvent])
	require.Equal(t, redlock.LostNoQuorum, lost.Reason)
	require.ErrorIs(t, lost.Err, redlock.ErrNoQuorum)
	require.Equal(t, redlock.OwnerDigest(lock.Owner()), lost.Owner)
	require.Greater(t, lost.At.Sub(lost.Acquired), 500*time.Millisecond)
}

// The most dangerous number counts holders that did not stop, and no others.
func TestHoldThatOutlivesItsLeaseIsToldOnce(t *testing.T) {
	t.Parallel()
	ttl := 2 * brief
	begin := func(t *testing.T) (*record, *redlock.Locker, *redlock.Lock, []*redistest.Server) {
		r := newRecord()
		l, servers := open(t, 3, redlock.WithObserver(r.observer()), redlock.WithInstanceTimeout(soon))
		lock, err := l.TryAcquire(t.Context(), "r", ttl)
		require.NoError(t, err)
		return r, l, lock, servers
	}
	past := func(t *testing.T, lock *redlock.Lock) {
		becomes(t, func() bool { return lock.Remaining() < -ttl/20 }, "it is over, and the drift with it")
	}
	once := func(t *testing.T, r *record, l *redlock.Locker) {
		require.NoError(t, l.Close())
		require.Len(t, told[redlock.OutlivedEvent](r), 1)
		require.Len(t, told[redlock.LostEvent](r), 1)
	}

	t.Run("released late", func(t *testing.T) {
		t.Parallel()
		r, l, lock, _ := begin(t)
		past(t, lock)
		require.Equal(t, 1, l.Stats().Overdue)
		requireLost(t, lock.Release(t.Context()), redlock.LostExpired)
		e := await(t, r, anyEvent[redlock.OutlivedEvent])
		require.True(t, e.Released)
		require.Greater(t, e.By, 15*time.Millisecond)
		f := await(t, r, anyEvent[redlock.ReleaseEvent])
		require.Equal(t, redlock.OutcomeLost, f.Outcome)
		require.Equal(t, e.By, f.Outlived)
		require.Greater(t, f.Used, 1.0)
		require.Equal(t, redlock.LostExpired, await(t, r, anyEvent[redlock.LostEvent]).Reason)
		require.Zero(t, l.Stats().Overdue)
		once(t, r, l)
	})
	t.Run("kept alive and still at work", func(t *testing.T) {
		t.Parallel()
		r, l, lock, servers := begin(t)
		ctx := lock.KeepAlive(t.Context())
		for _, s := range servers {
			require.NoError(t, s.Kill())
		}
		<-ctx.Done()
		e := await(t, r, anyEvent[redlock.OutlivedEvent]) // while it goes on
		require.False(t, e.Released)
		require.Less(t, e.By, ttl)
		past(t, lock)
		require.Error(t, lock.Release(t.Context()))
		require.Greater(t, await(t, r, anyEvent[redlock.ReleaseEvent]).Outlived, 15*time.Millisecond)
		_ = l.Close() // nobody confirms anything
		require.Len(t, told[redlock.OutlivedEvent](r), 1)
		require.Len(t, told[redlock.LostEvent](r), 1)
	})
	t.Run("forgotten", func(t *testing.T) {
		t.Parallel()
		r, l, lock, _ := begin(t)
		past(t, lock)
		require.Empty(t, told[redlock.OutlivedEvent](r))
		for i := range 3 { // each looks at two
			_, err := l.TryAcquire(t.Context(), strconv.Itoa(i), long)
			require.NoError(t, err)
		}
		require.False(t, await(t, r, anyEvent[redlock.OutlivedEvent]).Released)
		require.Equal(t, redlock.LostExpired, await(t, r, anyEvent[redlock.LostEvent]).Reason)
		require.Equal(t, 3, l.Stats().Held)
		require.Zero(t, l.Stats().Overdue)
		requireLost(t, lock.Release(t.Context()), redlock.LostExpired)
		require.Greater(t, await(t, r, anyEvent[redlock.ReleaseEvent]).Outlived, 15*time.Millisecond)
		require.Len(t, told[redlock.OutlivedEvent](r), 1)
		require.Len(t, told[redlock.LostEvent](r), 1)
	})
	t.Run("not one that stops when it is told", func(t *testing.T) {
		t.Parallel()
		r, l, lock, servers := begin(t)
		ctx := lock.KeepAlive(t.Context())
		for _, s := range servers {
			s.MustDo(t, "SET", "r", "other")
		}
		<-ctx.Done()
		requireLost(t, lock.Release(t.Context()), redlock.LostTakenOver)
		lost := await(t, r, anyEvent[redlock.LostEvent])
		require.Equal(t, redlock.LostTakenOver, lost.Reason)
		f := await(t, r, anyEvent[redlock.ReleaseEvent])
		require.NoError(t, l.Close())
		const reaction = 5 * time.Millisecond // that it has
		took := f.Start.Sub(lost.At)
		require.InDelta(t, max(took-reaction, 0), f.Outlived, float64(time.Millisecond))
		if took < reaction {
			require.Empty(t, told[redlock.OutlivedEvent](r))
		}
	})
}

func TestReleaseThatFindsAnotherOwnerIsTold(t *testing.T) {
	t.Parallel()
	r := newRecord()
	l, servers := open(t, 3, redlock.WithObserver(r.observer()))
	lock, err := l.TryAcquire(t.Context(), "r", long)
	require.NoError(t, err)
	becomes(t, func() bool { return all(servers, "r", lock.Owner()) }, "all have granted")
	for _, s := range servers {
		s.MustDo(t, "SET", "r", "other")
	}
	requireLost(t, lock.Release(t.Context()), redlock.LostTakenOver)
	e := await(t, r, func(e redlock.RoundEvent) bool { return e.Op == "release" })
	require.GreaterOrEqual(t, e.Foreign(), 2, "of those that had granted when it was decided")

	// Of an acquire that lost to another owner, that is nothing to be told.
	_, err = l.TryAcquire(t.Context(), "r", long)
	require.ErrorIs(t, err, redlock.ErrTaken)
	e = await(t, r, func(e redlock.RoundEvent) bool { return e.Op == "release" && e.Token == 0 })
	require.Zero(t, e.Foreign())
}

func TestStatsTellHowInstancesStand(t *testing.T) {
	t.Parallel()
	g := newRig(t, 3)
	l := g.open(redlock.WithQuarantine(time.Hour))
	require.Len(t, l.Stats().Instances, 3)
	_, err := l.TryAcquire(t.Context(), "r", long)
	require.ErrorIs(t, err, redlock.ErrQuarantined)
	for i, in := range l.Stats().Instances {
		require.Equal(t, g.endpoints()[i], in.Instance)
		require.Greater(t, in.Quarantined, 50*time.Minute)
		require.False(t, in.Down)
	}
	require.NoError(t, g.servers[0].Kill())
	becomes(t, func() bool {
		_, err := l.TryAcquire(t.Context(), "r", long)
		return err != nil && l.Stats().Instances[0].Down
	}, "it is found down")

	l = g.open()
	lock, err := l.TryAcquire(t.Context(), "p", long)
	require.NoError(t, err)
	require.Equal(t, 1, l.Stats().Held)
	require.NoError(t, lock.Release(t.Context()))
	g.proxies[1].SwallowReplies(true)
	_, err = l.TryAcquire(t.Context(), "q", long)
	require.ErrorIs(t, err, redlock.ErrNoQuorum)
	becomes(t, func() bool { return l.Stats().Instances[1].CleanUp == 1 }, "it may have granted")
	require.Zero(t, l.Stats().Held)
	require.Zero(t, (*redlock.Locker)(nil).Stats())
}

func TestObserverThatBlocksTouchesNoLock(t *testing.T) {
	t.Parallel()
	release := make(chan struct{})
	var once sync.Once
	var blocked sync.WaitGroup
	blocked.Add(1)
	r := newRecord()
	block := redlock.Observer{Opened: func(*redlock.Locker) { once.Do(blocked.Done); <-release }}
	l, _ := open(t, 1, redlock.WithObserver(redlock.MultiObserver(block, r.observer())), redlock.WithInstanceTimeout(soon))
	blocked.Wait()
	t.Cleanup(func() {
		close(release)
		becomes(t, func() bool { return len(told[closed](r)) == 1 }, "it has come back")
	})

	// Five events for each, to one that takes none.
	for range 3000 {
		lock, err := l.TryAcquire(t.Context(), "r", long)
		require.NoError(t, err)
		require.NoError(t, lock.Release(t.Context()))
	}
	lock, err := l.TryAcquire(t.Context(), "r", 2*brief)
	require.NoError(t, err)
	becomes(t, func() bool { return lock.Remaining() < 0 }, "it is over")
	requireLost(t, lock.Release(t.Context()), redlock.LostExpired)
	start := time.Now()
	require.NoError(t, l.Close())
	require.Less(t, time.Since(start), 5*time.Second)
	require.Empty(t, told[redlock.AcquireEvent](r))

	release <- struct{}{} // so that the rest comes before the end of the test
	becomes(t, func() bool { return len(told[closed](r)) == 1 }, "it goes on")
	require.Len(t, told[redlock.LostEvent](r), 1, "there was room for what matters")
	require.Len(t, told[redlock.OutlivedEvent](r), 1)
	require.Less(t, len(told[redlock.AcquireEvent](r)), 3000)
	dropped := 0
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, e := range r.events {
		if f := reflect.ValueOf(e).FieldByName("Dropped"); f.IsValid() {
			dropped += int(f.Int())
		}
	}
	require.Positive(t, dropped)
}

func TestObserverThatPanicsOrExitsTouchesNoLock(t *testing.T) {
	t.Parallel()
	for name, fail := range map[string]func(){"panics": func() { panic("observer") }, "exits": runtime.Goexit} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			r := newRecord()
			bad := r.observer()
			for i := range reflect.TypeOf(bad).NumField() {
				f := reflect.ValueOf(&bad).Elem().Field(i)
				note := reflect.ValueOf(f.Interface())
				f.Set(reflect.MakeFunc(f.Type(), func(args []reflect.Value) []reflect.Value {
					note.Call(args)
					fail()
					return nil
				}))
			}
			l, _ := open(t, 3, redlock.WithObserver(bad))
			for range 10 {
				require.NoError(t, l.Do(t.Context(), "r", long, func(ctx context.Context, lock *redlock.Lock) error {
					return lock.Extend(ctx, long)
				}))
			}
			require.NoError(t, l.Close())
			require.Len(t, told[redlock.AcquireEvent](r), 10)
			require.Len(t, told[redlock.ReleaseEvent](r), 10)
		})
	}
}

func TestMultiObserverTellsAllAlsoBehindOneThatPanics(t *testing.T) {
	t.Parallel()
	first, last := newRecord(), newRecord()
	panics := redlock.Observer{Acquire: func(redlock.AcquireEvent) { panic("observer") }}
	l, _ := open(t, 3, redlock.WithObserver(redlock.MultiObserver(first.observer(), panics, redlock.Observer{}, last.observer())))
	lock, err := l.TryAcquire(t.Context(), "r", long)
	require.NoError(t, err)
	require.NoError(t, lock.Release(t.Context()))
	require.NoError(t, l.Close())
	first.mu.Lock()
	defer first.mu.Unlock()
	last.mu.Lock()
	defer last.mu.Unlock()
	require.Len(t, first.events, 1+1+1+1+2) // opened, acquire, release, closed, and two rounds
	require.Equal(t, len(first.events), len(last.events))

	multi := reflect.ValueOf(redlock.MultiObserver(first.observer(), last.observer()))
	for i := range multi.NumField() {
		require.False(t, multi.Field(i).IsNil(), multi.Type().Field(i).Name)
	}
	require.True(t, reflect.ValueOf(redlock.MultiObserver(redlock.Observer{}, panics)).FieldByName("Round").IsNil(), "nobody listens: no event is made")
}

// An event tells of the owner what can be shown, and never what releases the lock.
func TestNoEventHasTheOwner(t *testing.T) {
	t.Parallel()
	r := newRecord()
	l, _ := open(t, 3, redlock.WithObserver(r.observer()))
	lock, err := l.TryAcquire(t.Context(), "r", long)
	require.NoError(t, err)
	require.NoError(t, lock.Extend(t.Context(), long))
	require.NoError(t, lock.Release(t.Context()))
	require.NoError(t, l.Close())
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, e := range r.events {
		switch e.(type) {
		case opened, closed:
		default:
			require.NotContains(t, fmt.Sprintf("%#v", e), lock.Owner())
		}
	}
}
