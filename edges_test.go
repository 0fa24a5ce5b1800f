package redlock

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/quorumlock/redlock/internal/redistest"
)

// The faults that a review of this library found. Each test names the fault that it
// guards against; all of them look inside, as these moments are too short to be
// hit from outside.

// inTime is by when what must happen has happened, also on a busy machine.
const inTime = 5 * time.Second

func eventually(t *testing.T, condition func() bool, what string, args ...any) {
	t.Helper()
	require.Eventually(t, condition, inTime, 2*time.Millisecond, append([]any{what}, args...)...)
}

// A shiftedClock is some time ahead of the real one.
type shiftedClock struct{ ahead atomic.Int64 }

func (c *shiftedClock) set(ahead time.Duration) { c.ahead.Store(int64(ahead)) }

func (c *shiftedClock) option(cfg *config) error {
	cfg.now = func() time.Time { return time.Now().Add(time.Duration(c.ahead.Load())) }
	return nil
}

// brought returns a Locker on a client of the caller's; both are closed with the
// test.
func brought(t *testing.T, c redis.UniversalClient, opts ...Option) *Locker {
	t.Helper()
	l, err := New([]Instance{{Name: "the instance", Client: c}}, fresh(opts)...)
	require.NoError(t, err)
	t.Cleanup(func() {
		require.NoError(t, l.Close())
		require.NoError(t, c.Close())
	})
	return l
}

// becomesClean waits until the clean-up lists are empty: Close has no time for two
// releases that are a second apart.
func becomesClean(t *testing.T, l *Locker) {
	t.Helper()
	for _, in := range l.instances {
		eventually(t, func() bool {
			in.mu.Lock()
			defer in.mu.Unlock()
			return len(in.leftovers.list) == 0
		}, "the clean-up list is empty")
	}
}

// warmUp brings a connection and the script to the instances.
func warmUp(t *testing.T, l *Locker) {
	t.Helper()
	k, err := l.TryAcquire(t.Context(), "warm-up", time.Minute)
	require.NoError(t, err)
	require.NoError(t, k.Release(t.Context()))
}

// listed returns a lock on one instance, whose clean-up list has it, too: its
// client sent the acquire twice, so that a copy may still be under way.
func listed(t *testing.T, opts ...Option) (*Lock, *redistest.Server, *redistest.Proxy) {
	t.Helper()
	s := redistest.Start(t)
	p := redistest.NewProxy(t, s.Addr())
	l := brought(t, clientOf(p.Addr()), opts...)
	warmUp(t, l)
	p.CutReplies(fenceKey("", "r"))
	k, err := l.TryAcquire(t.Context(), "r", time.Minute)
	require.NoError(t, err)
	require.True(t, k.listed(0))
	return k, s, p
}

// orphans puts n locks that nobody wants any more on the clean-up list of instance
// i, and on its server s.
func orphans(t *testing.T, l *Locker, i int, s *redistest.Server, n int) []*Lock {
	t.Helper()
	locks := make([]*Lock, n)
	set := []string{"MSET"}
	for j := range locks {
		k := &Lock{locker: l, resource: "orphan" + strconv.Itoa(j), owner: "owner" + strconv.Itoa(j)}
		k.key = k.resource
		k.lease.Store(int64(time.Minute))
		k.phase.Store(over)
		set = append(set, k.key, k.owner)
		locks[j] = k
	}
	s.MustDo(t, set...)
	for _, k := range locks {
		l.instances[i].remember(k, l.now())
	}
	return locks
}

// queueAcquires queues acquires at the only instance of l, all at once, so that they
// leave in one batch. The test holds a reference of each round.
func queueAcquires(t *testing.T, l *Locker, resources ...string) []*round {
	t.Helper()
	in := l.instances[0]
	rounds := make([]*round, len(resources))
	for i, resource := range resources {
		k := &Lock{locker: l, resource: resource, key: resource, fence: fenceKey("", resource), owner: "owner of " + resource}
		if !l.fenced() {
			k.fence = ""
		}
		k.lease.Store(int64(time.Minute))
		r := l.newRound(t.Context(), opAcquire, k)
		r.start, r.ttl, r.keep, r.token = l.now(), serverTTL(time.Minute), l.keep(time.Minute), l.seeds.next(l.now())
		r.refs.Add(1)
		rounds[i] = r
	}
	in.mu.Lock()
	in.queue = append(in.queue, rounds...)
	in.mu.Unlock()
	in.signal()
	return rounds
}

