package redlockotel_test

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/quorumlock/redlock"
	"github.com/quorumlock/redlock/fence"
	"github.com/quorumlock/redlock/internal/redistest"
	"github.com/quorumlock/redlock/redlockotel"
)

func class(resource string) string { c, _, _ := strings.Cut(resource, ":"); return c }

// Each metric is scraped from a program that locks, and is struck by each fault that
// the metrics are for.
func TestEachMetricTellsOfLoadAndFaults(t *testing.T) {
	servers := redistest.StartN(t, 3)
	slow := redistest.NewProxy(t, servers[0].Addr())
	addrs := redistest.Addrs(servers)
	addrs[0] = slow.Addr()
	tel, page := newTelemetry(t, redlockotel.WithClass(class))
	const quarantine = 3 * time.Second
	open := func() *redlock.Locker {
		l, err := redlock.Open(addrs, redlock.WithObserver(tel.Observer()), redlock.WithQuarantine(quarantine),
			redlock.WithInstanceTimeout(2*time.Second))
		require.NoError(t, err)
		t.Cleanup(func() { _ = l.Close() })
		return l
	}
	l := open()
	eventually := func(name string, want labels, is func(v float64) bool) {
		t.Helper()
		var last float64
		becomes(t, func() bool { last = page.scrape().value(name, want); return is(last) }, name)
		t.Logf("%s%v = %v", name, want, last)
	}
	least := func(n float64) func(float64) bool { return func(v float64) bool { return v >= n } }
	exactly := func(n float64) func(float64) bool { return func(v float64) bool { return v == n } }
	acquire := func(resource string, ttl time.Duration, opts ...redlock.AcquireOption) *redlock.Lock {
		t.Helper()
		k, err := l.Acquire(t.Context(), resource, ttl, opts...)
		require.NoError(t, err)
		return k
	}

	// Servers that have just started do not count.
	_, err := l.TryAcquire(t.Context(), "start:1", long)
	require.ErrorIs(t, err, redlock.ErrQuarantined)
	eventually("redlock_instance_quarantined", nil, least(2))
	require.NoError(t, acquire("start:1", long).Release(t.Context()), "it waits for the end of that")
	eventually("redlock_instance_quarantined", nil, exactly(0))
	eventually("redlock_acquire_duration_seconds", labels{"redlock_outcome": "no quorum"}, least(1))

	// Load: four resources, sixteen callers.
	var locked atomic.Int64
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	var callers sync.WaitGroup
	guard := new(fence.HighWater)
	tel.WatchGuard("ledger", guard)
	for i := range 16 {
		callers.Go(func() {
			for ctx.Err() == nil {
				err := l.Do(ctx, "load:"+strconv.Itoa(i%4), long, func(ctx context.Context, k *redlock.Lock) error {
					time.Sleep(time.Millisecond) // its work: so that whoever looks finds a holder
					err := guard.Check(ctx, k.Resource(), k.FencingToken())
					if err == nil { // it is not, where the end of the load comes between
						locked.Add(1)
					}
					return err
				})
				if err != nil && ctx.Err() == nil {
					t.Errorf("Do: %v", err)
					return
				}
			}
		})
	}
	becomes(t, func() bool { return locked.Load() > 200 }, "locks")
	eventually("redlock_waiting", nil, least(1))
	eventually("redlock_held", nil, least(1))
	before := locked.Load()
	s := page.scrape() // under load
	acquired := labels{"redlock_outcome": "acquired", "redlock_class": "load"}
	require.InDelta(t, float64(before), s.value("redlock_acquire_duration_seconds", acquired), 0.5*float64(before)+1000)
	require.GreaterOrEqual(t, s.mean("redlock_acquire_rounds", acquired), 1.0)
	require.Greater(t, s.mean("redlock_acquire_remaining_seconds", labels{"redlock_class": "load"}), 50.0)
	require.Less(t, s.mean("redlock_acquire_remaining_seconds", labels{"redlock_class": "load"}), 60.0)
	require.Positive(t, s.mean("redlock_wait_duration_seconds", acquired))
	require.Less(t, s.mean("redlock_hold_lease_used", labels{"redlock_class": "load"}), 0.2)
	for _, addr := range addrs {
		granted := labels{"redlock_instance": addr, "redlock_op": "acquire", "redlock_vote": "granted"}
		require.Greater(t, s.value("redlock_vote_duration_seconds", granted), 10.0)
		require.Less(t, s.mean("redlock_vote_duration_seconds", granted), 2.0)
	}
	require.Less(t, s.mean("redlock_release_duration_seconds", labels{"redlock_outcome": "released"}), 2.0)
	cancel()
	callers.Wait()
	eventually("redlock_waiting", nil, exactly(0))
	eventually("redlock_held", nil, exactly(0))
	eventually("redlock_acquire_duration_seconds", labels{"redlock_outcome": "cancelled"}, least(1))
	// Nothing was lost on the way, unless it is said.
	becomes(t, func() bool {
		s := page.scrape()
		return s.value("redlock_hold_duration_seconds", labels{"redlock_class": "load"})+s.value("redlock_event_dropped_total", nil) >= float64(locked.Load())
	}, "each hold is counted")
	require.Zero(t, page.scrape().value("redlock_hold_outlived_total", nil))
	require.Zero(t, page.scrape().value("redlock_lease_lost_total", nil))
	// And what has not happened is a zero: an increase is seen from there only.
	require.Len(t, page.scrape().series("redlock_hold_outlived_total", labels{"redlock_class": "load"}), 1)
	require.Len(t, page.scrape().series("redlock_lease_lost_total", labels{"redlock_class": "load"}), 5)
	require.Len(t, page.scrape().series("redlock_instance_changes_total", labels{"redlock_instance": addrs[0]}), 11)

	// Taken.
	k := acquire("taken:1", long)
	_, err = l.TryAcquire(t.Context(), "taken:1", long)
	require.ErrorIs(t, err, redlock.ErrTaken)
	eventually("redlock_acquire_duration_seconds", labels{"redlock_outcome": "taken", "redlock_class": "taken"}, exactly(1))
	require.NoError(t, k.Release(t.Context()))

	// Too late.
	_, err = l.TryAcquire(t.Context(), "late:1", time.Second, redlock.WithMinValidity(988*time.Millisecond-1))
	require.ErrorIs(t, err, redlock.ErrExpired)
	eventually("redlock_acquire_duration_seconds", labels{"redlock_outcome": "expired"}, exactly(1))

	// Renewals.
	k = acquire("kept:1", 3*time.Second)
	kept := k.KeepAlive(t.Context())
	eventually("redlock_extend_duration_seconds", labels{"redlock_outcome": "extended", "redlock_renewal": "true"}, least(2))
	s = page.scrape()
	require.InDelta(t, 2, s.mean("redlock_extend_remaining_seconds", labels{"redlock_renewal": "true"}), 1, "a renewal comes at a third")

	// Somebody else has it, and the holder goes on for a moment after it was told.
	for _, srv := range servers {
		srv.MustDo(t, "SET", "kept:1", "other", "PX", "60000")
	}
	<-kept.Done()
	eventually("redlock_lease_lost_total", labels{"redlock_reason": "taken over", "redlock_class": "kept"}, exactly(1))
	eventually("redlock_extend_duration_seconds", labels{"redlock_outcome": "lost", "redlock_renewal": "true"}, exactly(1))
	eventually("redlock_hold_outlived_total", labels{"redlock_class": "kept"}, exactly(1))
	require.ErrorIs(t, k.Release(t.Context()), redlock.ErrLost)

	// A holder that comes back late: it finds another owner, and its write is refused.
	late := acquire("paused:1", time.Second)
	becomes(t, func() bool { return late.Remaining() < 0 }, "its time is over")
	eventually("redlock_overdue", nil, exactly(1))
	next := acquire("paused:1", long)
	require.NoError(t, guard.Check(t.Context(), "paused:1", next.FencingToken()))
	require.ErrorIs(t, guard.Check(t.Context(), "paused:1", late.FencingToken()), fence.ErrStale)
	require.ErrorIs(t, late.Release(t.Context()), redlock.ErrLost)
	eventually("redlock_fence_stale_total", labels{"redlock_guard": "ledger"}, exactly(1))
	eventually("redlock_fence_accepted_total", labels{"redlock_guard": "ledger"}, least(float64(locked.Load())))
	eventually("redlock_hold_outlived_total", labels{"redlock_class": "paused"}, exactly(1))
	eventually("redlock_release_foreign_total", labels{"redlock_class": "paused"}, exactly(1))
	eventually("redlock_overdue", nil, exactly(0))
	require.Greater(t, page.scrape().mean("redlock_hold_lease_used", labels{"redlock_class": "paused"}), 1.0)
	require.NoError(t, next.Release(t.Context()))

	tel.WatchGuard("worker", duplicates(3))
	eventually("redlock_fence_duplicates_total", labels{"redlock_guard": "worker"}, exactly(3))

	// An instance that is slow, and ahead: a thin hold.
	slow.Delay(20 * time.Millisecond)
	k = acquire("thin:1", long)
	require.NoError(t, k.Release(t.Context()))
	becomes(t, func() bool {
		servers[0].MustDo(t, "SET", "{thin:1}:fence", strconv.FormatUint(k.FencingToken()+60e6, 10))
		k := acquire("thin:1", long)
		require.NoError(t, k.Release(t.Context()))
		return page.scrape().value("redlock_hold_thin_total", labels{"redlock_class": "thin"}) >= 1
	}, "the others decided")
	slow.Delay(0)

	// An instance whose answers do not come back may have granted.
	slow.SwallowReplies(true)
	k = acquire("silent:1", long)
	eventually("redlock_instance_cleanup", labels{"redlock_instance": addrs[0]}, least(1))
	eventually("redlock_instance_down", labels{"redlock_instance": addrs[0]}, exactly(1))
	require.NoError(t, k.Release(t.Context()))
	slow.SwallowReplies(false)
	slow.Break()
	eventually("redlock_instance_down", nil, exactly(0))
	eventually("redlock_instance_cleanup", nil, exactly(0))

	// No majority.
	k = acquire("dark:1", 2*time.Second)
	kept = k.KeepAlive(t.Context())
	require.NoError(t, servers[1].Kill())
	require.NoError(t, servers[2].Kill())
	<-kept.Done()
	require.Error(t, k.Release(t.Context()))
	eventually("redlock_lease_lost_total", labels{"redlock_reason": "no quorum"}, exactly(1))
	eventually("redlock_extend_duration_seconds", labels{"redlock_outcome": "no quorum", "redlock_renewal": "true"}, least(1))
	eventually("redlock_instance_down", nil, exactly(2))
	eventually("redlock_instance_changes_total", labels{"redlock_instance": addrs[1], "redlock_change": "down"}, exactly(1))

	names := slices.Sorted(maps.Keys(page.scrape()))
	require.Equal(t, slices.Sorted(maps.Keys(exported(t))), names, "no metric is without a test")
	_ = l.Close()
	becomes(t, func() bool { return page.scrape().value("redlock_instance_down", nil) == 0 }, "a Locker that is closed is asked nothing")
}

