//go:build linux

package fencetest

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgconn"
	"github.com/stretchr/testify/require"

	"github.com/quorumlock/redlock/fence"
	"github.com/quorumlock/redlock/fence/sqlfence"
)

// eachSQL runs a property on every SQL database.
func eachSQL(t *testing.T, property func(t *testing.T, s *sqlSubject)) {
	for _, kind := range databases {
		t.Run(kind.name, func(t *testing.T) {
			t.Parallel()
			property(t, must(t, kind.new(t)).(*sqlSubject))
		})
	}
}

func begin(t *testing.T, s *sqlSubject, level sql.IsolationLevel) *sql.Tx {
	t.Helper()
	tx, err := s.db.BeginTx(t.Context(), &sql.TxOptions{Isolation: level})
	require.NoError(t, err)
	t.Cleanup(func() { _ = tx.Rollback() })
	return tx
}

func TestARollbackTakesTheMarkBackTogetherWithTheWrite(t *testing.T) {
	eachSQL(t, func(t *testing.T, s *sqlSubject) {
		require.NoError(t, s.write(t.Context(), "r", 3))
		broken := errors.New("broken")
		require.Equal(t, broken, s.inTx(t.Context(), "r", 9, func(tx *sql.Tx) error {
			if _, err := tx.ExecContext(t.Context(), "UPDATE data SET token = 9"); err != nil {
				return err
			}
			return broken
		}))
		log, value, err := s.state(t.Context(), "r")
		require.NoError(t, err)
		require.Equal(t, []uint64{3}, log)
		require.Equal(t, uint64(3), value)
		require.NoError(t, s.write(t.Context(), "r", 4), "9 has never been")
		require.ErrorIs(t, s.write(t.Context(), "r", 3), fence.ErrStale)

		// Also of a new resource, whose row goes again.
		tx := begin(t, s, 0)
		require.NoError(t, s.guard.Check(t.Context(), tx, "new", 9))
		require.NoError(t, tx.Rollback())
		require.NoError(t, s.write(t.Context(), "new", 1))
	})
}

func TestAStaleCheckThatIsCommittedAllTheSameChangesNothing(t *testing.T) {
	eachSQL(t, func(t *testing.T, s *sqlSubject) {
		require.NoError(t, s.write(t.Context(), "r", 3))
		tx := begin(t, s, 0)
		require.ErrorIs(t, s.guard.Check(t.Context(), tx, "r", 2), fence.ErrStale)
		require.NoError(t, tx.Commit())
		require.ErrorIs(t, s.write(t.Context(), "r", 2), fence.ErrStale)
		require.NoError(t, s.write(t.Context(), "r", 3))
	})
}

func TestACheckOutsideATransactionRaisesTheMarkAtOnce(t *testing.T) {
	eachSQL(t, func(t *testing.T, s *sqlSubject) {
		require.NoError(t, s.guard.Check(t.Context(), s.db, "r", 5))
		conn, err := s.db.Conn(t.Context())
		require.NoError(t, err)
		require.ErrorIs(t, s.guard.Check(t.Context(), conn, "r", 4), fence.ErrStale)
		require.NoError(t, s.guard.Check(t.Context(), conn, "r", 6))
		require.NoError(t, conn.Close())
		require.ErrorIs(t, s.guard.Check(t.Context(), s.db, "r", 5), fence.ErrStale)
	})
}

func TestAnErrorOfTheDatabaseIsNotStale(t *testing.T) {
	eachSQL(t, func(t *testing.T, s *sqlSubject) {
		other, err := sqlfence.New(dialects[s.Kind], sqlfence.WithTable("absent"))
		require.NoError(t, err)
		ctx, cancel := context.WithCancel(t.Context())
		cancel()
		ended := begin(t, s, 0)
		require.NoError(t, ended.Rollback())
		for _, err := range []error{
			other.Check(t.Context(), s.db, "r", 1),
			s.guard.Check(ctx, s.db, "r", 1),
			s.guard.Check(t.Context(), ended, "r", 1),
		} {
			require.Error(t, err)
			require.NotErrorIs(t, err, fence.ErrStale)
			require.NotErrorIs(t, err, fence.ErrNoToken)
		}
		require.Zero(t, s.guard.Counts())
	})
}

func TestAMarkOutOfRangeIsRefusedByTheTable(t *testing.T) {
	eachSQL(t, func(t *testing.T, s *sqlSubject) {
		for _, token := range []any{0, -1, int64(1) << 53, "x", nil} {
			_, err := s.db.ExecContext(t.Context(), s.numbered("INSERT INTO redlock_fence (resource, token) VALUES ('r', ?)"), token)
			require.Error(t, err, "%v", token)
		}
		if s.Kind == "sqlite" { // where a column takes any type, and others round
			_, err := s.db.ExecContext(t.Context(), "INSERT INTO redlock_fence (resource, token) VALUES ('r', 1.5)")
			require.Error(t, err)
		}
	})
}

func TestAnyTextNamesAResource(t *testing.T) {
	eachSQL(t, func(t *testing.T, s *sqlSubject) {
		names := []string{"a", "A", "á", "a ", " a", "日本", `'";--`, "a\nb", "%", strings.Repeat("x", 1024), strings.Repeat("ü", 512)}
		for i, name := range names {
			require.NoError(t, s.guard.Check(t.Context(), s.db, name, uint64(100-i)), "%q is a resource of its own", name) //nolint:gosec // small
		}
	})
}

