package sim

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strconv"
	"sync"
	"time"

	"github.com/quorumlock/redlock/chaos/internal/cli"
	"github.com/quorumlock/redlock/internal/redistest"
)

// Main is the command "sim": it runs schedules as a test, as virtual time exists in
// tests only, and prints what they had in them. It returns the exit code.
func Main(ctx context.Context, args []string, stdout, stderr io.Writer) int {
	flags := flag.NewFlagSet("sim", flag.ContinueOnError)
	flags.SetOutput(stderr)
	whole := flags.Bool("whole", false, "the whole stack, with the Lua script in miniredis, and not the core")
	replays := flags.Bool("replays", false, "run each twice, and compare all that happens; every tenth is one of the whole stack")
	n := flags.Int("schedules", 1000, "how many `schedules`")
	seed := flags.Uint64("seed", 1, "the `seed` of the first one; the others have the next ones")
	jobs := flags.Int("jobs", runtime.NumCPU(), "how many `processes` they are shared out to")
	flags.Usage = func() {
		fmt.Fprint(stderr, "Usage: go run ./chaos sim [-whole | -replays] [-schedules schedules] [-seed seed] [-jobs processes]\n\n"+
			"Runs the library in virtual time, under faults that a seed fixes, and checks what the documentation claims.\n\n")
		flags.PrintDefaults()
	}
	switch err := flags.Parse(args); {
	case errors.Is(err, flag.ErrHelp):
		return 0
	case err != nil:
		return cli.Usage
	case flags.NArg() > 0 || *n < 1 || *jobs < 1 || *whole && *replays:
		fmt.Fprintln(stderr, "chaos sim: takes flags only, at least one schedule and one process, and -whole or -replays")
		return cli.Usage
	}
	test := "TestCore"
	switch {
	case *whole:
		test = "TestWholeStack"
	case *replays:
		test = "TestReplaysAreTheSame"
	}

	dir, err := os.MkdirTemp("", "sim-")
	if err != nil {
		fmt.Fprintln(stderr, "chaos sim:", err)
		return cli.Unavailable
	}
	defer os.RemoveAll(dir)
	begin := time.Now()
	s := shares{test: test, dir: dir, binary: filepath.Join(dir, "sim.test"), progress: stderr, every: 10 * time.Second}
	var counts Counts
	source, err := s.build(ctx)
	if err == nil {
		fmt.Fprintf(stderr, "%s: %d schedules from seed %d, in %d processes\n", test, *n, *seed, min(*jobs, *n))
		counts, err = s.run(ctx, source, *n, *seed, min(*jobs, *n))
	}
	var failed *failedError
	switch {
	case ctx.Err() != nil:
		fmt.Fprintln(stderr, "chaos sim: interrupted; no process is left")
		return cli.Interrupted
	case errors.As(err, &failed):
		fmt.Fprintf(stdout, "%s\n", failed.output)
		fmt.Fprintln(stderr, "chaos sim:", err)
		return cli.Failed
	case err != nil:
		fmt.Fprintln(stderr, "chaos sim:", err)
		return cli.Unavailable
	}
	took := time.Since(begin).Round(time.Second)
	if *replays {
		fmt.Fprintf(stdout, "%d replays from seed %d are the same, line by line (%v)\n", counts.Schedules, *seed, took)
	} else {
		fmt.Fprintf(stdout, "%d schedules from seed %d: no rule was broken (%v)\n%v\n", counts.Schedules, *seed, took, counts)
	}
	return 0
}

// shares are the parts of a run, each in a process of its own: a schedule is on one
// processor.
type shares struct {
	test, dir, binary string
	progress          io.Writer
	every             time.Duration // how often it is told how far they are, at most
}

// build makes the test binary, and returns the directory of its source.
func (s *shares) build(ctx context.Context) (source string, err error) {
	const pkg = "github.com/quorumlock/redlock/chaos/sim"
	out, err := exec.CommandContext(ctx, "go", "list", "-f", "{{.Dir}}", pkg).Output()
	if err != nil {
		return "", fmt.Errorf("it runs in the source tree, with the go command: %w", err)
	}
	if out, err := exec.CommandContext(ctx, "go", "test", "-c", "-o", s.binary, pkg).CombinedOutput(); err != nil {
		return "", fmt.Errorf("%w: %s", err, bytes.TrimSpace(out))
	}
	return string(bytes.TrimSpace(out)), nil
}

// A failedError is a share that failed.
type failedError struct {
	code   int
	output []byte
}

func (e *failedError) Error() string { return fmt.Sprintf("a share failed, with exit code %d", e.code) }

// maxShare bounds a share: the core takes about a minute for so many.
const maxShare = 2500

// run shares n schedules out, so many shares at a time as there are jobs, tells how far
// it is, and adds up what they had. The first share that fails ends the others.
func (s *shares) run(ctx context.Context, source string, n int, seed uint64, jobs int) (Counts, error) {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	size := min(max(n/(8*jobs), 1), maxShare)
	firsts := make(chan int, (n+size-1)/size)
	for first := 0; first < n; first += size {
		firsts <- first
	}
	close(firsts)
	begin := time.Now()
	told := begin
	var mu sync.Mutex
	var all Counts
	var group sync.WaitGroup
	for range jobs {
		group.Go(func() {
			for first := range firsts {
				c, err := s.share(ctx, source, min(size, n-first), seed+uint64(first), filepath.Join(s.dir, strconv.Itoa(first))) //nolint:gosec // not negative
				if err != nil {
					cancel(err)
					return
				}
				mu.Lock()
				all.Add(c)
				if now := time.Now(); now.Sub(told) >= s.every {
					told = now
					fmt.Fprintf(s.progress, "%d of %d after %v\n", all.Schedules, n, now.Sub(begin).Round(time.Second))
				}
				mu.Unlock()
			}
		})
	}
	group.Wait()
	return all, context.Cause(ctx)
}

// share runs n schedules in a process, which writes what they had to a file.
func (s *shares) share(ctx context.Context, source string, n int, seed uint64, file string) (c Counts, err error) {
	cmd := exec.Command(s.binary, "-test.run", "^"+s.test+"$", "-test.v", "-test.timeout", "0",
		"-schedules", strconv.Itoa(n), "-seed", strconv.FormatUint(seed, 10), "-counts", file)
	var output bytes.Buffer
	cmd.Dir, cmd.Stdout, cmd.Stderr = source, &output, &output
	process, err := redistest.Spawn(cmd) // it ends with this process, however that ends
	if err != nil {
		return c, err
	}
	select {
	case <-process.Done():
	case <-ctx.Done():
		_ = process.Kill()
		return c, ctx.Err()
	}
	if code := process.ExitCode(); code != 0 {
		return c, &failedError{code, output.Bytes()}
	}
	text, err := os.ReadFile(file)
	if err == nil {
		err = json.Unmarshal(text, &c)
	}
	return c, err
}