// first returns what the first instance has answered.
func (r *round) first() (vote, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.votes[0], r.errs[0]
}

// resting reports whether nothing is out to an instance or waits for it.
func (in *instance) resting() bool {
	in.mu.Lock()
	defer in.mu.Unlock()
	return len(in.queue) == 0 && in.sentAt.IsZero()
}

// queued returns how many operations wait for an instance.
func (in *instance) queued() int {
	in.mu.Lock()
	defer in.mu.Unlock()
	return len(in.queue)
}

func value(s *redistest.Server, key string) any {
	v, err := s.Do("GET", key)
	if err != nil {
		return err
	}
	return v
}

// Clean-up.

// The fault: a clean-up found that a window was over and deleted the key, while
// Extend, which had read the clock before that, went on to say that the lock was
// held: two holders.
func TestCleanUpAndConfirmedExtendExclude(t *testing.T) {
	t.Parallel()
	var clock shiftedClock
	k, s, _ := listed(t, clock.option)
	x, err := k.startExtend(t.Context(), 2*time.Minute)
	require.NoError(t, err)
	defer x.round.leave()
	require.NoError(t, x.round.wait(t.Context(), inTime, settled))
	require.True(t, x.round.won(), "a majority confirmed the extend")

	// Before the caller hears of it, the old window ends, and the clean-up strikes.
	clock.set(time.Minute)
	k.locker.instances[0].signal()
	eventually(t, func() bool { return value(s, "r") != k.owner }, "the clean-up has deleted the key")
	clock.set(0) // what the caller read before

	require.ErrorIs(t, k.confirm(x.asked, x.shortened), ErrLost)
	require.LessOrEqual(t, k.Remaining(), time.Duration(0))
	require.ErrorIs(t, k.Extend(t.Context(), time.Minute), ErrLost)
	_, err = opened(t, []string{s.Addr()}).TryAcquire(t.Context(), "r", time.Minute)
	require.NoError(t, err)
	clock.set(2 * time.Minute)
	k.locker.instances[0].signal()
	becomesClean(t, k.locker)
}

// The fault: the worker looked after the clean-up list only when the queue was
// empty, which it never is on a busy instance.
func TestCleanUpIsDoneUnderLoad(t *testing.T) {
	t.Parallel()
	s := redistest.Start(t)
	p := redistest.NewProxy(t, s.Addr())
	l := opened(t, []string{p.Addr()})
	warmUp(t, l)
	in := l.instances[0]
	var sent atomic.Int64
	load := &Lock{locker: l, resource: "load", key: "load", owner: "load"}
	next := func() {
		r := l.newRound(context.Background(), opRelease, load)
		r.send(l.now())
		r.leave()
	}
	p.OnRequest(func([]byte) { // whenever something is out, the next is waiting
		sent.Add(1)
		next()
	})
	defer p.OnRequest(nil)
	next()
	eventually(t, func() bool { return sent.Load() > 100 }, "there is load")

	orphan := orphans(t, l, 0, s, 1)[0]
	eventually(t, func() bool { return value(s, orphan.key) == nil }, "the orphan is deleted")
	becomesClean(t, l)
	p.OnRequest(nil)
	eventually(t, func() bool { return in.queued() == 0 }, "the load ends")
}

