// Command chaos shows the claims of the documentation under faults: what is
// guaranteed, what breaks without it, and what a quorum is worth over one Redis.
//
//	go run ./chaos            lists what there is
//	go run ./chaos faults     real faults on real servers, and a checker
//	go run ./chaos sim        schedules of faults in virtual time, each from a seed
//	go run ./chaos compare    one Redis against quorums, under the same faults
//	go run ./chaos control    situations that are known to be unsafe
//	go run ./chaos mutants    faults of the library, and what finds them
package main

import (
	"context"
	"fmt"
	"io"
	"os"
	"os/signal"
	"syscall"

	"github.com/quorumlock/redlock/chaos/compare"
	"github.com/quorumlock/redlock/chaos/control"
	"github.com/quorumlock/redlock/chaos/faults"
	"github.com/quorumlock/redlock/chaos/internal/cli"
	"github.com/quorumlock/redlock/chaos/mutants"
	"github.com/quorumlock/redlock/chaos/sim"
)

// A command is one subcommand. Its run returns the exit code and leaves no
// process behind, also when ctx ends.
type command struct {
	name    string
	summary string
	run     func(ctx context.Context, args []string, stdout, stderr io.Writer) int
}

// commands are the subcommands, in the order of the help text.
func commands() []command {
	return []command{
		{"faults", "real faults on redis-server processes, and what clients did meanwhile, checked", faults.Main},
		{"compare", "one Redis against quorums, under the same faults, on a page", compare.Main},
		{"control", "situations that are known to be unsafe, and what protects from each", control.Main},
		{"mutants", "faults put into the library, and the tests that find them", mutants.Main},
		{"sim", "thousands of schedules of faults in virtual time, each from a seed", sim.Main},
	}
}

func main() {
	if code, isClient := faults.Client(); isClient {
		os.Exit(code)
	}
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	code := run(ctx, os.Args[1:], os.Stdout, os.Stderr)
	stop()
	os.Exit(code)
}

// run does what the command line says and returns the exit code.
func run(ctx context.Context, args []string, stdout, stderr io.Writer) int {
	if len(args) == 0 || args[0] == "help" || args[0] == "-h" || args[0] == "--help" {
		help(stdout)
		return cli.OK
	}
	for _, c := range commands() {
		if c.name == args[0] {
			return c.run(ctx, args[1:], stdout, stderr)
		}
	}
	fmt.Fprintf(stderr, "chaos: there is no command %q\n", args[0])
	help(stderr)
	return cli.Usage
}

func help(w io.Writer) {
	fmt.Fprint(w, "Usage: go run ./chaos <command> [flags]; each has -h\n\n")
	for _, c := range commands() {
		fmt.Fprintf(w, "  %-9s %s\n", c.name, c.summary)
	}
}
