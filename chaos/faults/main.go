package faults

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"os/exec"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/quorumlock/redlock/chaos/history"
	"github.com/quorumlock/redlock/chaos/internal/cli"
	"github.com/quorumlock/redlock/internal/redistest"
)

// How long one run of a scenario has faults.
const (
	shortestRun = 2 * time.Second
	longestRun  = 10 * time.Second
	overhead    = 4 * time.Second // of a run, about: to start, to heal, to check
)

// Main is the command: it runs scenarios, prints a line for each run and what there is
// to say in the end, and returns the exit code. When it returns, no process is left.
func Main(ctx context.Context, args []string, stdout, stderr io.Writer) int {
	flags := flag.NewFlagSet("faults", flag.ContinueOnError)
	flags.SetOutput(stderr)
	duration := flags.Duration("duration", time.Minute, "`time` in all; each scenario runs at least once")
	seed := flags.Uint64("seed", 0, "`number` of the first schedule; 0: a random one")
	name := flags.String("scenario", "", "`name` of the only scenario to run; all by default")
	port := flags.Int("port", 0, "the instances listen on this `port` and the next ones; 0: on free ones")
	processes := flags.Int("processes", 2, "`number` of client processes")
	goroutines := flags.Int("goroutines", 32, "`number` of goroutines in each")
	keep := flags.String("keep", "", "`directory` for the history and the picture of failed runs; a new one by default")
	list := flags.Bool("list", false, "list the scenarios, and run none")
	flags.Usage = func() {
		fmt.Fprint(stderr, "Usage: go run ./chaos faults [flags]\n\nReal faults on real redis-servers, checked. Flags:\n")
		flags.PrintDefaults()
	}
	if err := flags.Parse(args); errors.Is(err, flag.ErrHelp) {
		return 0
	} else if err != nil {
		return cli.Usage
	}
	var names []string
	if *name != "" {
		names = []string{*name}
	}
	selected, err := cli.Choose("scenario", scenarios(), func(s *scenario) string { return s.name }, names...)
	switch {
	case err != nil:
	case flags.NArg() > 0:
		err = fmt.Errorf("unexpected argument %q", flags.Arg(0))
	case *duration <= 0:
		err = fmt.Errorf("-duration %v is not positive", *duration)
	case *processes < 2 || *processes > 64: // the scenario with clients that stop needs another one
		err = fmt.Errorf("-processes %d is not between 2 and 64", *processes)
	case *goroutines < 1 || *goroutines >= perProcess:
		err = fmt.Errorf("-goroutines %d is not between 1 and %d", *goroutines, perProcess-1)
	case *port < 0 || *port > 65535-mostInstances:
		err = fmt.Errorf("-port %d is not between 0 and %d", *port, 65535-mostInstances)
	}
	if err != nil {
		fmt.Fprintf(stderr, "chaos faults: %v\n", err)
		return cli.Usage
	}
	if *list {
		printScenarios(stdout)
		return 0
	}
	if *seed == 0 {
		*seed = 1 + rand.Uint64N(1_000_000)
	}
	if *keep == "" {
		if *keep, err = os.MkdirTemp("", "redlock-faults-failed-"); err != nil {
			fmt.Fprintf(stderr, "chaos faults: %v\n", err)
			return cli.Unavailable
		}
		defer os.Remove(*keep) // if it is empty
	} else if err := os.MkdirAll(*keep, 0o755); err != nil {
		fmt.Fprintf(stderr, "chaos faults: -keep: %v\n", err)
		return cli.Usage
	}
	each := min(max(*duration/time.Duration(len(selected))-overhead, shortestRun), longestRun)
	r := runner{
		Config: Config{
			Seed: *seed, For: each, Processes: *processes, Goroutines: *goroutines, Port: *port, Keep: *keep,
			Operations: int(each.Seconds() * leastPerSecond),
		},
		stdout: stdout, stderr: stderr,
	}
	return r.run(ctx, selected, *duration)
}

