package mutants

import (
	"bytes"
	"context"
	"fmt"
	"go/ast"
	"go/build"
	"go/importer"
	"go/parser"
	"go/token"
	"go/types"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/alicebob/miniredis/v2"
	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"

	"github.com/quorumlock/redlock/chaos/internal/cli"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func root(t *testing.T) string {
	t.Helper()
	dir, err := moduleRoot(t.Context())
	require.NoError(t, err)
	return dir
}

// The list does not rot: each mutant still finds its place, and is a program.
func TestEveryMutantCompiles(t *testing.T) {
	dir := root(t)
	server := miniredis.RunT(t)
	client := redis.NewClient(&redis.Options{Addr: server.Addr()})
	defer client.Close()
	packages := map[string]*sources{}
	for _, m := range Mutants() {
		mutated, _, _, err := m.apply(dir)
		require.NoError(t, err)
		if m.scripted() {
			require.NoError(t, client.ScriptLoad(t.Context(), mutated).Err(), m.Name)
			continue
		}
		p := packages[m.Package()]
		if p == nil {
			p = load(t, dir, m.Package())
			packages[m.Package()] = p
		}
		require.NoError(t, p.check("", ""), "without a mutant")
		require.NoError(t, p.check(filepath.Base(m.File), mutated), m.Name)
	}
	require.Error(t, packages["."].check("drift.go", "package redlock\n"), "what is not there is missed")
}

// sources are the files of a package, and what it imports, compiled.
type sources struct {
	files    *token.FileSet
	parsed   map[string]*ast.File
	importer types.Importer
}

func load(t *testing.T, root, dir string) *sources {
	t.Helper()
	p := &sources{files: token.NewFileSet(), parsed: map[string]*ast.File{}}
	full := filepath.Join(root, dir)
	pkg, err := build.ImportDir(full, 0)
	require.NoError(t, err)
	for _, name := range pkg.GoFiles {
		p.parsed[name], err = parser.ParseFile(p.files, filepath.Join(full, name), nil, parser.SkipObjectResolution)
		require.NoError(t, err)
	}
	list := exec.CommandContext(t.Context(), "go", "list", "-export", "-deps", "-f", "{{.ImportPath}} {{.Export}}", "./"+dir)
	list.Dir = root
	out, err := list.Output()
	require.NoError(t, err)
	exports := map[string]string{}
	for line := range strings.Lines(string(out)) {
		path, export, _ := strings.Cut(strings.TrimSpace(line), " ")
		exports[path] = export
	}
	p.importer = importer.ForCompiler(p.files, "gc", func(path string) (io.ReadCloser, error) { return os.Open(exports[path]) })
	return p
}

// check type-checks the package, with another text of one file.
func (p *sources) check(name, text string) error {
	var files []*ast.File
	for other, f := range p.parsed {
		if other == name {
			var err error
			if f, err = parser.ParseFile(p.files, name, text, parser.SkipObjectResolution); err != nil {
				return err
			}
		}
		files = append(files, f)
	}
	config := types.Config{Importer: p.importer}
	_, err := config.Check("mutated", p.files, files, nil)
	return err
}

func TestEveryMutantNamesTestsThatExist(t *testing.T) {
	dir := root(t)
	there := map[string]map[string]bool{}
	for _, m := range Mutants() {
		if there[m.Package()] == nil {
			there[m.Package()] = tests(t, filepath.Join(dir, m.Package()))
		}
		require.NotEmpty(t, m.Tests, m.Name)
		for _, name := range m.Tests {
			require.True(t, there[m.Package()][name], "%s: there is no %s", m.Name, name)
		}
	}
}

// tests returns the names of the tests in dir.
func tests(t *testing.T, dir string) map[string]bool {
	t.Helper()
	files, err := filepath.Glob(filepath.Join(dir, "*_test.go"))
	require.NoError(t, err)
	names := map[string]bool{}
	for _, file := range files {
		f, err := parser.ParseFile(token.NewFileSet(), file, nil, parser.SkipObjectResolution)
		require.NoError(t, err)
		for _, d := range f.Decls {
			if d, ok := d.(*ast.FuncDecl); ok && d.Recv == nil && strings.HasPrefix(d.Name.Name, "Test") {
				names[d.Name.Name] = true
			}
		}
	}
	return names
}

func TestMutantsAreManyAndDistinct(t *testing.T) {
	names, changes := map[string]bool{}, map[string]bool{}
	seen := 0
	for _, m := range Mutants() {
		require.Regexp(t, `^[a-z0-9]+(-[a-z0-9]+)*$`, m.Name)
		require.NotEmpty(t, m.Danger)
		require.False(t, names[m.Name], m.Name)
		change := m.File + m.Old + m.New
		require.False(t, changes[change], m.Name)
		names[m.Name], changes[change] = true, true
		if m.Unseen == "" {
			seen++
		}
	}
	require.GreaterOrEqual(t, len(names), 40)
	require.GreaterOrEqual(t, seen, 30, "that the simulation finds")
}

// Five a day are all of them after so many days.
func TestEveryMutantHasItsTurn(t *testing.T) {
	all := Mutants()
	turns := map[string]int{}
	for seed := range len(all) {
		five := rotate(all, 5, uint64(20_000+seed))
		require.Len(t, five, 5)
		for _, m := range five {
			turns[m.Name]++
		}
	}
	for _, m := range all {
		require.Equal(t, 5, turns[m.Name], m.Name)
	}
	require.Equal(t, rotate(all, 5, 7), rotate(all, 5, 7))
	require.Len(t, rotate(all[:3], 5, 7), 3)
}

// scratch is a module with a function, a test that finds a fault of it, and others.
func scratch(t *testing.T) string {
	t.Helper()
	dir := t.TempDir()
	for name, text := range map[string]string{
		"go.mod": "module scratch\n\ngo 1.26.0\n",
		"lib.go": `package redlock

func Sum(a, b int) int { return a + b }

var calls int

func Call() {
	calls++
}
`,
		"lib_test.go": `package redlock

import (
	"os"
	"testing"
)

func TestSum(t *testing.T) {
	if Sum(2, 2) != 4 {
		t.Fatal("it is not 4")
	}
}

func TestSumOfNothing(t *testing.T) { Sum(0, 0) }

func TestCall(t *testing.T) {
	if Call(); calls != 1 {
		panic("not called")
	}
}

func TestThatFails(t *testing.T) { t.Fatal("always") }

func TestThatNeedsServers(t *testing.T) {
	if os.Getenv("REDLOCK_REQUIRE_REDIS") != "1" {
		t.Skip()
	}
	t.Run("sub", func(t *testing.T) {
		if Sum(1, 1) != 2 {
			t.Fatal("it is not 2")
		}
	})
}
`,
	} {
		require.NoError(t, os.WriteFile(filepath.Join(dir, name), []byte(text), 0o600))
	}
	return dir
}

// What is no catch is not taken for one.
func TestACatchIsATestThatFailsOnlyWithTheMutant(t *testing.T) {
	dir := scratch(t)
	m := func(name, before, after string, tests ...string) Mutant {
		return Mutant{Name: name, File: "lib.go", Old: before, New: after, Tests: tests}
	}
	const sum, minus = "return a + b", "return a - b"
	mutants := []Mutant{
		m("one", sum, minus, "TestSum"),
		m("two", sum, "return a * b", "TestSum"), // 2*2 is 4
		m("three", sum, minus, "TestSumOfNothing"),
		m("four", sum, minus, "TestThatFails"),
		m("five", sum, minus, "TestThatIsNotThere"),
		m("six", "calls++", "", "TestCall"),
		m("seven", sum, minus, "TestThatNeedsServers"),
	}
	r, err := newRunner(dir, t.TempDir(), mutants, 0, 1)
	require.NoError(t, err)
	for i, want := range []Verdict{
		{Outcome: Caught, By: "TestSum"},
		{Outcome: Survived},
		{Outcome: Survived},
		{Outcome: NotSound, By: "TestThatFails"},
		{Outcome: NotSound, By: "there is no such test"},
		{Outcome: Caught, By: "TestCall"},
		{Outcome: Caught, By: "TestThatNeedsServers"},
	} {
		v := r.try(t.Context(), mutants[i])
		require.Equal(t, want.Outcome, v.Outcome, "%s: %s", mutants[i].Name, v.By)
		require.Equal(t, want.By, v.By, mutants[i].Name)
	}

	bad := m("bad", sum, "return c", "TestSum")
	r, err = newRunner(dir, t.TempDir(), []Mutant{bad}, 0, 1)
	require.NoError(t, err)
	v := r.try(t.Context(), bad)
	require.Equal(t, NotBuilt, v.Outcome)
	require.Contains(t, v.By, "undefined: c")

	for _, m := range []Mutant{
		m("gone", "return b + a", minus),
		m("twice", "int", "uint"),
		m("outside", "var calls int", "var calls = 1"),
	} {
		_, err := newRunner(dir, t.TempDir(), []Mutant{m}, 0, 1)
		require.ErrorContains(t, err, m.Name)
	}
}

func TestAnInterruptedRunGivesNoVerdict(t *testing.T) {
	dir := scratch(t)
	m := Mutant{Name: "one", File: "lib.go", Old: "return a + b", New: "select {}", Tests: []string{"TestSum"}}
	r, err := newRunner(dir, t.TempDir(), []Mutant{m}, 0, 1)
	require.NoError(t, err)
	_, err = r.binary(t.Context(), ".")
	require.NoError(t, err)
	require.NoError(t, r.passes(". "+m.pattern(), func() error { return nil }))
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	v := r.try(ctx, m)
	require.NotEqual(t, Caught, v.Outcome)
}

func TestWrongUseIsAClearLine(t *testing.T) {
	for want, args := range map[string][]string{
		`there is no mutant "nobody"`:           {"nobody"},
		"-n is 0 or more, without names":        {"-n", "2", "no-drift"},
		"-schedules at least 1":                 {"-schedules", "0"},
		"flag provided but not defined: -often": {"-often"},
	} {
		var out, errs bytes.Buffer
		require.Equal(t, cli.Usage, Main(t.Context(), args, &out, &errs))
		require.Contains(t, errs.String(), want)
		require.Empty(t, out.String())
	}
}

func TestTheListSaysWhatEachDoes(t *testing.T) {
	var out, errs bytes.Buffer
	require.Zero(t, Main(t.Context(), []string{"-list", "no-drift", "seed-constant"}, &out, &errs))
	require.Empty(t, errs.String())
	require.Len(t, strings.Split(strings.TrimSpace(out.String()), "\n"), 2)
	require.Contains(t, out.String(), "drift.go")
	out.Reset()
	require.Zero(t, Main(t.Context(), []string{"-list", "-n", "5", "-seed", "3"}, &out, &errs))
	require.Equal(t, 5, strings.Count(out.String(), "\n"))
}

func TestTheTableSaysWhy(t *testing.T) {
	seen, unseen := Mutant{Name: "seen"}, Mutant{Name: "unseen", Unseen: "it is small"}
	var out bytes.Buffer
	table(&out, []Verdict{{Mutant: seen, Outcome: Caught, By: "schedule 3: a rule"}, {Mutant: unseen, Outcome: Survived}, {Mutant: unseen, Outcome: Caught, By: "schedule 4: a rule"}}, true)
	require.Equal(t, fmt.Sprint(
		"MUTANT  VERDICT   BY\n",
		"seen    caught    schedule 3: a rule\n",
		"unseen  SURVIVED  as expected: it is small\n",
		"unseen  caught    schedule 4: a rule (not expected)\n"), out.String())
}

// What the simulation prints of a schedule that breaks a rule.
func TestTheRuleIsReadFromTheSimulation(t *testing.T) {
	require.Equal(t, &finding{7, "two holders at a time"}, findingOf("    sim_test.go:146: seed 7: 12.500000 ms: two holders at a time: client 1: x"))
	require.Nil(t, findingOf("    sim_test.go:103: 20 schedules from seed 1: 7 acquired, 3 extended"))
}
