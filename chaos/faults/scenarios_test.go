package faults

import (
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/quorumlock/redlock/internal/redistest"
)

// What all scenarios together have to come to. Under the race detector a machine is
// several times slower.
const (
	leastOperations = 20_000
	leastFaults     = 300
)

// runTime is how long each scenario has faults; REDLOCK_FAULTS=1m makes it longer, in
// runs of a few seconds.
func runTime(t *testing.T) time.Duration {
	text := os.Getenv("REDLOCK_FAULTS")
	if text == "" {
		return 2500 * time.Millisecond
	}
	d, err := time.ParseDuration(text)
	require.NoError(t, err)
	return d
}

// Inside the assumptions there are never two holders, and no key is left behind; outside
// of them, a resource that checks tokens is right all the same, and one that doesn't is
// not.
func TestScenarios(t *testing.T) {
	redistest.Need(t)
	duration := runTime(t)
	var ran, operations, faults atomic.Int64
	t.Run("all", func(t *testing.T) {
		for _, s := range scenarios() {
			t.Run(s.name, func(t *testing.T) {
				t.Parallel()
				broke := false
				c := Config{Seed: 1, Processes: 2, Goroutines: 32, Keep: t.ArtifactDir()}
				for left := duration; left > 0 || s.breaks && !broke && c.Seed <= mostTries; left -= c.For {
					c.For = min(max(left, 2*time.Second), longestRun)
					c.Operations = int(c.For.Seconds() * leastPerSecond)
					r, err := s.run(t.Context(), c)
					if errors.Is(err, redistest.ErrNoClock) {
						t.Skipf("SKIPPED, NOT PASSED: %v", err)
					}
					require.NoError(t, err, "seed %d", c.Seed)
					t.Logf("seed %d: %d operations, %d locks; %d faults hit, %d did not; %d double holds, %d stale accesses, %d of them behind a guard, which refused %d; recovery after %v",
						c.Seed, r.Operations, r.Holds, r.Faults, r.Misses, len(r.Overlaps), len(r.Stale)+len(r.StaleFenced), len(r.StaleFenced), r.Refused, r.Recovery)
					require.Empty(t, r.Failures, "again: go run ./chaos faults -scenario %s -seed %d", s.name, c.Seed)
					operations.Add(int64(r.Operations))
					faults.Add(int64(r.Faults))
					broke = broke || len(r.Stale) > 0
					c.Seed++
				}
				ran.Add(1)
				require.True(t, broke || !s.breaks, "no stale access without a guard: it could not have shown one behind a guard either")
			})
		}
	})
	if t.Failed() || int(ran.Load()) < len(scenarios()) {
		return // -run has chosen some, or no clock can be set here
	}
	t.Logf("%d operations checked, %d faults that hit something", operations.Load(), faults.Load())
	require.GreaterOrEqual(t, faults.Load(), int64(leastFaults), "too few faults")
	require.GreaterOrEqual(t, operations.Load(), int64(leastOperations), "too little happened")
}

// mostTries is how often a scenario that must break what is not guarded may try to.
const mostTries = 5

func TestTheSameSeedIsTheSameSchedule(t *testing.T) {
	for _, s := range scenarios() {
		steps := func(seed uint64) (names []string) {
			for lane := range s.lanes {
				next := s.plan(seed, lane, s.instances, 2)
				for range 20 {
					p, _ := next()
					require.Less(t, p.target, max(s.instances, 2))
					require.Equal(t, lane, p.target%s.lanes, "no other lane has this target")
					require.Less(t, p.length, p.fault.most)
					names = append(names, p.fault.name, p.length.String(), p.gap.String())
				}
			}
			return names
		}
		require.Equal(t, steps(7), steps(7), s.name)
		require.NotEqual(t, steps(7), steps(8), s.name)
		require.LessOrEqual(t, s.instances, mostInstances)
	}
}

// A fault that meets nobody hits nothing, and what it did is undone.
func TestAFaultWithoutTrafficHitsNothing(t *testing.T) {
	redistest.Need(t)
	kinds := map[string]fault{}
	for _, s := range scenarios() {
		for _, f := range s.faults {
			kinds[f.name] = f
		}
	}
	delete(kinds, stopClient.name)
	// They count bytes: also of what servers write of their own.
	delete(kinds, tearTail.name)
	delete(kinds, failOver.name)
	require.Greater(t, len(kinds), 15)
	s := &scenario{instances: 1, servers: durable, clocks: true}
	a, err := start(t.Context(), s, Config{}) // without clients
	if errors.Is(err, redistest.ErrNoClock) {
		delete(kinds, clockJumps.name)
		delete(kinds, clockRuns.name)
		s.clocks = false
		a, err = start(t.Context(), s, Config{})
	}
	require.NoError(t, err)
	defer func() { require.NoError(t, a.close()) }()
	in := a.instances[0]
	for name, f := range kinds {
		hits, err := f.do(t.Context(), &strike{arena: a, instance: in, length: f.least, rand: newRand(1, 1)})
		require.NoError(t, err, name)
		require.Zero(t, hits, name)
		conn, err := net.Dial("tcp", in.proxy.Addr())
		require.NoError(t, err)
		require.NoError(t, conn.SetDeadline(time.Now().Add(10*time.Second)))
		_, err = conn.Write([]byte("SET k v\r\nDEL k\r\n"))
		require.NoError(t, err)
		answer := make([]byte, 9)
		_, err = io.ReadFull(conn, answer)
		require.NoError(t, err, name)
		require.Equal(t, "+OK\r\n:1\r\n", string(answer), name)
		require.NoError(t, conn.Close())
		require.Eventually(t, func() bool { return in.proxy.Conns() == 0 }, 10*time.Second, ms)
	}
}

// The README has a row for each scenario, with the instances that it has.
func TestTheReadmeHasEveryScenario(t *testing.T) {
	text, err := os.ReadFile("../README.md")
	require.NoError(t, err)
	rows := 0
	for line := range strings.Lines(string(text)) {
		if strings.HasPrefix(line, "| `") {
			rows++
		}
	}
	require.Equal(t, len(scenarios()), rows)
	for _, s := range scenarios() {
		require.Regexp(t, fmt.Sprintf("(?m)^\\| `%s` \\|[^|]+\\| %d \\|", s.name, s.instances), string(text))
	}
}
