package redlock_test

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"log/slog"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/quorumlock/redlock"
	"github.com/quorumlock/redlock/internal/redistest"
)

// A logbook is a log of lines, each a record.
type logbook struct {
	mu   sync.Mutex
	text bytes.Buffer
}

func (b *logbook) Write(p []byte) (int, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.text.Write(p)
}

func (b *logbook) String() string {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.text.String()
}

// records returns the records as level and message.
func (b *logbook) records(t *testing.T) []string {
	t.Helper()
	var all []string
	for line := range strings.Lines(b.String()) {
		var r map[string]any
		require.NoError(t, json.Unmarshal([]byte(line), &r), line)
		level, ok := r["level"].(string)
		require.True(t, ok)
		message, ok := r["msg"].(string)
		require.True(t, ok)
		all = append(all, level+" "+message)
	}
	return all
}

// logged returns a Locker that logs at level, and its log.
func logged(t *testing.T, n int, level slog.Level, opts ...redlock.Option) (*redlock.Locker, []*redistest.Server, *logbook) {
	t.Helper()
	b := &logbook{}
	log := slog.New(slog.NewJSONHandler(b, &slog.HandlerOptions{Level: level}))
	class := func(resource string) string { c, _, _ := strings.Cut(resource, ":"); return c }
	l, servers := open(t, n, append(opts, redlock.WithObserver(redlock.SlogObserver(log, class)), redlock.WithInstanceTimeout(soon))...)
	return l, servers, b
}

const secret = "customer:Scarlett O\"Neill" // a resource that is not to be read in a log

func TestContentionIsNotLogged(t *testing.T) {
	t.Parallel()
	l, servers, log := logged(t, 3, slog.LevelDebug)
	occupy(t, servers, secret, "other")
	_, err := l.TryAcquire(t.Context(), secret, long)
	require.ErrorIs(t, err, redlock.ErrTaken)
	ctx, cancel := context.WithTimeout(t.Context(), 100*time.Millisecond)
	defer cancel()
	_, err = l.Acquire(ctx, secret, long)
	require.ErrorIs(t, err, context.DeadlineExceeded)
	require.NoError(t, l.Close())
	require.Empty(t, log.records(t))
}

func TestWhatGoesWellIsLoggedForDebuggingOnly(t *testing.T) {
	t.Parallel()
	for level, want := range map[slog.Level][]string{
		slog.LevelDebug: {"DEBUG redlock: acquire", "DEBUG redlock: extend", "DEBUG redlock: release"},
		slog.LevelInfo:  nil,
	} {
		l, _, log := logged(t, 3, level)
		require.NoError(t, l.Do(t.Context(), secret, long, func(ctx context.Context, lock *redlock.Lock) error {
			return lock.Extend(ctx, long)
		}))
		require.NoError(t, l.Close())
		require.Equal(t, want, log.records(t))
	}
}

func TestHarmIsLoggedAtItsLevel(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		want []string
		do   func(t *testing.T, l *redlock.Locker, servers []*redistest.Server)
	}{
		"lost and outlived": {
			[]string{"ERROR redlock: a hold outlived its lease", "ERROR redlock: lease lost"},
			func(t *testing.T, l *redlock.Locker, _ []*redistest.Server) {
				lock, err := l.TryAcquire(t.Context(), secret, 2*brief)
				require.NoError(t, err)
				becomes(t, func() bool { return lock.Remaining() < 0 }, "it is over")
				requireLost(t, lock.Release(t.Context()), redlock.LostExpired)
			},
		},
		"another owner": {
			[]string{"ERROR redlock: lease lost", "WARN redlock: a release found another owner"},
			func(t *testing.T, l *redlock.Locker, servers []*redistest.Server) {
				lock, err := l.TryAcquire(t.Context(), secret, long)
				require.NoError(t, err)
				becomes(t, func() bool { return all(servers, secret, lock.Owner()) }, "all have granted")
				for _, s := range servers {
					s.MustDo(t, "SET", secret, "other")
				}
				requireLost(t, lock.Release(t.Context()), redlock.LostTakenOver)
			},
		},
		"close": {
			[]string{"INFO redlock: lease lost"},
			func(t *testing.T, l *redlock.Locker, _ []*redistest.Server) {
				_, err := l.TryAcquire(t.Context(), secret, long)
				require.NoError(t, err)
				require.NoError(t, l.Close())
			},
		},
		"no quorum": {
			[]string{"WARN redlock: instance down", "WARN redlock: instance down", "WARN redlock: acquire"},
			func(t *testing.T, l *redlock.Locker, servers []*redistest.Server) {
				require.NoError(t, servers[0].Kill())
				require.NoError(t, servers[1].Kill())
				_, err := l.TryAcquire(t.Context(), secret, long)
				require.ErrorIs(t, err, redlock.ErrNoQuorum)
			},
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			l, servers, log := logged(t, 3, slog.LevelInfo)
			c.do(t, l, servers)
			_ = l.Close()
			require.Equal(t, c.want, log.records(t))
		})
	}
}

func TestTheEndOfTheLongestHoldIsAWarning(t *testing.T) {
	t.Parallel()
	l, _, log := logged(t, 3, slog.LevelInfo)
	lock, err := l.TryAcquire(t.Context(), secret, long, redlock.WithMaxHold(time.Second))
	require.NoError(t, err)
	<-lock.KeepAlive(t.Context()).Done()
	_ = lock.Release(t.Context())
	late := time.Now().After(lock.ValidUntil())
	require.NoError(t, l.Close())
	want := []string{"WARN redlock: lease lost"}
	if late { // a holder has 5 ms to stop, which a busy machine may not give it
		require.Subset(t, append(want, "ERROR redlock: a hold outlived its lease"), log.records(t))
		return
	}
	require.Equal(t, want, log.records(t))
}

// The whole log of a lock's life and of its errors names neither the resource nor the
// owner, and what a fencing source says of the resource is cut out.
func TestLogsCarryClassAndDigestOnly(t *testing.T) {
	t.Parallel()
	fail := errors.New("no number for " + secret)
	var sourceErr error
	l, servers, log := logged(t, 3, slog.LevelDebug, redlock.WithFencing(sourceFunc(func(context.Context, string) (uint64, error) {
		return 1, sourceErr
	})))
	lock, err := l.TryAcquire(t.Context(), secret, long)
	require.NoError(t, err)
	for _, s := range servers {
		s.MustDo(t, "SET", secret, "other")
	}
	require.ErrorIs(t, lock.Extend(t.Context(), long), redlock.ErrLost)
	for _, s := range servers {
		s.MustDo(t, "DEL", secret)
	}
	sourceErr = fail
	_, err = l.TryAcquire(t.Context(), secret, long)
	require.ErrorIs(t, err, fail)
	require.NoError(t, servers[0].Kill())
	require.NoError(t, servers[1].Kill())
	_, err = l.TryAcquire(t.Context(), secret, long)
	require.ErrorIs(t, err, redlock.ErrNoQuorum)
	_ = l.Close()

	text := log.String()
	require.NotContains(t, text, "Scarlett")
	require.NotContains(t, text, "Neill")
	require.NotContains(t, text, lock.Owner())
	require.Contains(t, text, `"class":"customer"`)
	require.Contains(t, text, `"owner":"`+redlock.OwnerDigest(lock.Owner())+`"`)
	require.Contains(t, text, "no number for <resource>")
	require.Contains(t, text, "held by another owner")
}
