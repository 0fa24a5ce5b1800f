//go:build linux

package fencetest

import (
	"context"
	"database/sql"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"testing"

	"github.com/go-sql-driver/mysql"
	"github.com/jackc/pgx/v5/pgconn"
	_ "github.com/jackc/pgx/v5/stdlib"
	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"
	"modernc.org/sqlite"
	sqlite3 "modernc.org/sqlite/lib"

	"github.com/quorumlock/redlock/fence"
	"github.com/quorumlock/redlock/fence/httpfence"
	"github.com/quorumlock/redlock/fence/redisfence"
	"github.com/quorumlock/redlock/fence/sqlfence"
	"github.com/quorumlock/redlock/internal/redistest"
)

// A subject is a store with a guard. For each resource it keeps a log of the tokens
// that wrote, in the order in which they did, and a value, the token that wrote
// last: both written in one atomic step with the check.
type subject interface {
	read(ctx context.Context, resource string, token uint64) error // through the guard
	write(ctx context.Context, resource string, token uint64) error
	state(ctx context.Context, resource string) (log []uint64, value uint64, err error)
	close()
}

// A spec says how to reach a subject, from any process.
type spec struct {
	Kind      string
	Address   string
	Unguarded bool
	Isolation sql.IsolationLevel
}

// A kind of subject; new sets up an empty one.
type kind struct {
	name string
	new  func(t testing.TB) spec
}

var (
	onPostgres = kind{"PostgreSQL", func(t testing.TB) spec { return spec{Kind: "postgres", Address: postgres.database(t)} }}
	onMariaDB  = kind{"MariaDB", func(t testing.TB) spec { return spec{Kind: "mariadb", Address: mariadb.database(t)} }}
	onSQLite   = kind{"SQLite", func(t testing.TB) spec {
		path := filepath.Join(t.TempDir(), "data.db")
		return spec{Kind: "sqlite", Address: "file:" + path + "?_pragma=busy_timeout(20000)&_pragma=journal_mode(wal)&_pragma=synchronous(off)"}
	}}
	onRedis = kind{"Redis", func(t testing.TB) spec { return spec{Kind: "redis", Address: redistest.Start(t).Addr()} }}
	onHTTP  = kind{"HTTP", func(t testing.TB) spec { return spec{Kind: "http", Address: newService(t)} }}

	databases = []kind{onPostgres, onMariaDB, onSQLite}
	kinds     = append([]kind{onRedis, onHTTP}, databases...)
)

var (
	drivers  = map[string]string{"postgres": "pgx", "mariadb": "mysql", "sqlite": "sqlite"}
	dialects = map[string]sqlfence.Dialect{"postgres": sqlfence.PostgreSQL, "mariadb": sqlfence.MariaDB, "sqlite": sqlfence.SQLite}
)

func open(s spec) (subject, error) {
	switch s.Kind {
	case "postgres", "mariadb", "sqlite":
		db, err := sql.Open(drivers[s.Kind], s.Address)
		if err != nil {
			return nil, err
		}
		guard, err := sqlfence.New(dialects[s.Kind])
		return &sqlSubject{spec: s, db: db, guard: guard}, err
	case "redis":
		client := redis.NewClient(&redis.Options{Addr: s.Address})
		guard, err := redisfence.New(client)
		if err != nil {
			return nil, err
		}
		script, err := redisfence.NewScript(record)
		return &redisSubject{s, client, guard, script}, err
	case "http":
		return &httpSubject{spec: s, client: &http.Client{Transport: &httpfence.Transport{}}}, nil
	}
	return nil, fmt.Errorf("no such kind: %q", s.Kind)
}

// must opens a subject for a test, and makes its tables.
func must(t testing.TB, s spec) subject {
	t.Helper()
	sub, err := open(s)
	require.NoError(t, err)
	t.Cleanup(sub.close)
	if s, ok := sub.(*sqlSubject); ok {
		serial := map[string]string{
			"postgres": "bigserial PRIMARY KEY", "mariadb": "bigint AUTO_INCREMENT PRIMARY KEY",
			"sqlite": "integer PRIMARY KEY AUTOINCREMENT",
		}[s.Kind]
		for _, statement := range []string{
			s.guard.Schema(),
			s.guard.Schema(), // once more: it creates the table unless it exists
			"CREATE TABLE log (id " + serial + ", resource varchar(100), token bigint)",
			"CREATE TABLE data (resource varchar(100) PRIMARY KEY, token bigint)",
		} {
			_, err := s.db.ExecContext(t.Context(), statement)
			require.NoError(t, err, statement)
		}
	}
	return sub
}