// The fault: how long an instance may refuse to delete was counted from the broken
// connection, not from the first refusal. An owner that had held its lock for
// longer than its ttl was dropped at once, and its key stayed.
func TestOwnerThatHeldForLongIsCleanedUpAfterARefusal(t *testing.T) {
	t.Parallel()
	var clock shiftedClock
	k, s, p := listed(t, clock.option)
	for _, ahead := range []time.Duration{45 * time.Second, 90 * time.Second} {
		clock.set(ahead)
		s.MustDo(t, "PEXPIRE", "r", "15000") // so much its clock would have left of a minute
		require.NoError(t, k.Extend(t.Context(), time.Minute))
	}
	var sent atomic.Int64
	p.OnRequest(func([]byte) { sent.Add(1) })
	s.MustDo(t, "CONFIG", "SET", "min-replicas-to-write", "1")
	require.ErrorIs(t, k.Release(t.Context()), ErrNoQuorum)
	eventually(t, func() bool { return sent.Load() >= 2 }, "the clean-up was refused, too")
	// One that comes after it has waited for the answer.
	_, err := k.locker.TryAcquire(t.Context(), "another", time.Minute)
	require.ErrorIs(t, err, ErrNoQuorum)

	s.MustDo(t, "CONFIG", "SET", "min-replicas-to-write", "0")
	eventually(t, func() bool { return value(s, "r") == nil }, "the key is deleted as soon as the instance obeys")
	becomesClean(t, k.locker)
}

// The fault: a clean-up that an instance refused was due again at once. With more
// of them than fit one batch, the worker sent nothing else, without a pause.
func TestRefusedCleanUpsAreSentOnceASecond(t *testing.T) {
	t.Parallel()
	s := redistest.Start(t)
	p := redistest.NewProxy(t, s.Addr())
	l := opened(t, []string{p.Addr()})
	warmUp(t, l)
	s.MustDo(t, "ACL", "SETUSER", "default", "-del")
	var releases atomic.Int64
	again := make(chan time.Time, 1)
	p.OnRequest(func(chunk []byte) {
		n := releases.Add(int64(bytes.Count(chunk, []byte("$1\r\nd\r\n"))))
		if n > maxBatch+1 {
			select {
			case again <- time.Now():
			default:
			}
		}
	})
	begin := time.Now()
	orphans(t, l, 0, s, maxBatch+1)
	select {
	case at := <-again:
		require.GreaterOrEqual(t, at.Sub(begin), cleanInterval, "one was sent a second time")
	case <-time.After(inTime):
		require.Fail(t, "they are never tried again")
	}
	s.MustDo(t, "ACL", "SETUSER", "default", "+del")
	becomesClean(t, l)
}

// The fault: a lock that somebody else had taken over was said to be released, if
// the clean-up list had it: only of one that is gone can the clean-up be the cause.
func TestReleaseOfATakenOverLockOnTheCleanUpListIsLost(t *testing.T) {
	t.Parallel()
	k, s, _ := listed(t)
	s.MustDo(t, "SET", "r", "somebody else", "PX", "60000")
	err := k.Release(t.Context())
	lost, ok := errors.AsType[*LostError](err)
	require.True(t, ok, "%v", err)
	require.Equal(t, LostTakenOver, lost.Reason)
	require.Equal(t, "somebody else", value(s, "r"))
	becomesClean(t, k.locker)
}

// Batches that were not run.

