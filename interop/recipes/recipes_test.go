package recipes

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/go-co-op/gocron/v2"
	"github.com/google/uuid"
	"github.com/stretchr/testify/require"

	"github.com/quorumlock/redlock"
	"github.com/quorumlock/redlock/redlocktest"
)

var errWork = errors.New("the work failed")

// Two schedulers start one job at the same instants: each run is of one of them, and
// never of both at once.
func TestGocronRunsAJobOnOneMachineAtATime(t *testing.T) {
	cluster := redlocktest.New(t, 3)
	var inside, runs, skipped atomic.Int32
	together := make(chan struct{}, 1)
	for range 2 {
		s, err := gocron.NewScheduler(gocron.WithDistributedLocker(CronLocker{cluster.Locker(), 10 * time.Second}))
		require.NoError(t, err)
		_, err = s.NewJob(gocron.DurationJob(20*time.Millisecond), gocron.NewTask(func() {
			if inside.Add(1) > 1 {
				together <- struct{}{}
			}
			time.Sleep(5 * time.Millisecond) // the work
			inside.Add(-1)
			runs.Add(1)
		}), gocron.WithName("report"), gocron.WithEventListeners(
			gocron.AfterLockError(func(uuid.UUID, string, error) { skipped.Add(1) })))
		require.NoError(t, err)
		s.Start()
		defer func() { require.NoError(t, s.Shutdown()) }()
	}
	require.Eventually(t, func() bool { return runs.Load() >= 10 && skipped.Load() >= 1 }, 30*time.Second, 5*time.Millisecond)
	require.Empty(t, together)
}

// A machine whose cron is late finds the tick done; the next tick is another one. A
// run that failed is left to who comes next.
func TestATickRunsOnce(t *testing.T) {
	cluster := redlocktest.New(t, 3)
	a, b := cluster.Locker(), cluster.Locker()
	tick := time.Now().Truncate(time.Hour)
	runs := 0
	run := func(l *redlock.Locker, tick time.Time, result error) (bool, error) {
		return OncePerTick(t.Context(), l, "report", tick, time.Minute, func(context.Context) error {
			runs++
			return result
		})
	}
	ran, err := run(a, tick, errWork)
	require.ErrorIs(t, err, errWork)
	require.True(t, ran)
	ran, err = run(b, tick, nil)
	require.NoError(t, err)
	require.True(t, ran, "the other one has failed")
	for _, l := range []*redlock.Locker{a, b} {
		ran, err = run(l, tick, nil)
		require.NoError(t, err)
		require.False(t, ran, "it is done")
	}
	ran, err = run(a, tick.Add(time.Hour), nil)
	require.NoError(t, err)
	require.True(t, ran)
	require.Equal(t, 3, runs)
}

func TestALeaderIsFollowedByAnotherWithALargerToken(t *testing.T) {
	cluster := redlocktest.New(t, 3)
	const ttl = 300 * time.Millisecond
	type term struct {
		who   string
		token uint64
	}
	terms := make(chan term)
	var failures atomic.Int32
	var wg sync.WaitGroup
	stand := func(ctx context.Context, who string) {
		l := cluster.Locker()
		wg.Go(func() {
			Lead(ctx, l, "scheduler", ttl, func(ctx context.Context, token uint64) error {
				terms <- term{who, token}
				<-ctx.Done()
				return nil
			}, func(error) { failures.Add(1) })
		})
	}
	first, resign := context.WithCancel(t.Context())
	stand(first, "a")
	one := <-terms
	require.Equal(t, "a", one.who)
	second, resignToo := context.WithCancel(t.Context())
	stand(second, "b")
	resign()
	two := <-terms
	require.Equal(t, "b", two.who)
	require.Greater(t, two.token, one.token)
	require.Zero(t, failures.Load(), "who resigns has not failed")

	cluster.Lose("leader/scheduler") // the leader finds out, and stands again
	three := <-terms
	require.Greater(t, three.token, two.token)
	require.EqualValues(t, 1, failures.Load())
	resignToo()
	wg.Wait()
}

// A schema is a database of this test.
type schema struct{ version, applied atomic.Int64 }

func (s *schema) Version(context.Context) (int, error) { return int(s.version.Load()), nil }

func (s *schema) Apply(_ context.Context, version int) error {
	s.applied.Add(1)
	if !s.version.CompareAndSwap(int64(version), int64(version)+1) {
		return errors.New("another version")
	}
	return nil
}

func TestTenMachinesMigrateADatabaseOnce(t *testing.T) {
	cluster := redlocktest.New(t, 3)
	var db schema
	var wg sync.WaitGroup
	errs := make([]error, 10)
	for i := range errs {
		l := cluster.Locker()
		wg.Go(func() { errs[i] = Migrate(t.Context(), l, "orders", &db, 7) })
	}
	wg.Wait()
	require.NoError(t, errors.Join(errs...))
	require.EqualValues(t, 7, db.version.Load())
	require.EqualValues(t, 7, db.applied.Load(), "nobody has tried in vain")
}