// duplicates is the count of an application.
type duplicates uint64

func (d duplicates) Counts() fence.Counts { return fence.Counts{Duplicates: uint64(d)} }

// exported returns all metrics that the module can export, by being told all events.
func exported(t testing.TB) families {
	t.Helper()
	tel, page := newTelemetry(t)
	o := tel.Observer()
	l, err := redlock.Open([]string{"127.0.0.1:1"})
	require.NoError(t, err)
	defer l.Close()
	o.Opened(l)
	defer o.Closed(l)
	tel.WatchGuard("g", duplicates(1))
	e := redlock.LockEvent{Context: t.Context(), Resource: "r", Dropped: 1}
	now := time.Now()
	o.Acquire(redlock.AcquireEvent{LockEvent: e, Outcome: redlock.OutcomeAcquired, Waited: 1, Rounds: 1})
	o.Extend(redlock.ExtendEvent{LockEvent: e, Outcome: redlock.OutcomeExtended})
	o.Lost(redlock.LostEvent{LockEvent: e, Reason: redlock.LostExpired})
	o.Outlived(redlock.OutlivedEvent{LockEvent: e})
	o.Release(redlock.ReleaseEvent{LockEvent: e, Outcome: redlock.OutcomeReleased, Round: redlock.RoundTally{Start: now}})
	o.Round(redlock.RoundEvent{LockEvent: e, Op: "acquire", Votes: []redlock.InstanceVote{{Instance: "a", Vote: "granted", Took: 1}}})
	o.Instance(redlock.InstanceEvent{Instance: "a", Change: redlock.InstanceDown})
	return page.scrape()
}