// The fault: the operations of a batch that a cluster's node refused for its slots
// were sent one by one, with a time-out each, and what became of them was not
// noted: a grant that came late was nobody's.
func TestABatchOfSeveralSlotsIsSentAnewWithinTheLimits(t *testing.T) {
	t.Parallel()
	s := redistest.Start(t, "--cluster-enabled", "yes")
	s.MustDo(t, "CLUSTER", "ADDSLOTSRANGE", "0", "16383")
	eventually(t, func() bool {
		info, _ := s.MustDo(t, "CLUSTER", "INFO").(string)
		return strings.Contains(info, "cluster_state:ok")
	}, "the cluster is ready")
	p := redistest.NewProxy(t, s.Addr())
	l := opened(t, []string{p.Addr()}, OneFlight())
	warmUp(t, l)

	var resources []string
	for i := range 8 {
		resources = append(resources, "r"+strconv.Itoa(i))
	}
	p.OnRequest(func(chunk []byte) {
		if bytes.Contains(chunk, []byte("owner of r7")) { // the batch of all
			p.HoldRequests(true) // what comes after it
		}
	})
	rounds := queueAcquires(t, l, resources...)
	eventually(t, func() bool {
		v, _ := rounds[7].first()
		return v != pending
	}, "the silence of the instance is one time-out, not eight")
	p.OnRequest(nil)
	for i, r := range rounds {
		v, err := r.first()
		require.Equal(t, failed, v)
		require.Error(t, err)
		require.Equal(t, i == 0, r.lock.listed(0), "the first one was out: it may yet be granted")
	}
	p.HoldRequests(false)
	eventually(t, func() bool { return value(s, "r0") == "owner of r0" }, "it is, late")
	for _, r := range rounds {
		r.lock.abandon(t.Context(), r)
		r.leave()
	}
	eventually(t, func() bool { return value(s, "r0") == nil }, "it is cleaned up")
	becomesClean(t, l)
}

// The fault: an instance that did not know the script was sent the text with the
// operations of a moment ago, an acquire after its owner's Release had returned.
func TestWhatWasReleasedMeanwhileIsNotSentWithTheScript(t *testing.T) {
	t.Parallel()
	servers := redistest.StartN(t, 3)
	p := redistest.NewProxy(t, servers[2].Addr())
	l := opened(t, []string{servers[0].Addr(), servers[1].Addr(), p.Addr()}, WithInstanceTimeout(inTime))
	k, err := l.TryAcquire(t.Context(), "warm-up", time.Minute)
	require.NoError(t, err)
	eventually(t, func() bool { return value(servers[2], "warm-up") == k.owner }, "the third has granted")
	require.NoError(t, k.Release(t.Context()))
	eventually(t, func() bool { return value(servers[2], "warm-up") == nil && l.instances[2].resting() }, "it is as far")

	servers[2].MustDo(t, "SCRIPT", "FLUSH")
	var acquires, releases atomic.Int64
	p.OnRequest(func(chunk []byte) {
		acquires.Add(int64(bytes.Count(chunk, []byte("$1\r\na\r\n"))))
		releases.Add(int64(bytes.Count(chunk, []byte("$1\r\nd\r\n"))))
	})
	p.HoldReplies(true)
	k, err = l.TryAcquire(t.Context(), "r", time.Minute)
	require.NoError(t, err)
	eventually(t, func() bool { return acquires.Load() == 1 }, "the third is asked")
	require.NoError(t, k.Release(t.Context()))
	p.HoldReplies(false) // NOSCRIPT
	eventually(t, func() bool { return releases.Load() == 1 }, "the release is sent")
	require.EqualValues(t, 1, acquires.Load(), "and no acquire with it")
}

// The fault: one key that the user has no right to failed all operations that
// happened to be in its batch.
func TestAForbiddenKeyFailsNoOtherOperationOfItsBatch(t *testing.T) {
	t.Parallel()
	s := redistest.Start(t)
	s.MustDo(t, "ACL", "SETUSER", "worker", "on", ">secret", "~a:*", "~{a:*", "~warm-up", "~{warm-up*", "+@all")
	l := opened(t, []string{"redis://worker:secret@" + s.Addr()})
	warmUp(t, l)
	for range 2 {
		rounds := queueAcquires(t, l, "a:1", "a:2", "b:1", "a:3", "a:4")
		for i, r := range rounds {
			eventually(t, func() bool {
				v, _ := r.first()
				return v != pending
			}, "operation %d is answered", i)
			v, err := r.first()
			if i == 2 {
				require.Equal(t, failed, v)
				require.ErrorContains(t, err, "NOPERM")
			} else {
				require.Equal(t, granted, v, "%v", err)
			}
			r.lock.abandon(t.Context(), r)
			r.leave()
		}
		eventually(t, func() bool { return value(s, "a:4") == nil }, "released")
	}
}

