package mutants

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"
)

// Time limits. They are for mutants that make something wait for ever; on a machine
// that is busy with other things, the compiler alone takes minutes.
const (
	buildLimit = 20 * time.Minute
	testLimit  = 3 * time.Minute
	simLimit   = 15 * time.Minute
)

// An Outcome is what came of a mutant. What a test says of code that was not built, or
// that it says without the fault, too, shows nothing: those are no catches.
type Outcome string

// The outcomes.
const (
	Caught    Outcome = "caught"
	Survived  Outcome = "SURVIVED"
	NotBuilt  Outcome = "does not build"
	NotSound  Outcome = "fails without it" // the tests, or they are not there
	notWanted Outcome = ""
)

// A Verdict is what was found out about a mutant.
type Verdict struct {
	Mutant  Mutant
	Outcome Outcome
	By      string // what failed, or why there is no verdict
	Took    time.Duration
}

// A runner tries mutants on the module at root.
type runner struct {
	root      string
	dir       string // for what it builds
	overlay   string // all mutants
	schedules int    // of the simulation, at most; 0: the tests
	simSeed   uint64
	built     map[string]error // by package: why its tests don't build
	sound     map[string]error // by package and pattern: what they say without a fault
}

// newRunner returns a runner of mutants. It puts what it builds into dir.
func newRunner(root, dir string, mutants []Mutant, schedules int, simSeed uint64) (*runner, error) {
	overlay, err := schemata(root, dir, mutants)
	if err != nil {
		return nil, err
	}
	return &runner{
		root: root, dir: dir, overlay: overlay, schedules: schedules, simSeed: simSeed,
		built: map[string]error{}, sound: map[string]error{},
	}, nil
}

// moduleRoot returns the directory of the module.
func moduleRoot(ctx context.Context) (string, error) {
	out, err := exec.CommandContext(ctx, "go", "list", "-m", "-f", "{{.Dir}}", "github.com/quorumlock/redlock").Output()
	if err != nil {
		return "", fmt.Errorf("it runs in the source tree, with the go command: %w", err)
	}
	return strings.TrimSpace(string(out)), nil
}

// try finds out about one mutant: by the simulation, if there is to be one, and
// otherwise by its tests.
func (r *runner) try(ctx context.Context, m Mutant) Verdict {
	v := Verdict{Mutant: m}
	begin := time.Now()
	if r.schedules > 0 {
		v.Outcome, v.By = r.simulate(ctx, &m)
	} else {
		v.Outcome, v.By = r.test(ctx, &m)
	}
	v.Took = time.Since(begin)
	return v
}

// test tries m with its tests.
func (r *runner) test(ctx context.Context, m *Mutant) (Outcome, string) {
	binary, err := r.binary(ctx, m.Package())
	if err != nil {
		return NotBuilt, firstLine(err.Error())
	}
	without := func() error { return r.checkTests(ctx, binary, m) }
	if err := r.passes(m.Package()+" "+m.pattern(), without); err != nil {
		return NotSound, firstLine(err.Error())
	}
	out, err := r.run(ctx, binary, m, m.Name)
	switch {
	case ctx.Err() != nil:
		return notWanted, "interrupted"
	case err == nil:
		return Survived, ""
	case strings.Contains(out, "panic: test timed out"):
		return Caught, strings.TrimSuffix("it does not end; "+strings.Join(failed(out), ", "), "; ")
	}
	if names := failed(out); len(names) > 0 {
		return Caught, strings.Join(names, ", ")
	}
	return Caught, "it ends in: " + crash(out)
}

// passes returns what check does without a fault, which it is asked for once.
func (r *runner) passes(key string, check func() error) error {
	err, known := r.sound[key]
	if !known {
		err = check()
		r.sound[key] = err
	}
	return err
}

// checkTests fails unless the tests of m pass without it.
func (r *runner) checkTests(ctx context.Context, binary string, m *Mutant) error {
	out, err := r.run(ctx, binary, m, "")
	switch {
	case strings.Contains(out, "no tests to run"):
		return errors.New("there is no such test")
	case err != nil && len(failed(out)) > 0:
		return errors.New(strings.Join(failed(out), ", "))
	case err != nil:
		return errors.New(crash(out))
	}
	return nil
}

var binaryName = strings.NewReplacer("/", "-", ".", "root")

// binary returns the tests of a package, with all mutants, compiled: on its own, as go
// test tells a test that fails and one that does not build with the same exit code.
func (r *runner) binary(ctx context.Context, dir string) (string, error) {
	binary := filepath.Join(r.dir, binaryName.Replace(dir)+".test")
	err, known := r.built[dir]
	if !known {
		err = r.compile(ctx, dir, binary)
		r.built[dir] = err
	}
	return binary, err
}

func (r *runner) compile(ctx context.Context, dir, binary string) error {
	ctx, cancel := context.WithTimeout(ctx, buildLimit)
	defer cancel()
	// What only a debugger needs takes the linker longer than the rest.
	cmd := exec.CommandContext(ctx, "go", "test", "-c", "-vet=off", "-ldflags=-s -w", "-overlay", r.overlay, "-o", binary, "./"+dir)
	cmd.Dir = r.root
	if out, err := cmd.CombinedOutput(); err != nil {
		return fmt.Errorf("%w: %s", err, errorLine(string(out)))
	}
	return nil
}

