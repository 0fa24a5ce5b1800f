package compare

import (
	"cmp"
	"context"
	"debug/buildinfo"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/redis/go-redis/v9/logging"

	"github.com/quorumlock/redlock/chaos/compare/client"
	"github.com/quorumlock/redlock/chaos/internal/cli"
)

const usageText = `Usage: go run ./chaos compare [flags]

Is a quorum worth it over one Redis? The same work under the same faults against
each variant, and what came of it on a page. It starts redis-servers of its own;
where there is no redis-server it runs on embedded instances, with fewer faults.

`

// Main is the subcommand: it returns the exit code, and leaves no process behind.
func Main(ctx context.Context, args []string, stdout, stderr io.Writer) int {
	logging.Disable() // go-redis would write a line for each dial to a server that was killed on purpose
	if os.Getenv(clientProcess) != "" {
		if err := client.Serve(ctx, client.Redlock, os.Stdin, stdout); err != nil {
			fmt.Fprintln(stderr, err)
			return cli.Failed
		}
		return cli.OK
	}
	c, err := parse(args, stderr)
	switch {
	case errors.Is(err, flag.ErrHelp):
		return cli.OK
	case err != nil:
		fmt.Fprintln(stderr, "chaos compare:", err)
		return cli.Usage
	}
	err = c.run(ctx, stdout, stderr)
	switch {
	case err != nil && ctx.Err() != nil:
		fmt.Fprintln(stderr, "chaos compare: interrupted, nothing was written")
		return cli.Interrupted
	case err != nil:
		fmt.Fprintln(stderr, "chaos compare:", err)
		return cli.Failed
	}
	return cli.OK
}

// A command is what the command line asks for.
type command struct {
	args          []string
	seed          uint64
	quick         bool
	embedded      bool
	variants      []variant
	html, md, doc string
	bench         string
	whyEmbedded   string
}

func parse(args []string, stderr io.Writer) (*command, error) {
	c := &command{args: args}
	var wanted string
	flags := flag.NewFlagSet("compare", flag.ContinueOnError)
	flags.SetOutput(io.Discard) // one line is enough for a mistake
	flags.Uint64Var(&c.seed, "seed", 1, "`seed` of the victims, the moments and the work")
	flags.BoolVar(&c.quick, "quick", false, "a first look of some ten seconds: short faults, fewer of them, the variants side by side; no figure of it is worth quoting")
	flags.BoolVar(&c.embedded, "embedded", false, "on embedded instances, though there is a redis-server")
	flags.StringVar(&wanted, "variants", "", "`names` of those that take part, comma-separated (default all: "+strings.Join(names(variants()), ",")+")")
	flags.StringVar(&c.html, "html", "comparison.html", "write the page to this `file`")
	flags.StringVar(&c.md, "md", "comparison.md", "write the Markdown page to this `file`")
	flags.StringVar(&c.doc, "doc", "", "rewrite what this Markdown `file` quotes between <!-- compare --> and <!-- /compare -->")
	flags.StringVar(&c.bench, "bench", "", "`directory` of the bench module, for redsync (default: that of this repository)")
	if err := flags.Parse(args); err != nil {
		if errors.Is(err, flag.ErrHelp) {
			fmt.Fprint(stderr, usageText)
			flags.SetOutput(stderr)
			flags.PrintDefaults()
			return nil, err
		}
		return nil, fmt.Errorf("%w; -h lists the flags", err)
	}
	if flags.NArg() > 0 {
		return nil, fmt.Errorf("there are no arguments beside flags: %q", flags.Args())
	}
	var err error
	if c.variants, err = choose(wanted); err != nil {
		return nil, err
	}
	for _, name := range []string{c.html, c.md, c.doc} {
		if err := writable(name); err != nil {
			return nil, err
		}
	}
	if c.doc != "" {
		if _, err := quoted(c.doc, ""); err != nil {
			return nil, err
		}
	}
	return c, c.findServer()
}

// findServer decides between servers and embedded instances.
func (c *command) findServer() error {
	if c.embedded {
		c.whyEmbedded = "as -embedded asked for"
		return nil
	}
	named := os.Getenv("REDLOCK_REDIS_SERVER")
	_, err := exec.LookPath(cmp.Or(named, "redis-server"))
	switch {
	case err == nil:
	case named != "":
		return fmt.Errorf("REDLOCK_REDIS_SERVER: %w", err)
	default:
		c.embedded, c.whyEmbedded = true, "as there is no redis-server on PATH"
	}
	return nil
}

func names(vs []variant) []string {
	var ns []string
	for _, v := range vs {
		ns = append(ns, v.name)
	}
	return ns
}

func choose(wanted string) ([]variant, error) {
	all := variants()
	if wanted == "" {
		return all, nil
	}
	var chosen []variant
	for name := range strings.SplitSeq(wanted, ",") {
		i := slices.Index(names(all), strings.TrimSpace(name))
		if i < 0 {
			return nil, fmt.Errorf("there is no variant %q, but %s", name, strings.Join(names(all), ", "))
		}
		chosen = append(chosen, all[i])
	}
	return chosen, nil
}

// writable tells before the minutes of a run what would be an error after them.
func writable(name string) error {
	if name == "" {
		return nil
	}
	if info, err := os.Stat(name); err == nil && info.IsDir() {
		return fmt.Errorf("%s is a directory", name)
	}
	f, err := os.CreateTemp(filepath.Dir(name), ".compare-")
	if err != nil {
		return fmt.Errorf("can't write %s: %w", name, err)
	}
	return errors.Join(f.Close(), os.Remove(f.Name()))
}