// Fencing sources.

// hanging is a source that says when it is asked, and hangs, whatever its context
// does, until the test ends.
func hanging(t *testing.T) (source FencingSource, asked <-chan struct{}) {
	calls, end := make(chan struct{}, 100), make(chan struct{})
	t.Cleanup(func() { close(end) })
	return tokenFunc(func(context.Context, string) (uint64, error) {
		calls <- struct{}{}
		<-end
		return 0, errors.New("the test is over")
	}), calls
}

// The fault: a source was given the whole validity window, whatever the caller had
// said that it wants to wait.
func TestMaxWaitEndsTheQuestionToASource(t *testing.T) {
	t.Parallel()
	servers := redistest.StartN(t, 3)
	source, _ := hanging(t)
	l := opened(t, redistest.Addrs(servers), WithFencing(source))
	begin := time.Now()
	_, err := l.Acquire(t.Context(), "r", 8*time.Second, WithMaxWait(500*time.Millisecond))
	require.Less(t, time.Since(begin), inTime)
	require.ErrorContains(t, err, "fencing source")
	require.NotErrorIs(t, err, ErrExpired)
	for _, s := range servers {
		eventually(t, func() bool { return value(s, "r") == nil }, "no key is left")
	}
}

// The fault: Close returned while an acquire was still asking its source, and the
// keys of that stayed until it was done.
func TestCloseEndsTheQuestionToASource(t *testing.T) {
	t.Parallel()
	servers := redistest.StartN(t, 3)
	source, asked := hanging(t)
	l, err := Open(redistest.Addrs(servers), WithFencing(source), WithInstanceTimeout(inTime), WithQuarantine(0))
	require.NoError(t, err)
	result := make(chan error, 1)
	go func() {
		_, err := l.TryAcquire(context.Background(), "r", 8*time.Second)
		result <- err
	}()
	<-asked
	require.NoError(t, l.Close())
	select {
	case err := <-result:
		require.ErrorIs(t, err, ErrClosed)
	default:
		require.Fail(t, "Close did not wait for the acquire")
	}
	for _, s := range servers {
		require.Nil(t, value(s, "r"), "no key is left")
	}
}

// The faults: when the caller's context ended while the source was asked, the
// error said that there was no quorum; and a deadline of the source's own looked
// like the caller's.
func TestTheEndOfAContextAtASourceIsTheCallersOwn(t *testing.T) {
	t.Parallel()
	servers := redistest.StartN(t, 3)
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	l := opened(t, redistest.Addrs(servers), WithFencing(tokenFunc(func(asked context.Context, _ string) (uint64, error) {
		cancel()
		<-asked.Done()
		return 0, asked.Err()
	})))
	_, err := l.TryAcquire(ctx, "r", time.Minute)
	require.ErrorIs(t, err, context.Canceled)
	require.NotErrorIs(t, err, ErrNoQuorum)
	require.ErrorContains(t, err, "fencing source")

	for _, own := range []error{context.DeadlineExceeded, context.Canceled} {
		l := opened(t, redistest.Addrs(servers), WithFencing(tokenFunc(func(context.Context, string) (uint64, error) {
			return 0, fmt.Errorf("of its own client: %w", own)
		})))
		_, err := l.TryAcquire(t.Context(), "another", time.Minute)
		require.ErrorContains(t, err, "of its own client")
		require.NotErrorIs(t, err, own)
	}
}

// Clients and clocks.

