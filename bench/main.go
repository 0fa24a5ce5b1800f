// Command bench measures redlock beside other locks on Redis, in one run on servers that it starts itself, and prints
// the figures with their ratios and the targets. See README.md for what a figure means.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"os/signal"
	"strconv"
	"strings"
	"time"

	"github.com/redis/go-redis/v9"
)

// leaseTTL is redsync's default, so that redsync runs with it.
const leaseTTL = 8 * time.Second

func main() {
	redis.SetLogger(silent{})
	if text := os.Getenv(childJob); text != "" {
		exit(obey(text, os.Stdin, os.Stdout))
	}
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt)
	if len(os.Args) > 1 && os.Args[1] == contenderCommand {
		err := contend(ctx, os.Args[2:], os.Stdin, os.Stdout)
		stop()
		exit(err)
	}
	err := run(ctx, os.Args[1:], os.Stdout, os.Stderr)
	stop()
	exit(err)
}

func exit(err error) {
	if err != nil && !errors.Is(err, flag.ErrHelp) {
		fmt.Fprintln(os.Stderr, "bench:", err)
		os.Exit(1)
	}
	os.Exit(0)
}

// A command is what the command line asks for.
type command struct {
	plan
	guarded                 bool
	md, json, svg, document string
}

// run does what the command line says. It returns an error, after the report, if redlock made a mistake or the guard
// found it slower.
func run(ctx context.Context, args []string, stdout, stderr io.Writer) (err error) {
	c, err := parse(args, stderr)
	if err != nil {
		return err
	}
	limits, err := thresholds(guardText)
	if err != nil {
		return err
	}
	p := &c.plan
	ss, err := launch(p.servers())
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, ss.close()) }()
	h := newHead(args, p, ss)
	cells, err := p.run(ctx, ss)
	if err != nil {
		return err
	}
	r := report{Head: h, Rows: judge(p, cells), Cells: cells, scenarios: p.scenarios}
	if c.guarded {
		return errors.Join(keep(stdout, limits, r.Rows), verdict(cells))
	}
	return errors.Join(
		r.markdown(stdout),
		toFile(c.md, r.markdown),
		toFile(c.json, r.json),
		toFile(c.svg, r.plot),
		quoteIn(c.document, r.parts()),
		verdict(cells),
	)
}

// parse reads the command line.
func parse(args []string, stderr io.Writer) (*command, error) {
	c := &command{plan: plan{ttl: leaseTTL, settle: 2 * time.Second, progress: stderr}}
	p := &c.plan
	var only, wanted string
	var quick bool
	flags := flag.NewFlagSet("bench", flag.ContinueOnError)
	flags.SetOutput(stderr)
	var lists []func() error
	list := func(to *[]int, name, ns, usage string) {
		text := flags.String(name, ns, usage)
		lists = append(lists, func() (err error) {
			*to, err = numbers(*text)
			return err
		})
	}
	flags.StringVar(&wanted, "scenario", "", "`scenarios` to measure, comma-separated (default all: "+strings.Join(names(scenarios(), scenarioName), ",")+")")
	flags.StringVar(&only, "only", "", "`contenders` that take part, comma-separated (default all: "+strings.Join(names(contenders(), contenderName), ",")+")")
	list(&p.sizes, "n", "1,3,5", "numbers of redis-server `instances` for callers that do not meet")
	list(&p.goroutines, "goroutines", "1,8,64,256", "`numbers` of callers that do not meet")
	list(&p.waiters, "waiters", "4,16,64,256", "`numbers` of waiters in one process")
	list(&p.held, "held", "100,1000,10000", "`numbers` of locks that are kept alive")
	flags.IntVar(&p.processes, "processes", 16, "`number` of processes that want one resource")
	flags.DurationVar(&p.delay, "delay", 5*time.Millisecond, "`time` that the network adds to a round trip, half of it each way")
	flags.DurationVar(&p.lease, "lease", leaseTTL, "`ttl` of the locks that are kept alive")
	flags.DurationVar(&p.duration, "duration", 2*time.Second, "`time` to measure each cell for, after a quarter of it to warm up")
	flags.IntVar(&p.reps, "reps", 3, "`repetitions` of each cell; the report has their medians")
	flags.BoolVar(&quick, "quick", false, "a first look: short cells, one repetition, fewer sizes; the flags above override it")
	flags.BoolVar(&c.guarded, "guard", false, "only a short run beside redsync, against the thresholds in guard.json; exit status 1 when one is worse")
	flags.StringVar(&c.md, "md", "", "write the Markdown report also to this `file`")
	flags.StringVar(&c.json, "json", "", "write every repetition's figures as JSON to this `file`")
	flags.StringVar(&c.svg, "svg", "", "write the plot as SVG to this `file`")
	flags.StringVar(&c.document, "doc", "", "rewrite what this Markdown `file` quotes between <!-- bench NAME --> and <!-- /bench -->")
	if err := flags.Parse(args); err != nil {
		return nil, err
	}
	if quick {
		if err := quicken(flags); err != nil {
			return nil, err
		}
	}
	p.slow = !quick
	var errs []error
	for _, parse := range lists {
		errs = append(errs, parse())
	}
	var chosen, picked error
	p.contenders, chosen = choose(contenders(), only)
	p.scenarios, picked = pick(scenarios(), wanted, "scenario", scenarioName)
	if err := errors.Join(append(errs, chosen, picked)...); err != nil {
		return nil, err
	}
	if p.duration <= 0 || p.lease < time.Second || p.delay < 0 || p.reps < 1 || p.processes < 2 || flags.NArg() > 0 {
		return nil, errors.New("-duration and -reps must be positive, -delay must not be negative, -lease is a second and -processes 2 at least, and there are no arguments beside flags")
	}
	if c.guarded {
		if flags.NFlag() > 1 {
			return nil, errors.New("-guard is always the same run: it has no other flags beside it")
		}
		return c, p.guard()
	}
	return c, nil
}

// quicken sets what the command line does not to what a first look needs.
func quicken(flags *flag.FlagSet) error {
	quick := map[string]string{
		"n": "1,3", "goroutines": "1,64", "waiters": "16,64", "held": "1000", "lease": "3s", "duration": "300ms", "reps": "1",
	}
	flags.Visit(func(f *flag.Flag) { delete(quick, f.Name) })
	var errs []error
	for name, value := range quick {
		errs = append(errs, flags.Set(name, value))
	}
	return errors.Join(errs...)
}

// numbers parses a comma-separated list of positive integers.
func numbers(list string) ([]int, error) {
	var ns []int
	for s := range strings.SplitSeq(list, ",") {
		n, err := strconv.Atoi(strings.TrimSpace(s))
		if err != nil || n < 1 {
			return nil, fmt.Errorf("%q is not a list of positive integers", list)
		}
		ns = append(ns, n)
	}
	return ns, nil
}

func toFile(name string, write func(io.Writer) error) error {
	if name == "" {
		return nil
	}
	f, err := os.Create(name)
	if err != nil {
		return err
	}
	return errors.Join(write(f), f.Close())
}
