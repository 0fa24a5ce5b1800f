//go:build linux

package fencetest

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"os/user"
	"path/filepath"
	"runtime"
	"strconv"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// A daemon is a database server on a unix socket in a temporary directory. It is
// started by the first test that needs it, ended by TestMain, and killed with this
// process if that dies.
type daemon struct {
	name, require string // the environment variable that forbids to skip
	start         func(d *daemon) error
	driver        string
	dsn           func(dir, database string) string

	once sync.Once
	err  error
	dir  string
	cmd  *exec.Cmd
	done chan struct{}
	made atomic.Int64 // databases
}

var postgres = &daemon{
	name: "PostgreSQL", require: "REDLOCK_REQUIRE_POSTGRES",
	start: func(d *daemon) error {
		bin, err := postgresBin()
		if err != nil {
			return err
		}
		if err := d.run(filepath.Join(bin, "initdb"), "-D", d.dir+"/data", "-U", "postgres", "-A", "trust", "-N", "-E", "UTF8", "--locale=C"); err != nil {
			return err
		}
		return d.spawn(filepath.Join(bin, "postgres"), "-D", d.dir+"/data", "-k", d.dir, "-c", "listen_addresses=",
			"-c", "max_connections=300", "-c", "fsync=off") // nobody pulls the plug here
	},
	driver: "pgx",
	dsn: func(dir, database string) string {
		if database == "" {
			database = "postgres"
		}
		return fmt.Sprintf("host=%s user=postgres dbname=%s", dir, database)
	},
}

var mariadb = &daemon{
	name: "MariaDB", require: "REDLOCK_REQUIRE_MARIADB",
	start: func(d *daemon) error {
		install, err := exec.LookPath("mariadb-install-db")
		if err != nil {
			return fmt.Errorf("%w: %w", errAbsent, err)
		}
		server, err := exec.LookPath("mariadbd")
		if err != nil {
			return fmt.Errorf("%w: %w", errAbsent, err)
		}
		if err := d.run(install, "--no-defaults", "--datadir="+d.dir+"/data", "--auth-root-authentication-method=normal", "--skip-test-db"); err != nil {
			return err
		}
		return d.spawn(server, "--no-defaults", "--datadir="+d.dir+"/data", "--socket="+d.dir+"/socket", "--skip-networking",
			"--pid-file="+d.dir+"/pid", "--innodb-flush-log-at-trx-commit=0", "--max-connections=300")
	},
	driver: "mysql",
	dsn:    func(dir, database string) string { return fmt.Sprintf("root@unix(%s/socket)/%s", dir, database) },
}

var errAbsent = errors.New("not installed")

// postgresBin returns the directory of the binaries: Debian keeps them off the PATH.
func postgresBin() (string, error) {
	if path, err := exec.LookPath("initdb"); err == nil {
		path, err = filepath.EvalSymlinks(path)
		return filepath.Dir(path), err
	}
	found, err := filepath.Glob("/usr/lib/postgresql/*/bin/initdb")
	if err != nil || len(found) == 0 {
		return "", fmt.Errorf("%w: no initdb on the PATH or under /usr/lib/postgresql", errAbsent)
	}
	return filepath.Dir(found[len(found)-1]), nil
}

// database returns the address of a new, empty database.
func (d *daemon) database(t testing.TB) string {
	t.Helper()
	d.once.Do(func() { d.err = d.launch() })
	if errors.Is(d.err, errAbsent) && os.Getenv(d.require) != "1" {
		t.Skipf("SKIPPED, NOT PASSED: %s: %v", d.name, d.err)
	}
	require.NoError(t, d.err, d.name)
	db, err := sql.Open(d.driver, d.dsn(d.dir, ""))
	require.NoError(t, err)
	defer db.Close()
	name := fmt.Sprintf("test%d", d.made.Add(1))
	_, err = db.ExecContext(context.Background(), "CREATE DATABASE "+name)
	require.NoError(t, err)
	return d.dsn(d.dir, name)
}

func (d *daemon) launch() (err error) {
	if d.dir, err = os.MkdirTemp("", "fencetest-"); err != nil {
		return err
	}
	if c := credential(); c != nil {
		if err := os.Chown(d.dir, int(c.Uid), int(c.Gid)); err != nil {
			return err
		}
	}
	if err := d.start(d); err != nil {
		return err
	}
	db, err := sql.Open(d.driver, d.dsn(d.dir, ""))
	if err != nil {
		return err
	}
	defer db.Close()
	for deadline := time.Now().Add(time.Minute); ; time.Sleep(10 * time.Millisecond) {
		if err = db.PingContext(context.Background()); err == nil {
			return nil
		}
		select {
		case <-d.done:
			return d.failed("it ended at once", err)
		default:
		}
		if time.Now().After(deadline) {
			return d.failed("no answer", err)
		}
	}
}

// credential is that of nobody, if this is root, as whom no database server runs.
func credential() *syscall.Credential {
	if os.Getuid() != 0 {
		return nil
	}
	nobody, err := user.Lookup("nobody")
	if err != nil {
		return nil
	}
	uid, err1 := strconv.ParseUint(nobody.Uid, 10, 32)
	gid, err2 := strconv.ParseUint(nobody.Gid, 10, 32)
	if err1 != nil || err2 != nil {
		return nil
	}
	return &syscall.Credential{Uid: uint32(uid), Gid: uint32(gid)}
}

func (d *daemon) command(path string, args ...string) (*exec.Cmd, error) {
	cmd := exec.Command(path, args...)
	log, err := os.OpenFile(d.dir+"/log", os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
	if err != nil {
		return nil, err
	}
	cmd.Dir, cmd.Stdout, cmd.Stderr = d.dir, log, log
	cmd.SysProcAttr = &syscall.SysProcAttr{Credential: credential(), Pdeathsig: syscall.SIGQUIT}
	return cmd, nil
}

func (d *daemon) failed(what string, err error) error {
	log, _ := os.ReadFile(d.dir + "/log")
	return fmt.Errorf("%s: %s: %w\n%s", d.name, what, err, log)
}

// run runs a command to its end, on a thread that is still there when it comes.
func (d *daemon) run(path string, args ...string) error {
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	cmd, err := d.command(path, args...)
	if err != nil {
		return err
	}
	if err := cmd.Run(); err != nil {
		return d.failed(path, err)
	}
	return nil
}

// spawn starts the server. Its parent's death, for the kernel, is that of the thread
// that forked it: hence a goroutine that keeps its thread for as long.
func (d *daemon) spawn(path string, args ...string) error {
	cmd, err := d.command(path, args...)
	if err != nil {
		return err
	}
	d.cmd, d.done = cmd, make(chan struct{})
	started := make(chan error)
	go func() {
		runtime.LockOSThread()
		defer runtime.UnlockOSThread()
		defer close(d.done)
		err := cmd.Start()
		started <- err
		if err == nil {
			_ = cmd.Wait()
		}
	}()
	return <-started
}

// stop ends the server with SIGINT, at which it breaks connections and leaves, and
// after a while without mercy.
func (d *daemon) stop() {
	if d.done != nil && d.cmd.Process != nil {
		signal := syscall.SIGINT
		if d == mariadb {
			signal = syscall.SIGTERM
		}
		_ = d.cmd.Process.Signal(signal)
		select {
		case <-d.done:
		case <-time.After(10 * time.Second):
			_ = d.cmd.Process.Kill()
			<-d.done
		}
	}
	if d.dir != "" {
		_ = os.RemoveAll(d.dir)
	}
}
