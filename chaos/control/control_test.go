package control

import (
	"bytes"
	"context"
	"errors"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"

	"github.com/quorumlock/redlock"
	"github.com/quorumlock/redlock/chaos/internal/cli"
	"github.com/quorumlock/redlock/fence"
	"github.com/quorumlock/redlock/internal/redistest"
)

func TestMain(m *testing.M) {
	if Child() {
		return
	}
	goleak.VerifyTestMain(m)
}

// times is how often each scenario is played.
func times(t *testing.T) int {
	text := os.Getenv("REDLOCK_CONTROLS")
	if text == "" {
		return 1
	}
	n, err := strconv.Atoi(text)
	require.NoError(t, err)
	require.Positive(t, n)
	return n
}

// Each fault does harm to a resource without tokens, whenever it is played; nothing
// does without the fault; and each protection stops it.
func TestControls(t *testing.T) {
	redistest.Need(t)
	n := times(t)
	scenarios := Scenarios()
	verdicts := make([]*Verdict, len(scenarios))
	t.Run("all", func(t *testing.T) {
		for i, s := range scenarios {
			t.Run(s.Name, func(t *testing.T) {
				t.Parallel()
				v := Run(t.Context(), s, n)
				verdicts[i] = v
				require.NoError(t, v.Err())
				if v.Skipped() != "" {
					t.Skip(v.Skipped())
				}
				require.True(t, v.Shown())
				require.Equal(t, Tally{Shown: n, Played: n}, v.Harm)
			})
		}
	})
	if n > 1 {
		var table strings.Builder
		played := verdicts[:0]
		for _, v := range verdicts {
			if v != nil { // -run may name one
				played = append(played, v)
			}
		}
		Table(&table, played)
		t.Logf("\n%s", &table)
	}
}

func TestAPlayThatShowsSomethingElseIsNoControl(t *testing.T) {
	// A fault, and what it does.
	harm := func(x *Stage) {
		x.Fault(func() { x.Harm(true) })
		x.Refuse(redlock.ErrTaken)
	}
	stopped := func(err error) Protection {
		return Rule("a rule", redlock.ErrTaken, func(x *Stage) { x.Refuse(err) })
	}
	good := Scenario{Name: "good", Break: harm, Protect: []Protection{stopped(redlock.ErrTaken)}}
	v := Run(t.Context(), good, 2)
	require.NoError(t, v.Err())
	require.True(t, v.Shown())
	require.Equal(t, "two holders", v.What)

	for want, s := range map[string]Scenario{
		"nothing went wrong: redlock: taken":                    {Break: func(x *Stage) { x.Refuse(redlock.ErrTaken) }},
		"two holders without the fault":                         {Break: func(x *Stage) { x.Harm(true) }},
		"without the fault, nobody was refused":                 {Break: func(x *Stage) { x.Fault(func() { x.Harm(true) }) }},
		"two holders in spite of fencing":                       {Break: harm, Protect: []Protection{Fencing}},
		`a rule: not stopped by "redlock: taken", but by: redl`: {Break: harm, Protect: []Protection{stopped(redlock.ErrNoQuorum)}},
		"but by: nothing stopped it":                            {Break: harm, Protect: []Protection{Rule("a rule", redlock.ErrTaken, func(*Stage) {})}},
		"it broke":                                              {Break: func(x *Stage) { x.Fatal("it broke") }},
	} {
		s.Name = "bad"
		v := Run(t.Context(), s, 1)
		require.False(t, v.Shown(), want)
		require.ErrorContains(t, v.Err(), "bad: ")
		require.ErrorContains(t, v.Err(), want)
	}

	v = Run(t.Context(), Scenario{Break: func(x *Stage) { x.Skipf("for want of something") }}, 1)
	require.False(t, v.Shown(), "skipped is not shown")
	require.Equal(t, "for want of something", v.Skipped())
}

// The register is the judge of all: a write of an older holder is harm when a newer
// one has tried to write, and only then.
func TestTheRegisterKnowsAStaleWrite(t *testing.T) {
	writes := func(h how, tokens []uint64, order ...int) Outcome {
		return play(t.Context(), h, func(x *Stage) {
			var holders []*Holder
			for _, token := range tokens {
				holders = append(holders, x.holder(token))
			}
			for _, i := range order {
				holders[i].Write()
			}
		})
	}
	tokens := []uint64{7, 9}
	require.Equal(t, Outcome{}, writes(how{}, tokens, 0, 0, 1, 1))
	require.Equal(t, Outcome{Harm: "stale write"}, writes(how{}, tokens, 1, 0))
	require.Equal(t, Outcome{}, writes(how{fenced: true}, tokens, 0, 1))
	o := writes(how{fenced: true}, tokens, 1, 0)
	require.Empty(t, o.Harm)
	require.ErrorIs(t, o.Refusal, fence.ErrStale)
	o = writes(how{fenced: true}, []uint64{9, 7}, 0, 1, 0)
	require.Equal(t, "stale write", o.Harm, "the newer one was refused, for want of a larger token")

	both := play(t.Context(), how{}, func(x *Stage) {
		a, b := x.holder(0), x.holder(0)
		a.until, b.until = time.Now().Add(time.Hour), time.Now().Add(time.Hour)
		x.Collide(a, b)
	})
	require.Equal(t, "two holders", both.Harm)
}