// A resource may name a person, and each would be a series of its own.
func TestResourceIsNoAttributeUnlessMappedToAClass(t *testing.T) {
	servers := redistest.StartN(t, 1)
	for name, c := range map[string]struct {
		opts []redlockotel.Option
		says bool
	}{"no class": {nil, false}, "class": {[]redlockotel.Option{redlockotel.WithClass(class)}, true}} {
		t.Run(name, func(t *testing.T) {
			spans, recorder := newSpans()
			tel, page := newTelemetry(t, append(c.opts, spans)...)
			l, err := redlock.Open(redistest.Addrs(servers), redlock.WithObserver(tel.Observer()), redlock.WithQuarantine(0))
			require.NoError(t, err)
			k, err := l.Acquire(t.Context(), "customer:ada", long)
			require.NoError(t, err)
			_, err = l.TryAcquire(t.Context(), "customer:ada", long)
			require.ErrorIs(t, err, redlock.ErrTaken)
			require.NoError(t, k.Extend(t.Context(), long))
			require.NoError(t, k.Release(t.Context()))
			require.NoError(t, l.Close())
			text := page.text()
			for _, s := range recorder.Ended() {
				text += fmt.Sprint(s.Name(), s.Attributes(), s.Events(), s.Status())
			}
			require.Contains(t, text, "redlock.hold")
			require.NotContains(t, text, ":ada")
			require.NotContains(t, text, k.Owner())
			require.Equal(t, c.says, strings.Contains(text, "customer"))
		})
	}
}
