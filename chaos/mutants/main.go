package mutants

import (
	"context"
	"flag"
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"os/exec"
	"slices"
	"text/tabwriter"
	"time"

	"github.com/quorumlock/redlock/chaos/internal/cli"
)

// Main is the command "mutants". It prints the verdicts as a table, and returns the
// exit code: 0 if every mutant was caught.
func Main(ctx context.Context, args []string, stdout, stderr io.Writer) int {
	flags := flag.NewFlagSet("mutants", flag.ContinueOnError)
	flags.SetOutput(stderr)
	n := flags.Int("n", 0, "try so many `mutants`, which rotate by the seed; 0: all, or those that are named")
	seed := flags.Uint64("seed", today(), "which ones, with -n: a `number`, by default today's")
	simulate := flags.Bool("sim", false, "try the simulation on them, and not their tests: on those that it is to find, or that are named")
	first := flags.Uint64("first", 1, "the `seed` of the simulation's first schedule")
	schedules := flags.Int("schedules", 2000, "`schedules` of the simulation, at most")
	list := flags.Bool("list", false, "list the mutants, and try none")
	flags.Usage = func() {
		fmt.Fprint(stderr, "Usage: go run ./chaos mutants [-n mutants -seed seed] [-sim [-first seed] [-schedules schedules]] [-list] [name ...]\n\n"+
			"Puts faults into the library, one at a time, and shows that its tests find them.\n\n")
		flags.PrintDefaults()
	}
	switch err := flags.Parse(args); {
	case err == flag.ErrHelp: //nolint:errorlint // it comes as it is
		return 0
	case err != nil:
		return cli.Usage
	case *n < 0 || *schedules < 1 || *n > 0 && flags.NArg() > 0:
		fmt.Fprintln(stderr, "chaos mutants: -n is 0 or more, without names, and -schedules at least 1")
		return cli.Usage
	}
	chosen, err := cli.Choose("mutant", Mutants(), func(m Mutant) string { return m.Name }, flags.Args()...)
	if err != nil {
		fmt.Fprintln(stderr, "chaos mutants:", err)
		return cli.Usage
	}
	if *simulate && flags.NArg() == 0 {
		chosen = slices.DeleteFunc(chosen, func(m Mutant) bool { return m.Unseen != "" })
	}
	if *n > 0 {
		chosen = rotate(chosen, *n, *seed)
	}
	if *list {
		printList(stdout, chosen)
		return 0
	}
	if !*simulate {
		*schedules = 0
	}
	root, err := moduleRoot(ctx)
	if err == nil {
		_, err = exec.LookPath("redis-server")
	}
	if err != nil {
		fmt.Fprintln(stderr, "chaos mutants:", err)
		return cli.Unavailable
	}
	verdicts, err := try(ctx, stderr, root, chosen, *schedules, *first)
	switch {
	case ctx.Err() != nil:
		fmt.Fprintln(stderr, "chaos mutants: interrupted; no server and no process is left")
		return cli.Interrupted
	case err != nil:
		fmt.Fprintln(stderr, "chaos mutants:", err)
		return cli.Failed
	}
	table(stdout, verdicts, *simulate)
	fmt.Fprintf(stdout, "\n%s\n", summary(verdicts))
	if *n > 0 {
		fmt.Fprintf(stdout, "these were -seed %d\n", *seed)
	}
	if slices.ContainsFunc(verdicts, func(v Verdict) bool { return !v.expected(*simulate) }) {
		return cli.Failed
	}
	return cli.OK
}

// try tries mutants of the module at root one after the other, and tells how far it is.
// A mutant that finds no place in the source is an error.
func try(ctx context.Context, progress io.Writer, root string, mutants []Mutant, schedules int, first uint64) ([]Verdict, error) {
	dir, err := os.MkdirTemp("", "mutants-")
	if err != nil {
		return nil, err
	}
	defer os.RemoveAll(dir)

	r, err := newRunner(root, dir, mutants, schedules, first)
	if err != nil {
		return nil, err
	}
	var verdicts []Verdict
	for i, m := range mutants {
		v := r.try(ctx, m)
		if ctx.Err() != nil {
			return nil, ctx.Err()
		}
		verdicts = append(verdicts, v)
		fmt.Fprintf(progress, "%d of %d: %s %s %s (%v)\n", i+1, len(mutants), m.Name, v.Outcome, v.By, v.Took.Round(time.Second))
	}
	return verdicts, nil
}

// today is a number that is the next one tomorrow.
func today() uint64 { return uint64(time.Now().Unix() / (24 * 60 * 60)) } //nolint:gosec // after 1970

// rotate returns n of all. Those of one seed and of the next are different ones, until
// all have had their turn; they are in no order, as neighbours in the list are alike.
func rotate(all []Mutant, n int, seed uint64) []Mutant {
	n = min(n, len(all))
	order := rand.New(rand.NewPCG(1, 2)).Perm(len(all)) // the same each time
	first := seed % uint64(len(all)) * uint64(n)
	chosen := make([]Mutant, n)
	for i := range chosen {
		chosen[i] = all[order[(first+uint64(i))%uint64(len(all))]]
	}
	return chosen
}

func printList(w io.Writer, mutants []Mutant) {
	t := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
	for _, m := range mutants {
		fmt.Fprintf(t, "%s\t%s\t%s\n", m.Name, m.File, m.Danger)
	}
	t.Flush()
}

// table prints verdicts.
func table(w io.Writer, verdicts []Verdict, simulated bool) {
	t := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
	fmt.Fprintln(t, "MUTANT\tVERDICT\tBY")
	for _, v := range verdicts {
		fmt.Fprintf(t, "%s\t%s\t%s\n", v.Mutant.Name, v.Outcome, v.why(simulated))
	}
	t.Flush()
}

// expected tells whether it is what was to be shown.
func (v *Verdict) expected(simulated bool) bool {
	return v.Outcome == Caught || v.Outcome == Survived && simulated && v.Mutant.Unseen != ""
}

// why is what caught a mutant, or why nothing did.
func (v *Verdict) why(simulated bool) string {
	switch {
	case !simulated || v.Mutant.Unseen == "":
		return v.By
	case v.Outcome == Survived:
		return "as expected: " + v.Mutant.Unseen
	case v.Outcome == Caught:
		return v.By + " (not expected)"
	}
	return v.By
}

func summary(verdicts []Verdict) string {
	caught := 0
	for _, v := range verdicts {
		if v.Outcome == Caught {
			caught++
		}
	}
	return fmt.Sprintf("%d of %d mutants were caught", caught, len(verdicts))
}
