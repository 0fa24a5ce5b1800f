package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"io/fs"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/quorumlock/redlock"
)

const (
	runTTL   = 30 * time.Second
	runGrace = 5 * time.Second // at most, by default

	runUsage = `Usage: redlock run [flags] NAME -- COMMAND [ARGUMENT]...

Acquires the lock of NAME, runs the command while it holds, renewing it, and
releases it when the command and all that it has started have ended.

The command runs in a process group of its own, to which signals are passed on.
When the lock is lost the group gets a SIGTERM, and a SIGKILL when the grace period
is over. When it can't be renewed, that begins so early that no process of the
group is left at the end of the time for which the lock is certain.

In the command's environment are REDLOCK_NAME, REDLOCK_TTL_MS and REDLOCK_TOKEN, a
number that is larger for each holder: what it writes to can refuse a smaller one.

Exit codes: that of the command; 128 and its number if a signal ended it, or the wait
for the lock; and

  64   a flag, an argument or an endpoint is wrong
  69   no quorum of the instances granted or refused: they can't be reached in time, or
       started too recently
  75   somebody else holds the lock (-E changes it)
  79   the lock was lost, and the command stopped
  126  the command can't be run
  127  there is no such command

Examples:

  export REDLOCK_ENDPOINTS=redis://a:6379,redis://b:6379,redis://c:6379
  redlock run nightly-backup -- ./backup.sh
  redlock run -n -E 0 report -- ./report.sh              # from cron on every host
  redlock run --wait 10s deploy -- sh -c 'make && make install'
  redlock run --ttl 10s scheduler -- ./scheduler         # a leader and its stand-bys
  redlock run hourly -- timeout 50m ./hourly.sh          # and no longer
`
)

// A job is what to run, and under which lock.
type job struct {
	*setting
	ttl      time.Duration
	wait     []redlock.AcquireOption // none: for ever
	grace    time.Duration
	busyCode int

	name string
	path string // of the program
	args []string
}

// runCommand is the subcommand run.
func runCommand(flags *flag.FlagSet) action {
	j := &job{setting: lockerFlags(flags, "the ttl and 2s"), ttl: runTTL, grace: -1, busyCode: exitBusy}
	flags.Var((*duration)(&j.ttl), "ttl", "how long others wait when this machine dies: a `duration`")
	flags.Func("wait", "how long to wait for the lock: a `duration`, 0 or forever (default forever)", func(text string) error {
		j.wait = nil
		if text == "forever" {
			return nil
		}
		d, err := time.ParseDuration(text)
		if err != nil || d < 0 {
			return errors.New("it is forever, 0, or a duration like 10s")
		}
		j.wait = []redlock.AcquireOption{redlock.WithMaxWait(d)}
		return nil
	})
	flags.BoolFunc("n", "don't wait: --wait 0", func(string) error {
		j.wait = []redlock.AcquireOption{redlock.WithMaxWait(0)}
		return nil
	})
	flags.Func("grace", "how long the command has between SIGTERM and SIGKILL when the lock is lost: a `duration`,\n"+
		"at most half of the ttl (default: the smaller of 5s and a third of the ttl)", func(text string) (err error) {
		if err = (*duration)(&j.grace).Set(text); err == nil && j.grace < 0 {
			err = errors.New("it is negative")
		}
		return err
	})
	flags.Func("E", fmt.Sprintf("exit `code` when somebody else holds the lock; with 0, nothing is printed then (default %d)", exitBusy), func(text string) error {
		code, err := strconv.ParseUint(text, 10, 8)
		j.busyCode = int(code)
		if err != nil {
			return errors.New("it is a number from 0 to 255")
		}
		return nil
	})
	return func(ctx context.Context, operands []string, _, stderr io.Writer) int {
		j.name, j.args = operands[0], operands[1:]
		code, err := j.run(ctx, stderr)
		if err != nil {
			fmt.Fprintln(stderr, "redlock run:", printable(strings.ReplaceAll(err.Error(), "redlock: ", "")))
		}
		return code
	}
}

// run runs the job. An error beside the exit code says why it is not the command's,
// or what else there is to know.
func (j *job) run(ctx context.Context, stderr io.Writer) (code int, err error) {
	if err := checkName(j.name); err != nil {
		return exitUsage, err
	}
	if j.ttl <= 0 {
		return exitUsage, fmt.Errorf("--ttl is %v, which is not positive", j.ttl)
	}
	if j.grace < 0 {
		j.grace = min(runGrace, j.ttl/3)
	}
	if j.grace > j.ttl/2 {
		return exitUsage, fmt.Errorf("--grace is %v, more than half of the ttl, %v", j.grace, j.ttl)
	}
	// What can't be run need not be locked.
	if j.path, err = exec.LookPath(j.args[0]); err != nil && !errors.Is(err, exec.ErrDot) {
		return cantRun(err)
	}
	var opts []redlock.Option
	if j.wait == nil {
		opts = append(opts, redlock.WithObserver(redlock.Observer{Round: j.tellWhy(stderr)}))
	}
	locker, err := j.open(opts...)
	if err != nil {
		return exitUsage, err
	}
	code, err = j.runLocked(ctx, locker)
	if late := locker.Close(); err == nil && late != nil {
		err = late
	}
	return code, err
}

// tellWhy prints, once, why no quorum can be had: who waits for ever would not learn it
// from the end of the wait.
func (j *job) tellWhy(stderr io.Writer) func(redlock.RoundEvent) {
	var once sync.Once
	return func(e redlock.RoundEvent) {
		var why []string
		for _, v := range e.Votes {
			if v.Vote == "failed" && v.Err != nil {
				why = append(why, v.Instance+": "+v.Err.Error())
			}
		}
		if e.Op == "acquire" && len(why) > (len(e.Votes)-1)/2 {
			once.Do(func() {
				fmt.Fprintln(stderr, "redlock run:", printable(strings.ReplaceAll("waiting: no quorum: "+strings.Join(why, "; "), "redlock: ", "")))
			})
		}
	}
}

// cantRun returns the exit code of a shell for a command that can't be run.
func cantRun(err error) (int, error) {
	code := exitNotExecutable
	if errors.Is(err, exec.ErrNotFound) || errors.Is(err, fs.ErrNotExist) {
		code = exitNotFound
	}
	return code, fmt.Errorf("can't run the command: %w", err)
}

// why returns the exit code for a lock that was not acquired, and err unless that is
// a success: then there is nothing to say, or cron would send it by mail.
func (j *job) why(ctx context.Context, err error) (int, error) {
	switch {
	case ctx.Err() != nil:
		return interrupted(ctx), err
	case errors.Is(err, redlock.ErrTaken) && j.busyCode == exitOK:
		return exitOK, nil
	case errors.Is(err, redlock.ErrTaken):
		return j.busyCode, err
	case errors.Is(err, redlock.ErrNoQuorum), errors.Is(err, redlock.ErrExpired):
		return exitUnavailable, err
	}
	return exitUsage, err // refused before it was asked for
}

// environment returns that of the command.
func (j *job) environment(lock *redlock.Lock) []string {
	return append(os.Environ(),
		"REDLOCK_NAME="+j.name,
		"REDLOCK_TOKEN="+strconv.FormatUint(lock.FencingToken(), 10),
		"REDLOCK_TTL_MS="+strconv.FormatInt(j.ttl.Milliseconds(), 10))
}
