package source

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"regexp"
	"strings"
)

const maxToken = 1 << 53

// A Querier is a *sql.DB, or what else answers on a connection without a
// transaction: a token must not wait for a commit, or be rolled back.
type Querier interface {
	QueryRowContext(ctx context.Context, query string, args ...any) *sql.Row
}

// A SQL source takes tokens from a statement.
type SQL struct {
	db       Querier
	query    string
	resource bool // is the statement's argument
}

var name = regexp.MustCompile(`^[A-Za-z_][A-Za-z0-9_]{0,62}(\.[A-Za-z_][A-Za-z0-9_]{0,62})?$`)

// Sequence takes tokens from a PostgreSQL sequence (CREATE SEQUENCE sequence AS
// bigint), one for all resources, which leaves gaps in each. The name is made of
// ASCII letters, digits and underscores, at most 63, and may be qualified by a
// schema; others are refused. It is quoted, so CREATE SEQUENCE Fence makes fence.
//
// A sequence with CACHE above 1 hands out blocks of numbers to sessions, and so
// disordered tokens; one that descends or cycles goes back. Each Token makes sure
// that it is none of these.
//
// A number is durable when it is returned, unless synchronous_commit is off. After
// a failover to an asynchronous replica, or a restored backup, the sequence may
// have gone back: move it forward by hand (ALTER SEQUENCE ... RESTART WITH ...).
func Sequence(db Querier, sequence string) (*SQL, error) {
	if !name.MatchString(sequence) {
		return nil, fmt.Errorf("source: Sequence: %.64q is no name, or none of a schema and a sequence", sequence)
	}
	quoted := `"` + strings.ReplaceAll(sequence, `.`, `"."`) + `"`
	return Query(db, `SELECT CASE WHEN seqcache = 1 AND seqincrement > 0 AND NOT seqcycle THEN nextval(seqrelid) END
FROM pg_sequence WHERE seqrelid = '`+quoted+`'::regclass`)
}

// A QueryOption configures [Query].
type QueryOption func(*SQL)

// ByResource passes the resource to the statement as its one argument, for a
// counter for each.
func ByResource() QueryOption { return func(s *SQL) { s.resource = true } }

// Query takes tokens from a statement that answers one row with one whole number,
// larger than every one before: SELECT NEXTVAL(fence) on MariaDB, or an upsert
// that counts up and returns. Whether it does is its author's to see to; a Locker
// refuses what it can see to be wrong. An empty query and a nil db are refused.
func Query(db Querier, query string, opts ...QueryOption) (*SQL, error) {
	if db == nil {
		return nil, errors.New("source: the database is nil")
	}
	if strings.TrimSpace(query) == "" {
		return nil, errors.New("source: the query is empty")
	}
	s := &SQL{db: db, query: query}
	for _, opt := range opts {
		opt(s)
	}
	return s, nil
}

// Token implements redlock.FencingSource. A NULL, such as that of a sequence that
// is not fit, is an error.
func (s *SQL) Token(ctx context.Context, resource string) (uint64, error) {
	var args []any
	if s.resource {
		args = append(args, resource)
	}
	var token sql.NullInt64
	if err := s.db.QueryRowContext(ctx, s.query, args...).Scan(&token); err != nil {
		return 0, fmt.Errorf("source: %w", err)
	}
	switch {
	case !token.Valid:
		return 0, errors.New("source: no number: the query answered NULL; a sequence must be increasing, with CACHE 1 and NO CYCLE")
	case token.Int64 <= 0 || token.Int64 >= maxToken:
		return 0, fmt.Errorf("source: %d is no token", token.Int64)
	}
	return uint64(token.Int64), nil
}