type sqlSubject struct {
	spec
	db    *sql.DB
	guard *sqlfence.Guard
}

func (s *sqlSubject) close() { _ = s.db.Close() }

// numbered rewrites the placeholders of query for PostgreSQL.
func (s *sqlSubject) numbered(query string) string {
	if s.Kind == "postgres" {
		for i := 1; strings.Contains(query, "?"); i++ {
			query = strings.Replace(query, "?", "$"+strconv.Itoa(i), 1)
		}
	}
	return query
}

// again reports whether a database asks to run the transaction once more.
func again(err error) bool {
	var pg *pgconn.PgError
	var my *mysql.MySQLError
	var lite *sqlite.Error
	switch {
	case errors.As(err, &pg):
		return pg.Code == "40001" || pg.Code == "40P01"
	case errors.As(err, &my):
		return my.Number == 1213 || my.Number == 1205 || my.Number == 1020
	case errors.As(err, &lite):
		return lite.Code()&0xff == sqlite3.SQLITE_BUSY
	}
	return false
}

// inTx runs fn behind the check, and commits.
func (s *sqlSubject) inTx(ctx context.Context, resource string, token uint64, fn func(tx *sql.Tx) error) error {
	for {
		err := s.once(ctx, resource, token, fn)
		if !again(err) {
			return err
		}
		if errors.Is(err, fence.ErrStale) {
			return fmt.Errorf("a serialization failure and stale: %w", err)
		}
	}
}

func (s *sqlSubject) once(ctx context.Context, resource string, token uint64, fn func(tx *sql.Tx) error) error {
	tx, err := s.db.BeginTx(ctx, &sql.TxOptions{Isolation: s.Isolation})
	if err != nil {
		return err
	}
	defer tx.Rollback() //nolint:errcheck // after a commit it does nothing
	if !s.Unguarded {
		if err := s.guard.Check(ctx, tx, resource, token); err != nil {
			return err
		}
	}
	if err := fn(tx); err != nil {
		return err
	}
	return tx.Commit()
}

func (s *sqlSubject) read(ctx context.Context, resource string, token uint64) error {
	return s.inTx(ctx, resource, token, func(tx *sql.Tx) error {
		var n int
		return tx.QueryRowContext(ctx, s.numbered("SELECT count(*) FROM data WHERE resource = ?"), resource).Scan(&n)
	})
}

func (s *sqlSubject) write(ctx context.Context, resource string, token uint64) error {
	upsert := "INSERT INTO data (resource, token) VALUES (?, ?) ON CONFLICT (resource) DO UPDATE SET token = excluded.token"
	if s.Kind == "mariadb" {
		upsert = "INSERT INTO data (resource, token) VALUES (?, ?) ON DUPLICATE KEY UPDATE token = VALUES(token)"
	}
	return s.inTx(ctx, resource, token, func(tx *sql.Tx) error {
		if _, err := tx.ExecContext(ctx, s.numbered(upsert), resource, int64(token)); err != nil { //nolint:gosec // small
			return err
		}
		_, err := tx.ExecContext(ctx, s.numbered("INSERT INTO log (resource, token) VALUES (?, ?)"), resource, int64(token)) //nolint:gosec // small
		return err
	})
}

func (s *sqlSubject) state(ctx context.Context, resource string) (log []uint64, value uint64, err error) {
	rows, err := s.db.QueryContext(ctx, s.numbered("SELECT token FROM log WHERE resource = ? ORDER BY id"), resource)
	if err != nil {
		return nil, 0, err
	}
	defer rows.Close()
	for rows.Next() {
		var token uint64
		if err := rows.Scan(&token); err != nil {
			return nil, 0, err
		}
		log = append(log, token)
	}
	if err := rows.Err(); err != nil {
		return nil, 0, err
	}
	err = s.db.QueryRowContext(ctx, s.numbered("SELECT token FROM data WHERE resource = ?"), resource).Scan(&value)
	return log, value, err
}

const record = `
	redis.call('SET', KEYS[1], ARGV[1])
	return redis.call('RPUSH', KEYS[2], ARGV[1])`