func TestRequestsForOneThingAreServedOneAtATime(t *testing.T) {
	cluster := redlocktest.New(t, 3)
	entered, leave := make(chan struct{}), make(chan struct{})
	handler := OneAtATime(cluster.Locker(), func(r *http.Request) string { return r.URL.Path }, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		entered <- struct{}{}
		<-leave
		if r.Context().Err() != nil {
			w.WriteHeader(http.StatusTeapot)
		}
	}))
	get := func(path string) *httptest.ResponseRecorder {
		w := httptest.NewRecorder()
		handler.ServeHTTP(w, httptest.NewRequestWithContext(t.Context(), http.MethodGet, path, nil))
		return w
	}
	var wg sync.WaitGroup
	var served [2]*httptest.ResponseRecorder
	for i := range served {
		wg.Go(func() { served[i] = get(fmt.Sprint("/orders/", i)) })
	}
	<-entered
	<-entered // two things at a time
	w := get("/orders/1")
	require.Equal(t, http.StatusConflict, w.Code)
	require.Equal(t, "1", w.Header().Get("Retry-After"))
	close(leave)
	wg.Wait()
	for _, w := range served {
		require.Equal(t, http.StatusOK, w.Code, "the context of the work had not ended")
	}
	require.False(t, cluster.Held("http//orders/1"))

	cluster.Down(0)
	cluster.Down(1)
	w = get("/orders/1")
	require.Equal(t, http.StatusServiceUnavailable, w.Code)
}

// A store is where messages take effect in this test.
type store struct {
	mu      sync.Mutex
	seen    map[string]bool
	newest  uint64
	effects []string
}

func (s *store) Apply(_ context.Context, m Message, token uint64) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if token < s.newest {
		return fmt.Errorf("token %d is stale", token)
	}
	s.newest = token
	if !s.seen[m.ID] {
		s.seen[m.ID] = true
		s.effects = append(s.effects, string(m.Body))
	}
	return nil
}

func TestAMessageThatIsDeliveredTwiceTakesEffectOnce(t *testing.T) {
	cluster := redlocktest.New(t, 3)
	s := &store{seen: map[string]bool{}}
	var wg sync.WaitGroup
	errs := make([]error, 8)
	for i := range errs {
		l := cluster.Locker()
		wg.Go(func() {
			errs[i] = Consume(t.Context(), l, s, Message{ID: fmt.Sprint(i / 2), Subject: "account/1", Body: []byte("+1")})
		})
	}
	wg.Wait()
	require.NoError(t, errors.Join(errs...))
	require.Len(t, s.effects, 4)
}

// Whoever wants the same resources in another order waits for no one in a circle;
// who can't have all has none.
func TestAllOrNone(t *testing.T) {
	cluster := redlocktest.New(t, 3)
	var inside, entries atomic.Int32
	var wg sync.WaitGroup
	errs := make([]error, 6)
	for i := range errs {
		l := cluster.Locker()
		resources := []string{"a", "b", "c"}
		if i%2 == 1 {
			resources = []string{"c", "a", "b", "a"}
		}
		wg.Go(func() {
			errs[i] = WithAll(t.Context(), l, 10*time.Second, resources, func(_ context.Context, locks []*redlock.Lock) error {
				if inside.Add(1) != 1 || len(locks) != 3 {
					return errors.New("two at a time")
				}
				entries.Add(1)
				inside.Add(-1)
				return nil
			})
		})
	}
	wg.Wait()
	require.NoError(t, errors.Join(errs...))
	require.EqualValues(t, 6, entries.Load())

	lock, err := cluster.Locker().TryAcquire(t.Context(), "b", time.Minute)
	require.NoError(t, err)
	ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
	defer cancel()
	err = WithAll(ctx, cluster.Locker(), 10*time.Second, []string{"a", "b"}, func(context.Context, []*redlock.Lock) error { return nil })
	require.ErrorIs(t, err, context.DeadlineExceeded)
	require.Eventually(t, func() bool { return !cluster.Held("a") }, 10*time.Second, time.Millisecond)
	require.NoError(t, lock.Release(t.Context()))
}

// The loss of one of several locks ends the work under all of them.
func TestTheLossOfOneOfSeveralEndsTheWork(t *testing.T) {
	cluster := redlocktest.New(t, 3)
	err := WithAll(t.Context(), cluster.Locker(), 300*time.Millisecond, []string{"a", "b"}, func(ctx context.Context, _ []*redlock.Lock) error {
		cluster.Lose("a")
		<-ctx.Done()
		return context.Cause(ctx)
	})
	var lost *redlock.LostError
	require.ErrorAs(t, err, &lost)
	require.Equal(t, "a", lost.Resource)
	require.False(t, cluster.Held("b"))
}