func TestEveryScenarioIsAFileAndARow(t *testing.T) {
	readme, err := os.ReadFile("../README.md")
	require.NoError(t, err)
	results, err := os.ReadFile("results.md")
	require.NoError(t, err)
	seen := map[string]bool{}
	for _, s := range Scenarios() {
		require.False(t, seen[s.Name], s.Name)
		seen[s.Name] = true
		file := strings.ReplaceAll(s.Name, "-", "_") + ".go"
		text, err := os.ReadFile(file)
		require.NoError(t, err)
		require.Contains(t, string(text), strconv.Quote(s.Name))
		require.Contains(t, string(readme), "["+s.Name+"](control/"+file+")")
		require.Contains(t, string(results), "\n"+s.Name+" ")
		require.Regexp(t, "^https?://", s.Source)
		require.NotEmpty(t, s.Shows)
		require.NotEmpty(t, s.Protect)
	}
	require.GreaterOrEqual(t, len(seen), 20)
	require.Equal(t, strings.Count(string(readme), "](control/"), len(seen)+1, "and of results.md")
}

func command(ctx context.Context, args ...string) (code int, out, errs string) {
	var stdout, stderr bytes.Buffer
	code = Main(ctx, args, &stdout, &stderr)
	return code, stdout.String(), stderr.String()
}

func TestTheCommandPrintsVerdicts(t *testing.T) {
	redistest.Need(t)
	code, out, errs := command(t.Context(), "-n", "2", "flush-all", "owner-reused")
	require.Empty(t, errs)
	require.Zero(t, code)
	require.Regexp(t, `(?m)^flush-all +harmless 2/2 +two holders 2/2 +fencing 2/2$`, out)
	require.Regexp(t, `(?m)^owner-reused +harmless 2/2 +two holders 2/2 +fencing 2/2, an owner for each try 2/2$`, out)
}

func TestTheCommandListsScenarios(t *testing.T) {
	code, out, errs := command(t.Context(), "-list")
	require.Zero(t, code)
	require.Empty(t, errs)
	require.Equal(t, len(Scenarios()), strings.Count(out, "\n"))
	require.Regexp(t, `(?m)^flush-all +FLUSHALL on a server`, out)
}

func TestWrongUseIsAClearLine(t *testing.T) {
	for want, args := range map[string][]string{
		"chaos control: there is no scenario \"nope\"; -list shows all\n": {"flush-all", "nope"},
		"chaos control: -n and -p are at least 1\n":                       {"-n", "0"},
	} {
		code, out, errs := command(t.Context(), args...)
		require.Equal(t, cli.Usage, code)
		require.Empty(t, out)
		require.Equal(t, want, errs)
	}
	t.Setenv("REDLOCK_REDIS_SERVER", filepath.Join(t.TempDir(), "none"))
	code, out, errs := command(t.Context(), "flush-all")
	require.Equal(t, cli.Unavailable, code)
	require.Empty(t, out)
	require.Contains(t, errs, "no redis-server on PATH")
	require.Equal(t, 1, strings.Count(errs, "\n"))
}

// Its servers are gone with their directories when the command returns.
func TestAnInterruptedRunLeavesNothing(t *testing.T) {
	redistest.Need(t)
	dir := t.TempDir()
	t.Setenv("TMPDIR", dir)
	ctx, interrupt := context.WithCancel(t.Context())
	var watch sync.WaitGroup
	watch.Go(func() {
		defer interrupt()
		for ctx.Err() == nil {
			if servers, _ := filepath.Glob(filepath.Join(dir, "redistest-*", "redis.log")); len(servers) > 5 {
				return
			}
			time.Sleep(time.Millisecond)
		}
	})
	code, out, errs := command(ctx, "-n", "1000", "-p", "4", "restart", "failover", "client-retry", "paused-process")
	watch.Wait()
	require.Equal(t, cli.Interrupted, code)
	require.Empty(t, out)
	require.Equal(t, "chaos control: interrupted; no server and no process is left\n", errs)
	left, err := os.ReadDir(dir)
	require.NoError(t, err)
	require.Empty(t, left)
}

func TestARefusalThatCheckFindsHasItsText(t *testing.T) {
	redistest.Need(t)
	o := play(t.Context(), Check("eviction").how(how{}), evict)
	require.ErrorIs(t, o.Refusal, errFound)
	require.ErrorContains(t, o.Refusal, "unsafe: eviction: ")
	o = play(t.Context(), Check("none").how(how{}), evict)
	require.False(t, errors.Is(o.Refusal, errFound))
}