// The fault: the clock was asked for each connection that a hook counted. It counts
// none that was there before, and none of a clone, which shares the pool of its
// original.
func TestTheClockIsAskedOfEveryClient(t *testing.T) {
	t.Parallel()
	for name, build := range map[string]func(addr string) redis.UniversalClient{
		"connected before": func(addr string) redis.UniversalClient {
			c := clientOf(addr)
			require.NoError(t, c.Ping(t.Context()).Err())
			return c
		},
		"a clone": func(addr string) redis.UniversalClient { return clientOf(addr).WithTimeout(inTime) },
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := redistest.Start(t)
			l := brought(t, build(s.Addr()), withClock(6*time.Minute))
			_, err := l.TryAcquire(t.Context(), "r", time.Minute)
			require.ErrorIs(t, err, ErrNoQuorum)
			_, off := errors.AsType[*clockError](err)
			require.True(t, off, "%v", err)

			// One that goes wrong later is found after a minute.
			var clock shiftedClock
			l = brought(t, build(s.Addr()), clock.option)
			warmUp(t, l)
			clock.set(6 * time.Minute)
			_, err = l.TryAcquire(t.Context(), "r", time.Minute)
			_, off = errors.AsType[*clockError](err)
			require.True(t, off, "%v", err)
		})
	}
}

// The faults: an asynchronous client has no answer yet when the call returns; and one
// that pipelines encodes a command once more, to know its size, which looked like a
// second copy under way, so that the text of the script was never sent.
func TestClientsThatPipelineLock(t *testing.T) {
	t.Parallel()
	for name, build := range map[string]func(c *redis.Client) (*redis.AutoPipeliner, error){
		"asynchronous": (*redis.Client).AsyncAutoPipeline,
		"synchronous":  (*redis.Client).AutoPipeline,
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := redistest.Start(t)
			c := clientOf(s.Addr())
			defer c.Close()
			pipeliner, err := build(c)
			require.NoError(t, err)
			defer pipeliner.Close()
			l, err := New([]Instance{{Name: "the instance", Client: pipeliner}}, WithQuarantine(0))
			require.NoError(t, err)
			defer func() { require.NoError(t, l.Close()) }()
			k, err := l.TryAcquire(t.Context(), "r", time.Minute)
			require.NoError(t, err)
			require.Equal(t, k.owner, value(s, "r"))
			require.NoError(t, k.Extend(t.Context(), time.Minute))
			_, err = l.TryAcquire(t.Context(), "r", time.Minute)
			require.ErrorIs(t, err, ErrTaken)
			require.NoError(t, k.Release(t.Context()))
			require.Nil(t, value(s, "r"))

			s.MustDo(t, "SCRIPT", "FLUSH")
			eventually(t, func() bool {
				_, err := l.TryAcquire(t.Context(), "another", time.Minute)
				return err == nil
			}, "the script is sent again")
		})
	}
}

// What callers are told.

// The fault: an extend moved the window only if no other one had been sent since,
// also when that one came to nothing.
func TestAnExtendThatFailsTakesNothingFromTheOneBefore(t *testing.T) {
	t.Parallel()
	servers := redistest.StartN(t, 3)
	proxies, addrs := redistest.NewProxies(t, servers)
	l := opened(t, addrs, WithInstanceTimeout(inTime), OneFlight())
	k, err := l.TryAcquire(t.Context(), "r", 20*time.Second)
	require.NoError(t, err)
	for i, s := range servers {
		eventually(t, func() bool { return value(s, "r") == k.owner && l.instances[i].resting() }, "all have granted")
	}
	for _, p := range proxies {
		p.HoldReplies(true)
	}
	first, second := make(chan error, 1), make(chan error, 1)
	go func() { first <- k.Extend(context.Background(), time.Minute) }()
	for _, s := range servers {
		eventually(t, func() bool {
			left, _ := s.Do("PTTL", "r")
			ms, _ := left.(int64)
			return ms > 30_000
		}, "the first is confirmed, and the answer on its way")
	}
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	go func() { second <- k.Extend(ctx, time.Minute) }()
	for _, in := range l.instances {
		eventually(t, func() bool { return in.queued() == 1 }, "the second waits")
	}
	cancel()
	require.ErrorIs(t, <-second, context.Canceled)
	for _, p := range proxies {
		p.HoldReplies(false)
	}
	require.NoError(t, <-first)
	require.Greater(t, k.Remaining(), 40*time.Second)
}

