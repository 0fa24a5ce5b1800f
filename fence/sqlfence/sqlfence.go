// Package sqlfence exists so that a late holder's transaction fails: one statement
// inside it checks the fencing token, and raises the mark together with the write.
//
//	tx, err := db.BeginTx(ctx, nil)
//	...
//	if err := guard.Check(ctx, tx, "invoice-42", lock.FencingToken()); err != nil {
//		return err // errors.Is(err, fence.ErrStale): stop, and roll back
//	}
//	// Read and write, in the same transaction.
//
// Check is the first statement of the transaction. It locks the row of the
// resource until the transaction ends, so the transactions of one resource take
// turns, and what comes after it sees what the one before has committed. On a
// *sql.DB, or on a *sql.Conn without a transaction, the mark is raised, but a
// write that follows is another step, which a larger token can come before. A
// transaction on several resources checks them in one order, the same for all, or
// the database breaks a deadlock, with an error of its own.
//
// # Isolation
//
// Every isolation level is safe. Under READ COMMITTED, the default of PostgreSQL,
// a check waits for the transaction before it and then sees its mark. Under
// REPEATABLE READ and SERIALIZABLE PostgreSQL answers such a check with a
// serialization failure (SQLSTATE 40001) instead: that is an error of the database
// and not [fence.ErrStale]; roll back and run the transaction again, as always at
// these levels. SQLite answers SQLITE_BUSY when it has waited for longer than its
// busy_timeout; set one. MariaDB checks the newest row at every level, but
// REPEATABLE READ, its default, reads from a snapshot that the first SELECT takes:
// one more reason for Check to come first.
//
// A rollback takes the mark back together with the write. A commit that a failover
// or a restored backup forgets is forgotten with its mark.
package sqlfence

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"regexp"
	"strings"
	"unicode/utf8"

	"github.com/quorumlock/redlock/fence"
)

// A Dialect is the SQL of one kind of database.
type Dialect struct{ name, quote, schema, check string }

// The dialects. Each check is one statement that answers the mark after it: the
// token if it was accepted, and otherwise the larger one that stood there. A
// condition (DO UPDATE ... WHERE) would refuse as well, but answer no row, and
// so need a second question for the mark.
var (
	// PostgreSQL is for version 9.5 and later.
	PostgreSQL = Dialect{
		name:  "PostgreSQL",
		quote: `"`,
		schema: `CREATE TABLE IF NOT EXISTS %s (
	resource text PRIMARY KEY,
	token bigint NOT NULL CHECK (token > 0 AND token < 9007199254740992)
)`,
		check: `INSERT INTO %s AS fence (resource, token) VALUES ($1, $2)
ON CONFLICT (resource) DO UPDATE SET token = greatest(fence.token, excluded.token) RETURNING token`,
	}
	// SQLite is for version 3.35 and later.
	SQLite = Dialect{
		name:  "SQLite",
		quote: `"`,
		schema: `CREATE TABLE IF NOT EXISTS %s (
	resource text NOT NULL PRIMARY KEY,
	token integer NOT NULL CHECK (typeof(token) = 'integer' AND token > 0 AND token < 9007199254740992)
) WITHOUT ROWID`,
		check: `INSERT INTO %s AS fence (resource, token) VALUES (?1, ?2)
ON CONFLICT (resource) DO UPDATE SET token = max(fence.token, excluded.token) RETURNING token`,
	}
	// MariaDB is for version 10.5 and later. MySQL has no RETURNING.
	MariaDB = Dialect{
		name:  "MariaDB",
		quote: "`",
		schema: `CREATE TABLE IF NOT EXISTS %s (
	resource varbinary(1024) NOT NULL PRIMARY KEY,
	token bigint NOT NULL CHECK (token > 0 AND token < 9007199254740992)
) ENGINE = InnoDB`,
		check: `INSERT INTO %s (resource, token) VALUES (?, ?)
ON DUPLICATE KEY UPDATE token = greatest(token, VALUES(token)) RETURNING token`,
	}
)

