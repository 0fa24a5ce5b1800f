package control

import (
	"context"
	"flag"
	"fmt"
	"io"
	"runtime"
	"strings"
	"text/tabwriter"

	"github.com/quorumlock/redlock/chaos/internal/cli"
	"github.com/quorumlock/redlock/internal/redistest"
)

// Main is the command "control". It prints the verdicts as a table, and returns the
// exit code: 0 if every play showed what it should.
func Main(ctx context.Context, args []string, stdout, stderr io.Writer) int {
	if Child() {
		return 0
	}
	flags := flag.NewFlagSet("control", flag.ContinueOnError)
	flags.SetOutput(stderr)
	n := flags.Int("n", 1, "play each scenario this many `times`")
	atOnce := flags.Int("p", runtime.GOMAXPROCS(0), "play so many `scenarios` at a time")
	list := flags.Bool("list", false, "list the scenarios, and play none")
	flags.Usage = func() {
		fmt.Fprint(stderr, "Usage: go run ./chaos control [-n times] [-p scenarios] [-list] [name ...]\n\n"+
			"Shows situations in which a lock is known to be unsafe, and what protects from each.\n\n")
		flags.PrintDefaults()
	}
	switch err := flags.Parse(args); {
	case err == flag.ErrHelp: //nolint:errorlint // it comes as it is
		return 0
	case err != nil:
		return cli.Usage
	case *n < 1 || *atOnce < 1:
		fmt.Fprintln(stderr, "chaos control: -n and -p are at least 1")
		return cli.Usage
	}
	scenarios, err := cli.Choose("scenario", Scenarios(), func(s Scenario) string { return s.Name }, flags.Args()...)
	if err != nil {
		fmt.Fprintln(stderr, "chaos control:", err)
		return cli.Usage
	}
	if *list {
		printList(stdout, scenarios)
		return 0
	}
	if missing := play(ctx, how{}, func(x *Stage) { redistest.Need(x) }); missing.Failure+missing.Skipped != "" {
		fmt.Fprintln(stderr, "chaos control:", missing.Failure+missing.Skipped)
		return cli.Unavailable
	}

	verdicts := RunAll(ctx, scenarios, *n, *atOnce)
	if ctx.Err() != nil {
		fmt.Fprintln(stderr, "chaos control: interrupted; no server and no process is left")
		return cli.Interrupted
	}
	Table(stdout, verdicts)
	code := 0
	for _, v := range verdicts {
		if !v.Shown() {
			code = cli.Failed
		}
		switch {
		case v.Err() != nil:
			fmt.Fprintln(stderr, "chaos control:", strings.ReplaceAll(v.Err().Error(), "\n", "; "))
		case v.Skipped() != "":
			fmt.Fprintf(stderr, "chaos control: %s: %s\n", v.Scenario.Name, v.Skipped())
		}
	}
	return code
}

func printList(w io.Writer, scenarios []Scenario) {
	table := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
	for _, s := range scenarios {
		fmt.Fprintf(table, "%s\t%s\n", s.Name, s.Shows)
	}
	table.Flush()
}
