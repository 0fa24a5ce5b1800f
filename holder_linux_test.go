package redlock_test

import (
	"bufio"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"os/exec"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/quorumlock/redlock"
	"github.com/quorumlock/redlock/internal/redistest"
)

// holderEndpoints is the environment variable that makes this binary a process
// that holds locks.
const holderEndpoints = "REDLOCK_HOLDER_ENDPOINTS"

func init() {
	endpoints := os.Getenv(holderEndpoints)
	if endpoints == "" {
		return
	}
	if err := serveHolder(strings.Split(endpoints, ","), os.Stdin, os.Stdout); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	os.Exit(0)
}

// longPause is what no machine stops a process for by itself.
const longPause = longestTTL / 2

// An awakening is what the holder of one lock saw when its process ran again.
type awakening struct {
	Until     time.Time          // the end of the window
	Remaining time.Duration      // as the first call said, of this lock or of one that is not kept alive
	Ran       time.Time          // when the process last ran again before the end
	At        time.Time          // when its context ended
	Reason    redlock.LostReason // empty if its cause is no LostError that matches ErrLost
}

// serveHolder holds many locks for each line that it reads, says "held", and when
// it has been stopped for long and runs again, what it saw.
func serveHolder(endpoints []string, in io.Reader, out io.Writer) error {
	l, err := redlock.Open(endpoints, redlock.WithQuarantine(0))
	if err != nil {
		return err
	}
	defer l.Close()
	control, stop := newControl()
	defer stop()
	for lines := bufio.NewScanner(in); lines.Scan(); {
		locks := make([]*kept, atOnce)
		errs := make([]error, atOnce)
		var wg sync.WaitGroup
		for i := range locks {
			wg.Go(func() { locks[i], errs[i] = keepOn(context.Background(), l, fmt.Sprint("r", rand.Uint64()), anyTTL()) })
		}
		wg.Wait()
		for _, err := range errs {
			if err != nil {
				return err
			}
		}
		idle, err := l.Acquire(context.Background(), fmt.Sprint("r", rand.Uint64()), longestTTL) // nobody tells this one
		if err != nil {
			return err
		}
		if _, err := fmt.Fprintln(out, "held"); err != nil {
			return err
		}

		ran := awake()
		seen := make([]awakening, atOnce)
		for i, k := range locks {
			seen[i].Remaining = max(k.lock.Remaining(), idle.Remaining())
		}
		for i, k := range locks {
			<-k.done
			lost, is := asLost(context.Cause(k.ctx))
			if is {
				seen[i].Reason = lost.Reason
			}
			seen[i].At, seen[i].Until, seen[i].Ran = k.at, k.lock.ValidUntil(), ran
			if again, slept := control.slept(ran, k.at); slept {
				seen[i].Ran = again
			}
		}
		if err := json.NewEncoder(out).Encode(seen); err != nil {
			return err
		}
	}
	return nil
}

// awake returns when the process runs again after a long pause.
func awake() time.Time {
	timer := time.NewTicker(time.Millisecond)
	defer timer.Stop()
	for last := time.Now(); ; {
		<-timer.C
		now := time.Now()
		if now.Sub(last) > longPause {
			return now
		}
		last = now
	}
}

// A process that was stopped for longer than its windows hears of their end within
// 20 ms of running again, and the first call of Remaining says so.
func TestAPausedProcessHearsOfTheLossWhenItRunsAgain(t *testing.T) {
	t.Parallel()
	servers := start(t, 3)
	binary, err := os.Executable()
	require.NoError(t, err)
	cmd := exec.Command(binary)
	cmd.Env = append(os.Environ(), holderEndpoints+"="+strings.Join(redistest.Addrs(servers), ","))
	cmd.Stderr = os.Stderr
	in, err := cmd.StdinPipe()
	require.NoError(t, err)
	pipe, err := cmd.StdoutPipe()
	require.NoError(t, err)
	require.NoError(t, cmd.Start())
	t.Cleanup(func() {
		_ = cmd.Process.Kill() // which reaches a stopped process, too
		_ = cmd.Wait()
	})
	out := bufio.NewReader(pipe)

	reasons := map[redlock.LostReason]int{}
	var took, notRun []time.Duration
	var judged, before int
	for judged < losses(t) {
		_, err := fmt.Fprintln(in, "hold")
		require.NoError(t, err)
		line, err := out.ReadString('\n')
		require.NoError(t, err)
		require.Equal(t, "held\n", line)
		time.Sleep(longestTTL/3 + rand.N(longestTTL/3)) // any phase is as likely
		require.NoError(t, cmd.Process.Signal(syscall.SIGSTOP))
		becomes(t, func() bool { return stateOf(t, cmd.Process.Pid) == 'T' }, "it has stopped")
		stopped := time.Now()
		time.Sleep(longestTTL + longestTTL/10) // the windows end
		resumed := time.Now()
		require.NoError(t, cmd.Process.Signal(syscall.SIGCONT))

		var seen []awakening
		line, err = out.ReadString('\n')
		require.NoError(t, err)
		require.NoError(t, json.Unmarshal([]byte(line), &seen))
		for _, a := range seen {
			require.LessOrEqual(t, a.Remaining, time.Duration(0), "on the first call")
			if a.At.Before(stopped) {
				before++
				continue
			}
			judged++
			reasons[a.Reason]++
			require.True(t, a.Until.Before(resumed))
			// When it was told to run, or ran at last.
			late := a.At.Sub(resumed)
			if a.Ran.Sub(resumed) > ranLate {
				notRun = append(notRun, a.Ran.Sub(resumed))
				late = a.At.Sub(a.Ran)
			}
			took = append(took, late)
		}
	}
	require.NoError(t, in.Close())
	slices.Sort(took)
	t.Logf("%d losses %v: the signal came %v after the process ran again at worst, %v in the middle; %d at which it did not run for longer %v; %d were lost before it was stopped",
		judged, reasons, took[len(took)-1], took[len(took)/2], len(notRun), slices.Compact(notRun), before)
	for reason := range reasons {
		// The latter where a renewal was out.
		require.Contains(t, []redlock.LostReason{redlock.LostExpired, redlock.LostNoQuorum}, reason)
	}
	require.LessOrEqual(t, took[len(took)-1], mostLate)
	require.LessOrEqual(t, before, judged/10)
	requireNoOrphans(t, servers)
}

// stateOf returns the letter of a process's state: it follows the name, which is in
// parentheses and may hold some itself.
func stateOf(t *testing.T, pid int) byte {
	stat, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	require.NoError(t, err)
	return stat[strings.LastIndex(string(stat), ")")+2]
}
