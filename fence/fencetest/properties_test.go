//go:build linux

package fencetest

import (
	"context"
	"database/sql"
	"errors"
	"math/rand/v2"
	"slices"
	"sync"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/quorumlock/redlock/fence"
)

// each runs a property on every kind of subject, and on the databases that have
// them at every isolation level.
func each(t *testing.T, property func(t *testing.T, s subject)) {
	for _, kind := range kinds {
		t.Run(kind.name, func(t *testing.T) {
			t.Parallel()
			property(t, must(t, kind.new(t)))
		})
	}
	for _, level := range []sql.IsolationLevel{sql.LevelReadCommitted, sql.LevelRepeatableRead, sql.LevelSerializable} {
		for _, kind := range []kind{onPostgres, onMariaDB} {
			t.Run(kind.name+" "+level.String(), func(t *testing.T) {
				t.Parallel()
				spec := kind.new(t)
				spec.Isolation = level
				property(t, must(t, spec))
			})
		}
	}
}

func TestATokenPassesIffItIsAtLeastTheLargestAccepted(t *testing.T) {
	each(t, func(t *testing.T, s subject) {
		marks := map[string]uint64{} // a slow oracle
		for range 200 {
			resource := []string{"a", "b", "A", "a "}[rand.IntN(4)] // which some collations take for one
			if _, isHTTP := s.(*httpSubject); isHTTP {
				resource = []string{"a", "b", "A"}[rand.IntN(3)]
			}
			token := 1 + rand.Uint64N(100)
			if rand.IntN(4) == 0 {
				token = 1<<53 - token
			}
			operation := s.write
			if rand.IntN(4) == 0 {
				operation = s.read
			}
			err := operation(t.Context(), resource, token)
			if token >= marks[resource] {
				require.NoError(t, err)
				marks[resource] = token
				continue
			}
			var stale *fence.StaleError
			require.ErrorAs(t, err, &stale)
			require.Equal(t, &fence.StaleError{Resource: resource, Token: token, Current: marks[resource]}, stale)
		}
	})
}

func TestWhatIsNoTokenIsRefused(t *testing.T) {
	each(t, func(t *testing.T, s subject) {
		for _, token := range []uint64{0, 1 << 53, 1 << 63, 1<<64 - 1} {
			require.ErrorIs(t, s.write(t.Context(), "r", token), fence.ErrNoToken)
			require.ErrorIs(t, s.read(t.Context(), "r", token), fence.ErrNoToken)
		}
		require.NoError(t, s.write(t.Context(), "r", 1))
	})
}

// 32 writers with random tokens. What they did is told by the log that each write
// appended to in its own transaction.
func TestNoSmallerTokenWritesAfterALarger(t *testing.T) {
	const writers, writes = 32, 12
	each(t, func(t *testing.T, s subject) {
		var mu sync.Mutex
		var accepted []uint64
		var largest uint64
		var wg sync.WaitGroup
		for range writers {
			wg.Go(func() {
				for range writes {
					token := 1 + rand.Uint64N(1_000)
					err := s.write(context.Background(), "r", token)
					mu.Lock()
					largest = max(largest, token)
					var stale *fence.StaleError
					switch {
					case err == nil:
						accepted = append(accepted, token)
					case !errors.As(err, &stale) || stale.Token != token || stale.Current <= token:
						t.Errorf("token %d: %v", token, err)
					}
					mu.Unlock()
				}
			})
		}
		wg.Wait()
		log, value, err := s.state(t.Context(), "r")
		require.NoError(t, err)
		require.True(t, slices.IsSorted(log), "%v", log)
		require.Equal(t, largest, value)
		require.ElementsMatch(t, accepted, log, "who was told so has written, and nobody else")
	})
}
