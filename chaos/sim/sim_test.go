package sim

import (
	"flag"
	"fmt"
	"os"
	"regexp"
	"runtime"
	"runtime/debug"
	"runtime/metrics"
	"slices"
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
	logged    = flag.Bool("timeline", false, "print the timeline of each schedule")
)

// hangLimit is how long a schedule may take on the wall clock. While a goroutine waits
// for a mutex virtual time stands still, and one that never stops never lets it go on.
const hangLimit = 5 * time.Minute

// simulated runs a schedule in a bubble of its own. If that ends the process, it
// leaves a word of which one it was.
func simulated(t *testing.T, s *Schedule, e NewEngine, logged bool) (r Result) {
	t.Helper()
	collect()
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

// onOneProcessor has the goroutines that an instant wakes run one after the other. What
// they do in one instant has no order for the library, but nearly always the same one
// then.
func onOneProcessor(t *testing.T) {
	t.Helper()
	if raceDetector {
		t.Skip("SKIPPED, NOT PASSED: the race detector crashes in bubbles of many goroutines, https://github.com/golang/go/issues/78156")
	}
	processors, percent := runtime.GOMAXPROCS(1), debug.SetGCPercent(-1)
	t.Cleanup(func() {
		runtime.GOMAXPROCS(processors)
		debug.SetGCPercent(percent)
	})
}

// collect collects the garbage of the schedules that have run, when it is much. While
// one runs, the collector would stop goroutines where it likes, and others would run
// first.
func collect() {
	var m [1]metrics.Sample
	m[0].Name = "/memory/classes/heap/objects:bytes"
	if metrics.Read(m[:]); m[0].Value.Uint64() > 200<<20 {
		runtime.GC()
	}
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
	t.Logf("%d schedules from seed %d: %d acquired, %d extended, %d released, %d forgotten, %d kept alive, %d of them lost; %d operations in %d batches; writes: %d, stale without a fence: %d, with: %d; after the healing the first lock came within %v; touched by faults: %v",
		c.Schedules, *firstSeed, c.Acquired, c.Extended, c.Released, c.Forgotten, c.Kept, c.Lost, c.Operations, c.Batches, c.Writes, c.StaleUnfenced, c.StaleFenced, c.Recovery, c.Faults)
	if n >= 25 && *without == "" {
		requireTraffic(t, c)
	}
}

// A run with too little traffic or too few faults shows nothing.
func requireTraffic(t *testing.T, c Counts) {
	t.Helper()
	require.Greater(t, c.Acquired, 10*c.Schedules)
	require.Greater(t, c.Extended, 5*c.Schedules)
	require.Greater(t, c.Lost, c.Schedules/4)
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
	if again := fails(s); !again && !fails(s) { // a second chance
		t.Fatalf("the replay does something else: the simulation is not deterministic, see TestReplaysAreTheSame\n%v", s)
	}
	small, unneeded := Shrink(s, fails)
	t.Fatalf("%v\nshrunk: %s -timeline\n%s", small, replay(unneeded), strings.Join(Excerpt(last.Timeline, 60), "\n"))
}

// Whatever the seed, the canonical history of a replay is that of the first run.
func TestReplaysAreTheSame(t *testing.T) {
	onOneProcessor(t)
	n, again := 30, 0
	if *schedules > 0 {
		n = *schedules
	}
	for i := range n {
		e := Core
		if i%10 == 9 {
			e = WholeStack
		}
		s := NewSchedule(*firstSeed + uint64(i))
		first := seen(simulated(t, s, e, true))
		second := seen(simulated(t, s, e, true))
		require.Greater(t, len(first), 20)
		if !slices.Equal(first, second) {
			// Seen with a few in ten thousand, on a busy machine. The cause is not known for sure:
			// callers that one answer wakes run in the order in which they were made ready, unless
			// the machine takes the processor away in that moment.
			again++
			if third := seen(simulated(t, s, e, true)); slices.Equal(third, second) {
				first = third
			} else {
				second = third
			}
		}
		for j, line := range first {
			if j >= len(second) || line != second[j] {
				other := second[min(j, len(second)-1)]
				require.Equal(t, line, other, "seed %d, line %d; before it:\n%s", s.Seed, j, strings.Join(first[max(0, j-20):j], "\n"))
			}
		}
		require.Len(t, second, len(first))
	}
	require.LessOrEqual(t, again, 1+n/100, "the simulation is not deterministic")
	t.Logf("%d replays are the same, from seed %d; %d more with a third run", n-again, *firstSeed, again)
}

// seen is the part of a timeline that the instances have seen: what they were asked, in
// the order of the instants, and what they answered. The operations of one batch have
// one instant, and no order: so it makes no difference whether a release found the lock
// free or another owner's, who released it in the same batch.
func seen(r Result) []string {
	lines := slices.DeleteFunc(r.Timeline, func(line string) bool { return !strings.Contains(line, "  instance ") })
	for i, line := range lines {
		lines[i] = notMine.ReplaceAllString(line, "$1: not its own")
	}
	return lines
}

var notMine = regexp.MustCompile(`(release \w+ of \w+[^:;]*): [nx]\b`)
