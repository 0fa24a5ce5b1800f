package sqlfence_test

import (
	"context"
	"database/sql"
	"database/sql/driver"
	"errors"
	"io"
)

// stub is a database that answers every query with one row of one value, so that
// this module needs no driver. What a guard is worth on real databases is the
// business of fence/fencetest.
type stub struct {
	answer  driver.Value
	err     error
	queries []string
	args    []any
}

func (s *stub) open() *sql.DB { return sql.OpenDB(s) }

func (s *stub) Connect(context.Context) (driver.Conn, error) { return s, nil }
func (s *stub) Driver() driver.Driver                        { return nil }
func (s *stub) Close() error                                 { return nil }
func (s *stub) Begin() (driver.Tx, error)                    { return s, nil }
func (s *stub) Commit() error                                { return nil }
func (s *stub) Rollback() error                              { return nil }

func (s *stub) Prepare(string) (driver.Stmt, error) { return nil, errors.New("not prepared") }

func (s *stub) QueryContext(_ context.Context, query string, args []driver.NamedValue) (driver.Rows, error) {
	s.queries = append(s.queries, query)
	for _, arg := range args {
		s.args = append(s.args, arg.Value)
	}
	return &rows{s, false}, s.err
}

type rows struct {
	*stub
	done bool
}

func (r *rows) Columns() []string { return []string{"token"} }

func (r *rows) Next(values []driver.Value) error {
	if r.done {
		return io.EOF
	}
	r.done = true
	values[0] = r.answer
	return nil
}