func (c *command) run(ctx context.Context, stdout, stderr io.Writer) error {
	_, noGCC := exec.LookPath("gcc")
	p := newPlan(c.seed, c.quick, c.embedded, noGCC == nil)
	self, err := os.Executable()
	if err != nil {
		return err
	}
	e := environment(c)
	binaries := map[string][]string{"": {self, "compare"}}
	scratch, err := os.MkdirTemp("", "redlock-compare-")
	if err != nil {
		return err
	}
	defer os.RemoveAll(scratch)
	var arenas []*arena
	var left error // why the peer is left out
	for _, v := range c.variants {
		switch {
		case v.replica && c.embedded:
			p.leftOut = append(p.leftOut, v.title+": an embedded instance has no replica.")
			continue
		case v.peer != "" && binaries[v.peer] == nil && left == nil:
			fmt.Fprintln(stderr, "chaos compare: building", v.peer, "in the bench module")
			var bench string
			if bench, left = buildBench(ctx, c.bench, scratch); left == nil {
				binaries[v.peer] = []string{bench, "contender", v.peer}
				e.Versions = append(e.Versions, versions(bench)...)
			}
		}
		if binaries[v.peer] == nil {
			p.leftOut = append(p.leftOut, fmt.Sprintf("%s: %v.", v.title, left))
			continue
		}
		arenas = append(arenas, &arena{plan: p, variant: v, binary: binaries[v.peer]})
	}
	if err := ctx.Err(); err != nil {
		return err
	}
	if len(arenas) == 0 {
		return errors.New("nothing is left to compare: " + strings.Join(p.leftOut, " "))
	}
	say := func(a *arena) {
		fmt.Fprintf(stderr, "chaos compare: %s, %v of faults\n", a.variant.title, p.total.Round(time.Second))
	}
	// Side by side a first look is quick; embedded instances would then compete for
	// the one process that they are in.
	results, err := runAll(ctx, arenas, c.quick && !c.embedded, say)
	if err != nil {
		return err
	}
	e.Load = e.Load + " before, " + loadAverage() + " after"
	page := newPage(p, e, results)
	if err := page.write(c.html, c.md, c.doc); err != nil {
		return err
	}
	fmt.Fprintln(stdout, page.Lead)
	for _, name := range []string{c.html, c.md, c.doc} {
		if name != "" {
			fmt.Fprintln(stdout, "written:", name)
		}
	}
	return nil
}

// runAll runs the arenas one after the other, or side by side, and judges them.
func runAll(ctx context.Context, arenas []*arena, together bool, say func(*arena)) (results []*result, err error) {
	if !together {
		for _, a := range arenas {
			say(a)
			res, err := runTogether(ctx, []*arena{a})
			if err != nil {
				return nil, err
			}
			results = append(results, res...)
		}
		return results, nil
	}
	for _, a := range arenas {
		say(a)
	}
	return runTogether(ctx, arenas)
}

// runTogether runs the arenas side by side, once all of them are set up.
func runTogether(ctx context.Context, arenas []*arena) (results []*result, err error) {
	results = make([]*result, len(arenas))
	defer func() {
		err = errors.Join(err, each(arenas, func(_ int, a *arena) error { return a.close() }))
	}()
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	// The first to fail ends the others: their figures are worth nothing without it.
	all := func(f func(int, *arena) error) error {
		_ = each(arenas, func(i int, a *arena) error { // the first error is the cause
			err := f(i, a)
			if err != nil {
				cancel(fmt.Errorf("%s: %w", a.variant.title, err))
			}
			return err
		})
		return context.Cause(ctx)
	}
	if err := all(func(_ int, a *arena) error { return a.setUp(ctx) }); err != nil {
		return nil, err
	}
	return results, all(func(i int, a *arena) error {
		r, err := a.run(ctx)
		if err == nil {
			results[i] = judge(r)
		}
		return err
	})
}

// each calls f for every arena at once.
func each(arenas []*arena, f func(int, *arena) error) error {
	errs := make([]error, len(arenas))
	var all sync.WaitGroup
	for i, a := range arenas {
		all.Go(func() { errs[i] = f(i, a) })
	}
	all.Wait()
	return errors.Join(errs...)
}

// buildBench builds the bench module, which has what this one must not depend on.
func buildBench(ctx context.Context, dir, scratch string) (string, error) {
	if dir == "" {
		root, err := exec.CommandContext(ctx, "go", "list", "-m", "-f", "{{.Dir}}", "github.com/quorumlock/redlock").Output()
		if err != nil {
			return "", errors.New("the bench module was not found; -bench names its directory")
		}
		dir = filepath.Join(strings.TrimSpace(string(root)), "bench")
	}
	binary := filepath.Join(scratch, "bench")
	build := exec.CommandContext(ctx, "go", "build", "-o", binary, ".")
	build.Dir = dir
	if out, err := build.CombinedOutput(); err != nil {
		line, _, _ := strings.Cut(strings.TrimSpace(string(out)), "\n")
		return "", fmt.Errorf("the bench module could not be built (%s)", cmp.Or(line, err.Error()))
	}
	return binary, nil
}

// versions returns those of the peer's library in the binary.
func versions(binary string) []string {
	info, err := buildinfo.ReadFile(binary)
	if err != nil {
		return nil
	}
	var vs []string
	for _, m := range info.Deps {
		if strings.Contains(m.Path, "redsync") {
			vs = append(vs, m.Path+" "+m.Version)
		}
	}
	return vs
}
