//go:build unix

package redlock_test

import (
	"context"
	"os"
	"regexp"
	"runtime"
	"strconv"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"

	"github.com/quorumlock/redlock"
	"github.com/quorumlock/redlock/internal/redistest"
)

// keptForTest is how many locks TestManyKeptLocksAreAFewBatches keeps, of which ttl, and
// for how long; REDLOCK_KEPT="100000 20s 60s" makes it a soak.
func keptForTest(t *testing.T) (n int, ttl, d time.Duration) {
	text := os.Getenv("REDLOCK_KEPT")
	switch {
	case text != "":
	case redlock.RaceDetector: // ten times slower
		return 1_000, 6 * time.Second, 3 * time.Second
	default:
		return 10_000, 6 * time.Second, 3 * time.Second
	}
	m := regexp.MustCompile(`^(\d+) (\S+) (\S+)$`).FindStringSubmatch(text)
	require.NotNil(t, m, "REDLOCK_KEPT: %q", text)
	n, err := strconv.Atoi(m[1])
	require.NoError(t, err)
	ttl, err = time.ParseDuration(m[2])
	require.NoError(t, err)
	d, err = time.ParseDuration(m[3])
	require.NoError(t, err)
	return n, ttl, d
}

// cpu returns the processor time that this process has used: the servers are others.
func cpu(t *testing.T) time.Duration {
	t.Helper()
	var u syscall.Rusage
	require.NoError(t, syscall.Getrusage(syscall.RUSAGE_SELF, &u))
	return time.Duration(u.Utime.Nano() + u.Stime.Nano())
}

// heap returns the bytes of what is alive.
func heap() int64 {
	runtime.GC()
	runtime.GC() // the first one moves what pools hold to where the second one frees it
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	return int64(m.HeapAlloc) //nolint:gosec // far below
}

// scriptCalls returns how many batches s has run.
func scriptCalls(t *testing.T, s *redistest.Server) int {
	t.Helper()
	stats, _ := s.MustDo(t, "INFO", "commandstats").(string)
	m := regexp.MustCompile(`cmdstat_evalsha:calls=(\d+)`).FindStringSubmatch(stats)
	require.NotNil(t, m)
	n, err := strconv.Atoi(m[1])
	require.NoError(t, err)
	return n
}

// A lock that is kept alive costs no goroutine, neither its context, and its renewals
// leave in batches with those of the others.
func TestManyKeptLocksAreAFewBatches(t *testing.T) {
	n, ttl, d := keptForTest(t)
	servers := redistest.StartN(t, 3)
	before, baseline := goleak.IgnoreCurrent(), runtime.NumGoroutine()
	most := 8*len(servers) + 20

	// A busy machine may take its time for a batch.
	l, err := redlock.Open(redistest.Addrs(servers), fresh([]redlock.Option{redlock.WithInstanceTimeout(soon)})...)
	require.NoError(t, err)
	defer l.Close()
	locks := make([]*redlock.Lock, n)
	contexts := make([]context.Context, n)
	parallel := func(f func(i int) error) {
		t.Helper()
		const callers = 100
		errs := make(chan error, callers)
		for c := range callers {
			go func() {
				var err error
				for i := c; i < n && err == nil; i += callers {
					err = f(i)
				}
				errs <- err
			}()
		}
		for range callers {
			require.NoError(t, <-errs)
		}
	}
	empty := heap()
	parallel(func(i int) (err error) {
		if locks[i], err = l.Acquire(t.Context(), "r"+strconv.Itoa(i), ttl); err == nil {
			contexts[i] = locks[i].KeepAlive(t.Context())
		}
		return err
	})
	first := locks[0].ValidUntil()
	becomes(t, func() bool { return runtime.NumGoroutine() <= baseline+most }, "the callers are gone")

	calls, used, begin := scriptCalls(t, servers[0]), cpu(t), time.Now()
	for time.Since(begin) < d {
		require.LessOrEqual(t, runtime.NumGoroutine(), baseline+most)
		time.Sleep(20 * time.Millisecond) // between two looks
	}
	took, spent, batches := time.Since(begin), cpu(t)-used, scriptCalls(t, servers[0])-calls
	bytes := (heap() - empty) / int64(n)
	for i, ctx := range contexts {
		require.NoError(t, context.Cause(ctx), "lock %d", i)
	}
	require.True(t, locks[0].ValidUntil().After(first), "it was renewed")
	renewals := float64(n) * float64(took) / float64(ttl/3)
	t.Logf("%d locks of %v, kept for %v: %.1f %% of one core, %.0f renewals for each server in %d batches (%.0f in one), %d bytes a lock, %d goroutines",
		n, ttl, took.Round(time.Millisecond), 100*spent.Seconds()/took.Seconds(), renewals, batches, renewals/float64(batches), bytes, runtime.NumGoroutine()-baseline)
	require.Less(t, float64(batches), renewals/10)

	parallel(func(i int) error { return locks[i].Release(t.Context()) })
	for _, ctx := range contexts {
		requireCause(t, ctx, redlock.LostReleased)
	}
	require.NoError(t, l.Close())
	require.NoError(t, goleak.Find(before))
	for _, s := range servers {
		require.Empty(t, lockKeys(t, s))
	}
}
