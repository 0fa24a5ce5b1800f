package sqlfence_test

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"log"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/quorumlock/redlock/fence"
	"github.com/quorumlock/redlock/fence/sqlfence"
)

// Token 33 is that of a holder that was paused, 34 that of the one after it. (A
// stub stands for the database here; it knows that 34 was checked before.)
func ExampleGuard_Check() {
	db := (&stub{answer: int64(34)}).open()
	defer db.Close()
	guard, err := sqlfence.New(sqlfence.PostgreSQL)
	if err != nil {
		log.Fatal(err)
	}

	pay := func(ctx context.Context, token uint64) error {
		tx, err := db.BeginTx(ctx, nil)
		if err != nil {
			return err
		}
		defer tx.Rollback() //nolint:errcheck // after a commit it does nothing
		if err := guard.Check(ctx, tx, "invoice-42", token); err != nil {
			return err
		}
		// Read and write here, in the same transaction.
		return tx.Commit()
	}
	fmt.Println(pay(context.Background(), 34))
	err = pay(context.Background(), 33)
	fmt.Println(errors.Is(err, fence.ErrStale), err)
	// Output:
	// <nil>
	// true fence: stale: "invoice-42": token 33 is smaller than 34
}

func TestTheSchemaAndTheCheckNameTheTable(t *testing.T) {
	for dialect, want := range map[*sqlfence.Dialect]string{
		&sqlfence.PostgreSQL: `"app"."Fence_1"`, &sqlfence.SQLite: `"app"."Fence_1"`, &sqlfence.MariaDB: "`app`.`Fence_1`",
	} {
		guard, err := sqlfence.New(*dialect, sqlfence.WithTable("app.Fence_1"))
		require.NoError(t, err)
		require.Contains(t, guard.Schema(), "CREATE TABLE IF NOT EXISTS "+want+" (")
		s := &stub{answer: int64(7)}
		require.NoError(t, guard.Check(t.Context(), s.open(), "r", 7))
		require.Len(t, s.queries, 1, "one statement")
		require.Contains(t, s.queries[0], "INSERT INTO "+want+" ")
		require.Equal(t, []any{"r", int64(7)}, s.args)
	}
}

func TestAnIdentifierThatNeedsQuotingIsRefused(t *testing.T) {
	for _, table := range []string{
		"", " ", "a b", `a"b`, "a`b", "a;b", "a--", "1a", "a.", ".a", "a.b.c", "a..b", "tablé", "a\n", "a\x00", strings.Repeat("a", 64),
	} {
		_, err := sqlfence.New(sqlfence.SQLite, sqlfence.WithTable(table))
		require.ErrorContains(t, err, "WithTable", "%q", table)
	}
	_, err := sqlfence.New(sqlfence.Dialect{})
	require.ErrorContains(t, err, "dialect")
}

func TestWhatIsNoTokenOrNoNameIsRefusedBeforeTheDatabaseIsAsked(t *testing.T) {
	guard, err := sqlfence.New(sqlfence.PostgreSQL)
	require.NoError(t, err)
	s := &stub{answer: int64(1)}
	db := s.open()
	for _, token := range []uint64{0, 1 << 53, 1 << 63, 1<<64 - 1} {
		require.ErrorIs(t, guard.Check(t.Context(), db, "r", token), fence.ErrNoToken)
	}
	for _, resource := range []string{"", "\x00", "a\x00b", "\xff", strings.Repeat("x", 1025)} {
		err := guard.Check(t.Context(), db, resource, 1)
		require.Error(t, err)
		require.NotErrorIs(t, err, fence.ErrStale)
		require.NotContains(t, err.Error(), "\x00")
	}
	require.Empty(t, s.queries)
	require.Zero(t, guard.Counts())
}

func TestAnErrorOfTheDatabaseIsNotStale(t *testing.T) {
	guard, err := sqlfence.New(sqlfence.PostgreSQL)
	require.NoError(t, err)
	broken := errors.New("broken")
	err = guard.Check(t.Context(), (&stub{err: broken}).open(), "r", 7)
	require.ErrorIs(t, err, broken)
	require.NotErrorIs(t, err, fence.ErrStale)

	for _, mark := range []any{nil, "x", int64(-1), int64(0), int64(6), int64(1 << 53)} { // a table that was tampered with
		err := guard.Check(t.Context(), (&stub{answer: mark}).open(), "r", 7)
		require.Error(t, err, "%v", mark)
		require.NotErrorIs(t, err, fence.ErrStale, "%v", mark)
	}
	require.Zero(t, guard.Counts())
}

func TestEveryDecisionIsCounted(t *testing.T) {
	guard, err := sqlfence.New(sqlfence.SQLite)
	require.NoError(t, err)
	db := (&stub{answer: int64(7)}).open()
	require.NoError(t, guard.Check(t.Context(), db, "r", 7))
	require.Equal(t, &fence.StaleError{Resource: "r", Token: 6, Current: 7}, guard.Check(t.Context(), db, "r", 6))
	guard.CountDuplicate()
	var counter fence.Counter = guard
	require.Equal(t, fence.Counts{Accepted: 1, Stale: 1, Duplicates: 1}, counter.Counts())
}

// What a check may run in.
var _ = []sqlfence.Querier{(*sql.Tx)(nil), (*sql.Conn)(nil), (*sql.DB)(nil)}