// leastPerSecond are the operations without which too little has happened to show
// anything: a laptop that does something else as well makes some thousands.
const leastPerSecond = 100

func printScenarios(w io.Writer) {
	t := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
	for _, s := range scenarios() {
		assumptions := "inside the assumptions"
		if !s.inside {
			assumptions = "outside"
		}
		fmt.Fprintf(t, "%s\t%s\t%s\n", s.name, assumptions, s.what)
	}
	_ = t.Flush()
}

// A runner runs scenarios and sums up.
type runner struct {
	Config
	stdout, stderr io.Writer

	runs, failed       int
	operations, faults int
	fenced, doubles    int // stale accesses behind a guard; two holders inside the assumptions
	leftovers          int
}

func (r *runner) run(ctx context.Context, selected []*scenario, duration time.Duration) int {
	fmt.Fprintf(r.stdout, "%-18s %7s %8s %6s %7s %6s %7s %5s %9s\n",
		"scenario", "seed", "checked", "faults", "doubles", "stale", "guarded", "left", "recovery")
	begin := time.Now()
	for {
		for _, s := range selected {
			if ctx.Err() == nil && r.runs >= len(selected) && time.Since(begin)+r.For+overhead > duration {
				return r.sum(time.Since(begin))
			}
			report, err := s.run(ctx, r.Config)
			switch {
			case ctx.Err() != nil:
				fmt.Fprintf(r.stderr, "chaos faults: interrupted in %s, seed %d; what it began is ended\n", s.name, r.Seed)
				r.sum(time.Since(begin))
				return cli.Interrupted
			case err != nil:
				fmt.Fprintf(r.stderr, "chaos faults: %s: %s\n", s.name, explain(err))
				return cli.Unavailable
			}
			r.print(s, report)
		}
		r.Seed++
	}
}

// explain says what to do about it, where there is something.
func explain(err error) string {
	switch {
	case errors.Is(err, exec.ErrNotFound), errors.Is(err, os.ErrNotExist):
		return fmt.Sprintf("%v: install redis-server, or name one in REDLOCK_REDIS_SERVER", err)
	case errors.Is(err, redistest.ErrPortTaken):
		first, _, _ := strings.Cut(err.Error(), "\n")
		return first + ": choose another -port"
	}
	return err.Error()
}

func (r *runner) print(s *scenario, report *history.Report) {
	r.runs++
	r.operations += report.Operations
	r.faults += report.Faults
	r.fenced += len(report.StaleFenced)
	r.leftovers += len(report.Leftovers)
	if s.inside {
		r.doubles += len(report.Overlaps)
	}
	fmt.Fprintf(r.stdout, "%-18s %7d %8d %6d %7d %6d %7d %5d %9v\n", s.name, r.Seed, report.Operations, report.Faults,
		len(report.Overlaps), len(report.Stale), len(report.StaleFenced), len(report.Leftovers), report.Recovery.Round(time.Millisecond))
	if len(report.Failures) == 0 {
		return
	}
	r.failed++
	fmt.Fprintf(r.stdout, "  FAILED; again: go run ./chaos faults -scenario %s -seed %d -duration %v\n", s.name, r.Seed, r.For+overhead)
	for _, f := range report.Failures {
		fmt.Fprintf(r.stdout, "  %s\n", f)
	}
	fmt.Fprintf(r.stdout, "  its history is in %s\n", historyFile(r.Keep, s))
}

func (r *runner) sum(took time.Duration) int {
	fmt.Fprintf(r.stdout, "\n%d runs in %v, %d failed: %d operations checked, %d faults that hit something;\n",
		r.runs, took.Round(time.Second), r.failed, r.operations, r.faults)
	fmt.Fprintf(r.stdout, "%d double holds inside the assumptions, %d stale accesses behind a guard, %d lock keys left behind\n",
		r.doubles, r.fenced, r.leftovers)
	if r.failed > 0 {
		return cli.Failed
	}
	return 0
}
