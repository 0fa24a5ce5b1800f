package sim

import (
	"encoding/json"
	"flag"
	"fmt"
	"os"
	"runtime"
	"runtime/debug"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
)

var (
	schedules = flag.Int("schedules", 0, "how many schedules, or replays, to run; 0: few")
	firstSeed = flag.Uint64("seed", 1, "the seed of the first one")
	without   = flag.String("without", "", "parts to take out of every schedule, such as fault0,client2")
	counted   = flag.String("counts", "", "a file for what there was in the schedules, as JSON")
	logged    = flag.Bool("timeline", false, "print the timeline of each schedule")
)

// hangLimit is how long a schedule may take on the wall clock. While a goroutine waits
// for a mutex virtual time stands still, and one that never stops never lets it go on.
const hangLimit = 2 * time.Minute

// simulated runs a schedule in a bubble of its own. If that ends the process, it
// leaves a word of which one it was.
func simulated(t *testing.T, s *Schedule, e NewEngine, logged bool) (r Result) {
	t.Helper()
	where := fmt.Sprintf("%s, seed %d", t.Name(), s.Seed)
	watchdog := time.AfterFunc(hangLimit, func() { panic("sim: it hangs: " + where) })
	defer watchdog.Stop()
	done := false
	defer func() {
		if !done {
			fmt.Fprintln(os.Stderr, "sim: it ends in a panic:", where)
		}
	}()
	synctest.Test(t, func(*testing.T) { r = Simulate(s, e, logged) })
	done = true
	return r
}

// onOneProcessor runs a test on one processor: what happens at one instant is mostly one
// goroutine's, so that others would be woken for nothing.
func onOneProcessor(t *testing.T) {
	t.Helper()
	if raceDetector {
		t.Skip("SKIPPED, NOT PASSED: the race detector crashes in bubbles of many goroutines, https://github.com/golang/go/issues/78156")
	}
	processors, percent := runtime.GOMAXPROCS(1), debug.SetGCPercent(300)
	t.Cleanup(func() {
		runtime.GOMAXPROCS(processors)
		debug.SetGCPercent(percent)
	})
}

// The core: the library over instances whose script is modelled.
func TestCore(t *testing.T) { run(t, Core, 300) }

// The whole stack: the library over instances that run the script.
func TestWholeStack(t *testing.T) { run(t, WholeStack, 40) }

func run(t *testing.T, e NewEngine, n int) {
	onOneProcessor(t)
	if *schedules > 0 {
		n = *schedules
	}
	var c Counts
	for i := range n {
		s := NewSchedule(*firstSeed + uint64(i))
		if *without != "" {
			var err error
			s, err = s.Without(strings.Split(*without, ",")...)
			require.NoError(t, err)
		}
		r := simulated(t, s, e, *logged)
		if *logged {
			fmt.Println(strings.Join(r.Timeline, "\n"))
		}
		if len(r.Violations) > 0 {
			explain(t, s, e, r.Violations)
		}
		c.Add(r.Counts)
	}
	t.Logf("%d schedules from seed %d: %v", c.Schedules, *firstSeed, c)
	writeCounts(t, c)
	if n >= 25 && *without == "" {
		requireTraffic(t, c)
	}
}

// writeCounts is for the command, which adds up those of several processes.
func writeCounts(t *testing.T, c Counts) {
	t.Helper()
	if *counted == "" {
		return
	}
	text, err := json.Marshal(c)
	require.NoError(t, err)
	require.NoError(t, os.WriteFile(*counted, text, 0o600))
}

// A run with too little traffic or too few faults shows nothing.
func requireTraffic(t *testing.T, c Counts) {
	t.Helper()
	require.Greater(t, c.Acquired, 10*c.Schedules)
	require.Greater(t, c.Extended, 5*c.Schedules)
	require.Greater(t, c.Lost, c.Schedules/8)
	require.Greater(t, c.Done, c.Schedules/2)
	require.Positive(t, c.StaleUnfenced, "no fault has shown what fencing is for")
	if c.Schedules < 200 {
		return
	}
	for _, k := range kinds {
		require.Positive(t, c.Faults[k], "no %s has touched anything", k)
	}
}

// explain fails the test with the smallest part of a schedule that fails, and what
// happened in it.
func explain(t *testing.T, s *Schedule, e NewEngine, found []Violation) {
	t.Helper()
	replay := func(without []string) string {
		c := fmt.Sprintf("go test ./chaos/sim -run '^%s$' -count=1 -v -args -schedules 1 -seed %d", t.Name(), s.Seed)
		if len(without) > 0 {
			c += " -without " + strings.Join(without, ",")
		}
		return c
	}
	rule := found[0].Rule
	var last Result
	fails := func(s *Schedule) bool {
		r := simulated(t, s, e, true)
		if len(r.Violations) == 0 || r.Violations[0].Rule != rule {
			return false
		}
		last = r
		return true
	}
	t.Logf("seed %d: %v\nreplay: %s -timeline", s.Seed, found[0], replay(nil))
	if !fails(s) {
		t.Fatalf("the replay does something else: the simulation is not deterministic, see TestReplaysAreTheSame\n%v", s)
	}
	small, unneeded := Shrink(s, fails)
	t.Fatalf("%v\nshrunk: %s -timeline\n%s", small, replay(unneeded), strings.Join(Excerpt(last.Timeline, 60), "\n"))
}

// Whatever the seed, all that happens in a replay is what happened in the first run, in
// the same order; also if the scheduler of goroutines does as it likes, on several
// processors.
func TestReplaysAreTheSame(t *testing.T) {
	onOneProcessor(t)
	n := 30
	if *schedules > 0 {
		n = *schedules
	}
	for i := range n {
		e := Core
		if i%10 == 9 {
			e = WholeStack
		}
		s := NewSchedule(*firstSeed + uint64(i))
		runtime.GOMAXPROCS(1)
		first := simulated(t, s, e, true).Timeline
		runtime.GOMAXPROCS(4)
		second := simulated(t, s, e, true).Timeline
		require.Greater(t, len(first), 20)
		for j, line := range first {
			if j >= len(second) || line != second[j] {
				other := second[min(j, len(second)-1)]
				require.Equal(t, line, other, "seed %d, line %d; before it:\n%s", s.Seed, j, strings.Join(first[max(0, j-20):j], "\n"))
			}
		}
		require.Len(t, second, len(first))
	}
	t.Logf("%d replays are the same, from seed %d", n, *firstSeed)
	writeCounts(t, Counts{Schedules: n})
}