type redisSubject struct {
	spec
	client *redis.Client
	guard  *redisfence.Guard
	script *redisfence.Script
}

func (s *redisSubject) close() { _ = s.client.Close() }

func (s *redisSubject) keys(resource string) []string {
	return []string{"{" + resource + "}:data", "{" + resource + "}:log"}
}

func (s *redisSubject) read(ctx context.Context, resource string, token uint64) error {
	if s.Unguarded {
		return s.client.Exists(ctx, resource).Err()
	}
	return s.guard.Check(ctx, resource, token)
}

func (s *redisSubject) write(ctx context.Context, resource string, token uint64) error {
	if s.Unguarded {
		return s.client.Eval(ctx, record, s.keys(resource), token).Err()
	}
	return s.guard.Run(ctx, resource, token, s.script, s.keys(resource), token).Err()
}

func (s *redisSubject) state(ctx context.Context, resource string) (log []uint64, value uint64, err error) {
	keys := s.keys(resource)
	if err := s.client.LRange(ctx, keys[1], 0, -1).ScanSlice(&log); err != nil {
		return nil, 0, err
	}
	value, err = s.client.Get(ctx, keys[0]).Uint64()
	return log, value, err
}

// A service keeps its resources in memory, /guarded/... behind the middleware and
// /unguarded/... for everybody.
type service struct {
	mu   sync.Mutex
	logs map[string][]uint64
}

func newService(t testing.TB) (url string) {
	t.Helper()
	s := &service{logs: map[string][]uint64{}}
	guard, err := httpfence.New(&fence.HighWater{}, func(r *http.Request) string { return r.PathValue("resource") })
	require.NoError(t, err)
	mux := http.NewServeMux()
	mux.Handle("PUT /guarded/{resource}", guard.Handler(http.HandlerFunc(s.put)))
	mux.Handle("GET /guarded/{resource}", guard.Handler(http.HandlerFunc(s.get)))
	mux.Handle("PUT /unguarded/{resource}", http.HandlerFunc(s.put))
	mux.Handle("GET /unguarded/{resource}", http.HandlerFunc(s.get))
	server := httptest.NewServer(mux)
	t.Cleanup(server.Close)
	return server.URL
}

func (s *service) put(w http.ResponseWriter, r *http.Request) {
	token, err := strconv.ParseUint(r.Header.Get(httpfence.TokenHeader), 10, 64)
	if err != nil {
		http.Error(w, err.Error(), http.StatusBadRequest)
		return
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.logs[r.PathValue("resource")] = append(s.logs[r.PathValue("resource")], token)
}

func (s *service) get(w http.ResponseWriter, r *http.Request) {
	s.mu.Lock()
	defer s.mu.Unlock()
	_ = json.NewEncoder(w).Encode(s.logs[r.PathValue("resource")])
}

type httpSubject struct {
	spec
	client *http.Client
}

func (s *httpSubject) close() { s.client.CloseIdleConnections() }

func (s *httpSubject) do(ctx context.Context, method, resource string, token uint64, answer any) error {
	path := "/guarded/"
	if s.Unguarded {
		path = "/unguarded/"
	}
	r, err := http.NewRequestWithContext(httpfence.NewContext(ctx, resource, token), method, s.Address+path+resource, nil)
	if err != nil {
		return err
	}
	response, err := s.client.Do(r)
	if err != nil {
		return err
	}
	defer response.Body.Close()
	if response.StatusCode != http.StatusOK {
		return errors.New(response.Status)
	}
	if answer == nil {
		return nil
	}
	return json.NewDecoder(response.Body).Decode(answer)
}

func (s *httpSubject) read(ctx context.Context, resource string, token uint64) error {
	return s.do(ctx, http.MethodGet, resource, token, nil)
}

func (s *httpSubject) write(ctx context.Context, resource string, token uint64) error {
	return s.do(ctx, http.MethodPut, resource, token, nil)
}

func (s *httpSubject) state(ctx context.Context, resource string) (log []uint64, value uint64, err error) {
	past := &httpSubject{spec{Kind: s.Kind, Address: s.Address, Unguarded: true}, s.client}
	if err := past.do(ctx, http.MethodGet, resource, 1, &log); err != nil || len(log) == 0 {
		return nil, 0, errors.Join(err, errors.New("nothing was written"))
	}
	return log, log[len(log)-1], nil
}