// The fault: where the time of WithMaxWait ended in the middle of a round, Acquire
// said that there was no quorum, though every answer had been that it is taken.
func TestMaxWaitEndsWithTaken(t *testing.T) {
	t.Parallel()
	servers := redistest.StartN(t, 3)
	var addrs []string
	for _, s := range servers {
		p := redistest.NewProxy(t, s.Addr())
		p.Delay(5 * time.Millisecond)
		addrs = append(addrs, p.Addr())
		s.MustDo(t, "SET", "r", "somebody else", "PX", "600000")
	}
	l := opened(t, addrs, WithRetryDelay(time.Millisecond, 3*time.Millisecond)) // nearly always in a round
	_, err := l.TryAcquire(t.Context(), "r", 10*time.Second)
	require.ErrorIs(t, err, ErrTaken)
	errs := make([]error, 40)
	var wg sync.WaitGroup
	for i := range errs {
		wg.Go(func() {
			_, errs[i] = l.Acquire(t.Context(), "r", 10*time.Second, WithMaxWait(time.Duration(500+3*i)*time.Millisecond))
		})
	}
	wg.Wait()
	for _, err := range errs {
		require.ErrorIs(t, err, ErrTaken)
	}
}

// The fault: of two concurrent Releases of a lost lock, the second one found that
// the keys were gone and said that all was well.
func TestConcurrentReleasesOfALostLockAgree(t *testing.T) {
	t.Parallel()
	servers := redistest.StartN(t, 3)
	l := opened(t, redistest.Addrs(servers))
	for i := range 100 {
		k, err := l.TryAcquire(t.Context(), "r"+strconv.Itoa(i), time.Minute)
		require.NoError(t, err)
		for _, s := range servers {
			eventually(t, func() bool { return value(s, k.key) == k.owner }, "all have granted")
		}
		for _, s := range servers {
			s.MustDo(t, "SET", k.key, "somebody else", "PX", "60000")
		}
		var errs [2]error
		var wg sync.WaitGroup
		for j := range errs {
			wg.Go(func() { errs[j] = k.Release(context.Background()) })
		}
		wg.Wait()
		for _, err := range errs {
			lost, ok := errors.AsType[*LostError](err)
			require.True(t, ok, "%v", err)
			require.Equal(t, LostTakenOver, lost.Reason)
		}
	}
}

// The fault: Close sent more releases than a queue takes, and named those that did
// not fit as locks that nobody let go of.
func TestCloseOfManyLocksReportsNothingFalse(t *testing.T) {
	t.Parallel()
	const many = 25_000
	require.Greater(t, many, maxQueue)
	s := redistest.Start(t)
	p := redistest.NewProxy(t, s.Addr())
	// Close may take its time here, on a busy machine.
	l, err := Open([]string{p.Addr()}, WithoutFencing(), WithInstanceTimeout(4*inTime), WithQuarantine(0))
	require.NoError(t, err)
	errs := make([]error, 250)
	var wg sync.WaitGroup
	for i := range errs {
		wg.Go(func() {
			for j := range many / len(errs) {
				_, err := l.TryAcquire(t.Context(), fmt.Sprint(i, "-", j), time.Hour)
				errs[i] = errors.Join(errs[i], err)
			}
		})
	}
	wg.Wait()
	require.NoError(t, errors.Join(errs...))
	require.EqualValues(t, many, s.MustDo(t, "DBSIZE"))

	// Close has sent all its releases before the first one is answered.
	p.HoldRequests(true)
	wg.Go(func() { _, _ = l.TryAcquire(context.Background(), "out", time.Hour) })
	in := l.instances[0]
	eventually(t, func() bool { return !in.resting() && in.queued() == 0 }, "one operation is out")
	closed := make(chan error, 1)
	go func() { closed <- l.Close() }()
	eventually(t, func() bool {
		l.mu.Lock()
		defer l.mu.Unlock()
		return l.locks.next == &l.locks
	}, "every lock is given up")
	p.HoldRequests(false)
	require.NoError(t, <-closed)
	require.EqualValues(t, 0, s.MustDo(t, "DBSIZE"))
	wg.Wait()
}
