package main

import (
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"io"
	"time"

	"github.com/quorumlock/redlock"
)

const checkUsage = `Usage: redlock check [flags]

Asks each instance whether it is fit for locks: whether it persists, evicts, is a
replica, has a clock that can be relied on, gives the rights that locking takes, and
more. Says what each finding means, and what to do about it. It takes about a third of
a second, or a second where one hangs, changes no setting, and leaves nothing but a key
that ends two seconds later.

Exit codes:

  0   fit
  1   fit, with less in reserve than it seems (warnings)
  2   unsafe: two may hold one lock, an instance never votes, or nobody gets a lock
  64  a flag or an endpoint is wrong

Examples:

  redlock check -e redis://a:6379 -e redis://b:6379 -e redis://c:6379
  redlock check --json | jq -r '.findings[], .instances[].findings[] | .check'
`

// checkQuarantine is that of a run with its default ttl.
const checkQuarantine = runTTL + 2*time.Second

// check prints the report of Locker.Check.
func check(flags *flag.FlagSet) action {
	s := lockerFlags(flags, "that of run, "+checkQuarantine.String())
	s.quarantine = []redlock.Option{redlock.WithQuarantine(checkQuarantine)}
	asJSON := jsonFlag(flags)
	return func(ctx context.Context, _ []string, stdout, stderr io.Writer) int {
		locker, err := s.open()
		if err != nil {
			fmt.Fprintln(stderr, "redlock check:", err)
			return exitUsage
		}
		defer locker.Close()
		report, err := locker.Check(ctx)
		var unsafe *redlock.UnsafeError // the report says it all
		if err != nil && !errors.As(err, &unsafe) || ctx.Err() != nil {
			fmt.Fprintln(stderr, "redlock check:", printable(err.Error()))
			return interrupted(ctx)
		}
		if *asJSON {
			printJSON(stdout, report)
		} else {
			fmt.Fprintf(stdout, "%s\n%s\n", printable(report.String()), verdictOf(report))
		}
		switch report.Worst() {
		case redlock.Unsafe:
			return exitUnsafe
		case redlock.Warning:
			return exitWarnings
		}
		return exitOK
	}
}

func verdictOf(r *redlock.Report) string {
	switch r.Worst() {
	case redlock.Unsafe:
		return "Unsafe: not fit for locks."
	case redlock.Warning:
		return "Fit for locks, with warnings."
	}
	return "Fit for locks."
}

func jsonFlag(flags *flag.FlagSet) *bool { return flags.Bool("json", false, "print JSON") }

func printJSON(w io.Writer, v any) {
	e := json.NewEncoder(w)
	e.SetEscapeHTML(false)
	e.SetIndent("", "  ")
	_ = e.Encode(v)
}
