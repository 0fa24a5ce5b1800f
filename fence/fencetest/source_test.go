//go:build linux

package fencetest

import (
	"context"
	"database/sql"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/quorumlock/redlock"
	"github.com/quorumlock/redlock/fence/source"
	"github.com/quorumlock/redlock/internal/redistest"
)

func execute(t *testing.T, db *sql.DB, statement string) {
	t.Helper()
	_, err := db.ExecContext(t.Context(), statement)
	require.NoError(t, err, statement)
}

// requireOrder draws tokens in parallel: each drawer's grow, and none comes twice.
func requireOrder(t *testing.T, s redlock.FencingSource) {
	t.Helper()
	var mu sync.Mutex
	seen := map[uint64]bool{}
	var wg sync.WaitGroup
	for range 8 {
		wg.Go(func() {
			var last uint64
			for range 25 {
				token, err := s.Token(context.Background(), "r")
				mu.Lock()
				if err != nil || token <= last || seen[token] {
					t.Errorf("%d after %d: %v", token, last, err)
				}
				seen[token], last = true, token
				mu.Unlock()
			}
		})
	}
	wg.Wait()
}

func TestASequenceOfPostgreSQLIsASource(t *testing.T) {
	db, err := sql.Open("pgx", postgres.database(t))
	require.NoError(t, err)
	defer db.Close()
	execute(t, db, `CREATE SCHEMA app`)
	execute(t, db, `CREATE SEQUENCE app."Fence" AS bigint`)
	s, err := source.Sequence(db, "app.Fence")
	require.NoError(t, err)
	requireOrder(t, s)

	locker, err := redlock.Open(redistest.Addrs(redistest.StartN(t, 3)), redlock.WithFencing(s), redlock.WithQuarantine(0))
	require.NoError(t, err)
	defer locker.Close()
	lock, err := locker.Acquire(t.Context(), "r", 10*time.Second)
	require.NoError(t, err)
	require.Equal(t, uint64(201), lock.FencingToken())
	require.NoError(t, lock.Release(t.Context()))
}

func TestASequenceThatCanGoBackIsNoSource(t *testing.T) {
	db, err := sql.Open("pgx", postgres.database(t))
	require.NoError(t, err)
	defer db.Close()
	for _, unfit := range []string{"CACHE 20", "INCREMENT -1 MAXVALUE 1000000 START 1000000", "CYCLE"} {
		execute(t, db, "CREATE SEQUENCE s "+unfit)
		s, err := source.Sequence(db, "s")
		require.NoError(t, err)
		_, err = s.Token(t.Context(), "r")
		require.ErrorContains(t, err, "CACHE 1", unfit)
		execute(t, db, "DROP SEQUENCE s")
	}
	s, err := source.Sequence(db, "s")
	require.NoError(t, err)
	_, err = s.Token(t.Context(), "r")
	require.ErrorContains(t, err, "does not exist")

	execute(t, db, "CREATE SEQUENCE s START 9007199254740991")
	token, err := s.Token(t.Context(), "r")
	require.NoError(t, err)
	require.Equal(t, uint64(1<<53-1), token, "the last one")
	_, err = s.Token(t.Context(), "r")
	require.ErrorContains(t, err, "no token")
}

func TestAnUpsertIsASource(t *testing.T) {
	db := must(t, onSQLite.new(t)).(*sqlSubject).db
	execute(t, db, "CREATE TABLE counters (resource text PRIMARY KEY, n integer NOT NULL)")
	s, err := source.Query(db, `INSERT INTO counters VALUES (?, 1)
ON CONFLICT (resource) DO UPDATE SET n = n + 1 RETURNING n`, source.ByResource())
	require.NoError(t, err)
	requireOrder(t, s)
	token, err := s.Token(t.Context(), "other")
	require.NoError(t, err)
	require.Equal(t, uint64(1), token)
}

func TestASequenceOfMariaDBIsASource(t *testing.T) {
	db, err := sql.Open("mysql", mariadb.database(t))
	require.NoError(t, err)
	defer db.Close()
	execute(t, db, "CREATE SEQUENCE fence CACHE 1000") // of the server, not of a session: in order
	s, err := source.Query(db, "SELECT NEXTVAL(fence)")
	require.NoError(t, err)
	requireOrder(t, s)
}

func TestAnAnswerThatIsNoTokenIsAnError(t *testing.T) {
	db := must(t, onSQLite.new(t)).(*sqlSubject).db
	for _, query := range []string{
		"SELECT NULL", "SELECT 0", "SELECT -1", "SELECT 9007199254740992", "SELECT 1.5", "SELECT 'x'", "SELECT 1 WHERE 0", "SELECT", "SELECT 1, 2",
	} {
		s, err := source.Query(db, query)
		require.NoError(t, err)
		token, err := s.Token(t.Context(), "r")
		require.Error(t, err, query)
		require.Zero(t, token)
	}
	_, err := source.Query(db, " \n")
	require.ErrorContains(t, err, "empty")
}
