// Command bench measures redlock beside other locks on Redis, in one run on servers that it starts itself, and prints
// the figures with their ratios. See README.md for what a figure means.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"os/signal"
	"slices"
	"strconv"
	"strings"
	"time"
)

// leaseTTL is redsync's default, so that redsync runs with it.
const leaseTTL = 8 * time.Second

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt)
	err := run(ctx, os.Args[1:], os.Stdout, os.Stderr)
	stop()
	switch {
	case errors.Is(err, flag.ErrHelp):
	case err != nil:
		fmt.Fprintln(os.Stderr, "bench:", err)
		os.Exit(1)
	}
}

// run does what the command line says. It returns an error, after the report, if redlock made a mistake.
func run(ctx context.Context, args []string, stdout, stderr io.Writer) (err error) {
	p := plan{
		load:     ownResources(),
		ttl:      leaseTTL,
		settle:   2 * time.Second,
		progress: stderr,
	}
	var sizes, goroutines, only, mdFile, jsonFile string
	flags := flag.NewFlagSet("bench", flag.ContinueOnError)
	flags.SetOutput(stderr)
	flags.StringVar(&sizes, "n", "1,3,5", "numbers of redis-server `instances`")
	flags.StringVar(&goroutines, "goroutines", "1,64,256", "`numbers` of goroutines that lock at the same time")
	flags.DurationVar(&p.duration, "duration", 2*time.Second, "`time` to measure each cell for, after a quarter of it to warm up")
	flags.IntVar(&p.reps, "reps", 3, "`repetitions` of each cell; the report has their medians")
	flags.StringVar(&only, "only", "", "`contenders` that take part, comma-separated (default all: "+strings.Join(names(contenders()), ",")+")")
	flags.StringVar(&mdFile, "md", "", "write the Markdown report also to this `file`")
	flags.StringVar(&jsonFile, "json", "", "write every repetition's figures as JSON to this `file`")
	if err := flags.Parse(args); err != nil {
		return err
	}

	var errs [3]error
	p.sizes, errs[0] = numbers(sizes)
	p.goroutines, errs[1] = numbers(goroutines)
	p.contenders, errs[2] = choose(contenders(), only)
	if err := errors.Join(errs[:]...); err != nil {
		return err
	}
	if p.duration <= 0 || p.reps < 1 || flags.NArg() > 0 {
		return errors.New("-duration and -reps must be positive, and there are no arguments beside flags")
	}

	ss, err := launch(slices.Max(p.sizes))
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, ss.close()) }()
	cells, err := p.run(ctx, ss)
	if err != nil {
		return err
	}
	r := report{Head: newHead(args, p, ss), Title: p.load.title, Cells: cells}
	return errors.Join(
		r.markdown(stdout),
		toFile(mdFile, r.markdown),
		toFile(jsonFile, r.json),
		verdict(cells),
	)
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

// choose returns those of all that the comma-separated list names, in all's order; an empty list names everybody.
func choose(all []contender, list string) ([]contender, error) {
	if list == "" {
		return all, nil
	}
	wanted := strings.Split(list, ",")
	for _, name := range wanted {
		if !slices.Contains(names(all), name) {
			return nil, fmt.Errorf("no contender is called %q; there are %s", name, strings.Join(names(all), ", "))
		}
	}
	return slices.DeleteFunc(all, func(c contender) bool { return !slices.Contains(wanted, c.name) }), nil
}

func names(cs []contender) []string {
	var list []string
	for _, c := range cs {
		list = append(list, c.name)
	}
	return list
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