// A Querier is what a check runs in: a *sql.Tx, or a *sql.Conn that has begun a
// transaction by itself. A *sql.DB serves too, for a first read.
type Querier interface {
	QueryRowContext(ctx context.Context, query string, args ...any) *sql.Row
}

// A Guard checks fencing tokens in a table of the database that it guards. It is
// safe for concurrent use.
type Guard struct {
	schema, check string
	tally         fence.Tally
}

// An Option configures a [Guard].
type Option func(*config) error

type config struct{ table string }

// name is a table's, perhaps with its schema's. That leaves nothing to quote, in
// any dialect, and nothing that PostgreSQL would cut.
var name = regexp.MustCompile(`^[A-Za-z_][A-Za-z0-9_]{0,62}(\.[A-Za-z_][A-Za-z0-9_]{0,62})?$`)

// WithTable names the table, redlock_fence by default. A name is made of ASCII
// letters, digits and underscores, at most 63, and may be qualified by that of a
// schema; others are refused. It is quoted, so upper and lower case differ where
// the database tells them apart.
func WithTable(table string) Option {
	return func(c *config) error {
		if !name.MatchString(table) {
			return fmt.Errorf("sqlfence: WithTable: %q is no name, or none of a schema and a table", table)
		}
		c.table = table
		return nil
	}
}

// New returns a guard for a database of that dialect. It asks the database nothing.
func New(dialect Dialect, opts ...Option) (*Guard, error) {
	if dialect.check == "" {
		return nil, errors.New("sqlfence: the dialect is none of PostgreSQL, SQLite and MariaDB")
	}
	c := config{table: "redlock_fence"}
	var errs []error
	for _, opt := range opts {
		errs = append(errs, opt(&c))
	}
	if err := errors.Join(errs...); err != nil {
		return nil, err
	}
	q := dialect.quote
	table := q + strings.ReplaceAll(c.table, ".", q+"."+q) + q
	return &Guard{schema: fmt.Sprintf(dialect.schema, table), check: fmt.Sprintf(dialect.check, table)}, nil
}

// Schema returns the statement that creates the table unless it exists. It has one
// small row for each resource, which stays; delete those to which no holder can
// come back.
func (g *Guard) Schema() string { return g.schema }

// Check returns nil if token is at least as large as every token that was checked
// and committed for resource before, and remembers it. A smaller one gets a
// *[fence.StaleError] with the larger. Any other error is the database's and says
// nothing about the token. After an error of either kind roll back.
//
// The name of a resource is text: valid UTF-8 without NUL of at most 1,024 bytes.
// Others, and what is no token, are refused before the database is asked.
func (g *Guard) Check(ctx context.Context, q Querier, resource string, token uint64) error {
	if err := fence.Validate(resource, token); err != nil {
		return err
	}
	// What does not fit might be cut, and another resource's name then.
	if len(resource) > 1024 || !utf8.ValidString(resource) || strings.Contains(resource, "\x00") {
		return fmt.Errorf("sqlfence: the name of the resource, %.64q (%d bytes), is no text of at most 1,024 bytes", resource, len(resource))
	}
	var mark int64
	if err := q.QueryRowContext(ctx, g.check, resource, int64(token)).Scan(&mark); err != nil { //nolint:gosec // below 2^53
		return fmt.Errorf("sqlfence: check %.64q: %w", resource, err)
	}
	if mark < int64(token) || mark >= 1<<53 { //nolint:gosec // below 2^53
		return fmt.Errorf("sqlfence: check %.64q: the mark is %d after token %d", resource, mark, token)
	}
	return g.tally.Compare(resource, token, uint64(mark)) //nolint:gosec // positive
}

// CountDuplicate counts an execution that the application found to be a duplicate.
func (g *Guard) CountDuplicate() { g.tally.CountDuplicate() }

// Counts returns what was counted.
func (g *Guard) Counts() fence.Counts { return g.tally.Counts() }