// A table in a schema, with a name that would be folded if it were not quoted; and
// a driver that sends values as text, as behind some poolers.
func TestTablesAndProtocolsOfOnesOwn(t *testing.T) {
	for _, c := range []struct {
		kind
		option string
	}{{onPostgres, " default_query_exec_mode=simple_protocol"}, {onMariaDB, "?interpolateParams=true"}} {
		t.Run(c.name, func(t *testing.T) {
			s := c.new(t)
			db, err := sql.Open(drivers[s.Kind], s.Address+c.option)
			require.NoError(t, err)
			defer db.Close()
			execute(t, db, "CREATE SCHEMA app")
			guard, err := sqlfence.New(dialects[s.Kind], sqlfence.WithTable("app.Order"))
			require.NoError(t, err)
			execute(t, db, guard.Schema())
			require.NoError(t, guard.Check(t.Context(), db, `it's "1" \ 2`, 2))
			require.ErrorIs(t, guard.Check(t.Context(), db, `it's "1" \ 2`, 1), fence.ErrStale)
		})
	}
}

// What a second transaction meets at each isolation level of PostgreSQL while the
// first one, with token 5, is under way.
func TestIsolationLevelsOfPostgreSQL(t *testing.T) {
	s := must(t, onPostgres.new(t)).(*sqlSubject)
	for _, level := range []sql.IsolationLevel{sql.LevelReadCommitted, sql.LevelRepeatableRead, sql.LevelSerializable} {
		for _, commit := range []bool{true, false} {
			for _, known := range []bool{true, false} {
				r := fmt.Sprint(level, commit, known)
				if known { // the row is there, and not just about to be
					require.NoError(t, s.write(t.Context(), r, 1))
				}
				first := begin(t, s, level)
				require.NoError(t, s.guard.Check(t.Context(), first, r, 5))
				_, err := first.ExecContext(t.Context(), "INSERT INTO data VALUES ($1, 5) ON CONFLICT (resource) DO UPDATE SET token = 5", r)
				require.NoError(t, err)

				second := begin(t, s, level)
				checked := make(chan error, 1)
				go func() { checked <- s.guard.Check(t.Context(), second, r, 6) }()
				require.Eventually(t, func() bool {
					var waiting int
					err := s.db.QueryRowContext(t.Context(),
						"SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND wait_event_type = 'Lock'").Scan(&waiting)
					return err == nil && waiting == 1
				}, 10*time.Second, time.Millisecond, "the second one waits for the first")
				require.Empty(t, checked)
				if commit {
					require.NoError(t, first.Commit())
				} else {
					require.NoError(t, first.Rollback())
				}
				err = <-checked

				if commit && level != sql.LevelReadCommitted {
					var pg *pgconn.PgError
					require.ErrorAs(t, err, &pg)
					require.Equal(t, "40001", pg.Code)
					require.NotErrorIs(t, err, fence.ErrStale)
					require.NoError(t, second.Rollback())
					second = begin(t, s, level) // run it again, as it says
					err = s.guard.Check(t.Context(), second, r, 6)
				}
				require.NoError(t, err)
				if commit { // and it reads what the first one wrote
					var value int
					require.NoError(t, second.QueryRowContext(t.Context(), "SELECT token FROM data WHERE resource = $1", r).Scan(&value))
					require.Equal(t, 5, value)
				}
				require.NoError(t, second.Commit())
				require.ErrorIs(t, s.write(t.Context(), r, 5), fence.ErrStale)
			}
		}
	}
}

// MariaDB checks the newest row at its default level, too, and a transaction that
// checks first reads what was committed before.
func TestMariaDBReadsTheNewestAfterTheCheck(t *testing.T) {
	s := must(t, onMariaDB.new(t)).(*sqlSubject)
	require.NoError(t, s.write(t.Context(), "r", 1))
	second := begin(t, s, sql.LevelRepeatableRead)
	require.NoError(t, s.write(t.Context(), "r", 5))
	require.NoError(t, s.guard.Check(t.Context(), second, "r", 6))
	var value int
	require.NoError(t, second.QueryRowContext(t.Context(), "SELECT token FROM data WHERE resource = 'r'").Scan(&value))
	require.Equal(t, 5, value)
	require.NoError(t, second.Rollback())

	// One that reads first has an old snapshot, but the check is not fooled.
	second = begin(t, s, sql.LevelRepeatableRead)
	require.NoError(t, second.QueryRowContext(t.Context(), "SELECT token FROM data WHERE resource = 'r'").Scan(&value))
	require.NoError(t, s.write(t.Context(), "r", 7))
	err := s.guard.Check(t.Context(), second, "r", 6)
	require.Error(t, err) // stale, or an error where snapshots are isolated (innodb_snapshot_isolation)
	require.True(t, errors.Is(err, fence.ErrStale) != again(err), "%v", err)
}

func TestABusySQLiteIsNotStale(t *testing.T) {
	s := must(t, onSQLite.new(t)).(*sqlSubject)
	first := begin(t, s, 0)
	require.NoError(t, s.guard.Check(t.Context(), first, "r", 5))

	impatient, err := sql.Open("sqlite", strings.Replace(s.Address, "busy_timeout(20000)", "busy_timeout(1)", 1))
	require.NoError(t, err)
	defer impatient.Close()
	err = s.guard.Check(t.Context(), impatient, "r", 4)
	require.True(t, again(err), "%v", err)
	require.NotErrorIs(t, err, fence.ErrStale)
	require.NoError(t, first.Commit())
	require.ErrorIs(t, s.guard.Check(t.Context(), impatient, "r", 4), fence.ErrStale)
}