// run runs the tests of m, with a mutant or with none.
func (r *runner) run(ctx context.Context, binary string, m *Mutant, mutant string) (string, error) {
	cmd := r.command(ctx, m.Package(), binary, mutant, "-test.run", m.pattern(), "-test.timeout", testLimit.String(), "-test.failfast")
	out, err := cmd.CombinedOutput()
	return string(out), err
}

// command is a test binary that ends with ctx. The servers that it started end with
// it: they ask the kernel for that.
func (r *runner) command(ctx context.Context, dir, binary, mutant string, args ...string) *exec.Cmd {
	cmd := exec.CommandContext(ctx, binary, args...)
	cmd.Dir = filepath.Join(r.root, filepath.FromSlash(dir))
	cmd.Env = append(os.Environ(), switchEnv+"="+mutant, "REDLOCK_REQUIRE_REDIS=1") // a test that skips catches nothing
	cmd.Cancel = func() error { return cmd.Process.Signal(syscall.SIGTERM) }
	cmd.WaitDelay = 5 * time.Second
	return cmd
}

const simDir = "chaos/sim"

// simulate tries m with the simulation.
func (r *runner) simulate(ctx context.Context, m *Mutant) (Outcome, string) {
	test := "^TestCore$"
	if m.scripted() {
		test = "^TestWholeStack$" // the core has a model of the script
	}
	binary, err := r.binary(ctx, simDir)
	if err != nil {
		return NotBuilt, firstLine(err.Error())
	}
	for first, end := r.simSeed, r.simSeed+uint64(r.schedules); first < end; { //nolint:gosec // not negative
		f, err := r.runSim(ctx, binary, m.Name, test, first, end-first)
		switch {
		case ctx.Err() != nil:
			return notWanted, "interrupted"
		case err != nil && strings.Contains(err.Error(), "test timed out"):
			return Survived, "for " + simLimit.String() // it is slow; one schedule that hangs ends in another way
		case err != nil:
			return Caught, "it ends in: " + firstLine(err.Error())
		case f == nil:
			return Survived, ""
		}
		// What it finds in that schedule without the mutant, too, is no catch.
		without := func() error {
			f, err := r.runSim(ctx, binary, "", test, f.seed, 1)
			if f != nil {
				return errors.New(f.rule)
			}
			return err
		}
		if r.passes(fmt.Sprintf("%s %d", test, f.seed), without) == nil {
			return Caught, fmt.Sprintf("schedule %d: %s", f.seed-r.simSeed+1, f.rule)
		}
		first = f.seed + 1
	}
	return Survived, ""
}

// A finding is the first schedule that broke a rule.
type finding struct {
	seed uint64
	rule string
}

// A schedule that breaks a rule prints its seed, when that was, and the rule, before it
// is shrunk.
var foundLine = regexp.MustCompile(`\.go:\d+: seed (\d+): [0-9.]+ ms: ([^:]*)`)

// runSim runs n schedules, and returns the first that broke a rule, if one did: it does
// not wait for that to be shrunk.
func (r *runner) runSim(ctx context.Context, binary, mutant, test string, seed, n uint64) (*finding, error) {
	simCtx, cancel := context.WithCancel(ctx)
	defer cancel()
	cmd := r.command(simCtx, simDir, binary, mutant, "-test.run", test, "-test.v", "-test.timeout", simLimit.String(),
		"-schedules", strconv.FormatUint(n, 10), "-seed", strconv.FormatUint(seed, 10))
	read, write := io.Pipe()
	cmd.Stdout, cmd.Stderr = write, write
	var found *finding
	var rest bytes.Buffer
	done := make(chan struct{})
	go func() {
		defer close(done)
		lines := bufio.NewScanner(read)
		lines.Buffer(nil, 1<<20)
		for lines.Scan() {
			if f := findingOf(lines.Text()); f != nil && found == nil {
				found = f
				cancel()
			}
			fmt.Fprintln(&rest, lines.Text())
		}
		_, _ = io.Copy(io.Discard, read) // after a line that was too long
	}()
	err := cmd.Run()
	write.Close()
	<-done
	switch {
	case found != nil:
		return found, nil
	case err != nil:
		return nil, errors.New(crash(rest.String()))
	}
	return nil, nil
}

// findingOf reads a line of the simulation; nil if it is about something else.
func findingOf(line string) *finding {
	hit := foundLine.FindStringSubmatch(line)
	if hit == nil {
		return nil
	}
	seed, err := strconv.ParseUint(hit[1], 10, 64)
	if err != nil {
		return nil
	}
	return &finding{seed, hit[2]}
}

var failLine = regexp.MustCompile(`(?m)^--- FAIL: (\w+)`)

// failed names the tests that failed, by what a test binary printed.
func failed(out string) []string {
	var names []string
	for _, m := range failLine.FindAllStringSubmatch(out, -1) {
		if !slices.Contains(names, m[1]) {
			names = append(names, m[1])
		}
	}
	return names
}

// crash returns the line of a test binary's output that tells how it ended.
func crash(out string) string {
	for line := range strings.Lines(out) {
		for _, word := range []string{"panic:", "fatal error:", "goleak:", "deadlock"} {
			if strings.Contains(line, word) {
				return strings.TrimSpace(line)
			}
		}
	}
	return firstLine(out)
}

// errorLine returns the first line of the go command's output that is a fault.
func errorLine(out string) string {
	for line := range strings.Lines(out) {
		if !strings.HasPrefix(line, "#") && strings.TrimSpace(line) != "" {
			return strings.TrimSpace(line)
		}
	}
	return ""
}

func firstLine(s string) string {
	line, _, _ := strings.Cut(strings.TrimSpace(s), "\n")
	return line
}
