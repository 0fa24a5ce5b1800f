// Command redlock shows the locks of package redlock at work, from a terminal.
//
//	go run github.com/quorumlock/redlock/cmd/redlock@latest demo
//
// Its subcommands exit with 0 when they did what was asked, and otherwise with
// one of the codes below. Endpoints are never printed as they were given: there
// may be a password in them.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"os/signal"
	"regexp"
	"strings"
	"syscall"
)

// Exit codes. 64 and 69 are those of sysexits.h; one that was interrupted exits
// with 128 plus the number of the signal, as a shell reports it.
const (
	exitOK          = 0
	exitFailed      = 1
	exitUsage       = 64 // a flag, an argument or an endpoint is wrong
	exitUnavailable = 69 // no quorum of the instances can be reached
	exitInterrupted = 130
)

// A command is one subcommand.
type command struct {
	name    string
	summary string
	run     func(ctx context.Context, args []string, stdout, stderr io.Writer) int
}

// commands returns the subcommands, in the order of the help text.
func commands() []command {
	return []command{
		{"demo", "a lock at work, on instances inside this process or on servers of yours", demo},
		{"version", "the version of this program", version},
	}
}

func main() {
	ctx, cancel := context.WithCancelCause(context.Background())
	signals := make(chan os.Signal, 1)
	signal.Notify(signals, os.Interrupt, syscall.SIGTERM)
	go func() {
		s := <-signals
		signal.Stop(signals) // the next one does not wait for anybody
		cancel(caught{s})
	}()
	os.Exit(run(ctx, os.Args[1:], os.Stdout, os.Stderr))
}

// run does what the command line says and returns the exit code.
func run(ctx context.Context, args []string, stdout, stderr io.Writer) int {
	if len(args) == 0 {
		help(stderr)
		return exitUsage
	}
	name, args := args[0], args[1:]
	switch name {
	case "-h", "-help", "--help":
		name = "help"
	}
	if name == "help" {
		if len(args) == 0 {
			help(stdout)
			return exitOK
		}
		name, args = args[0], []string{"-h"}
	}
	for _, c := range commands() {
		if c.name == name {
			return c.run(ctx, args, stdout, stderr)
		}
	}
	fmt.Fprintf(stderr, "redlock: there is no such command%s; redlock help lists them\n", harmless(name))
	return exitUsage
}

func help(w io.Writer) {
	fmt.Fprint(w, "Usage: redlock <command> [flags]\n\nThe commands:\n\n")
	for _, c := range commands() {
		fmt.Fprintf(w, "  %-9s %s\n", c.name, c.summary)
	}
	fmt.Fprint(w, "  help      this text; redlock help <command> lists the flags of a command\n")
}

// parse reads the flags of a subcommand that takes no arguments besides them. It
// reports whether the subcommand is to go on, and its exit code if not.
func parse(flags *flag.FlagSet, args []string, usage string, stdout, stderr io.Writer) (code int, ok bool) {
	flags.SetOutput(io.Discard) // its messages quote what was given
	flags.Usage = func() {}
	err := flags.Parse(args)
	switch {
	case errors.Is(err, flag.ErrHelp):
		fmt.Fprint(stdout, usage)
		flags.SetOutput(stdout)
		flags.PrintDefaults()
		return exitOK, false
	case err != nil:
		_, wrong, _ := strings.Cut(err.Error(), ": ")
		fmt.Fprintf(stderr, "redlock %s: a flag is unknown or lacks its value%s; -h lists the flags\n", flags.Name(), harmless(wrong))
		return exitUsage, false
	case flags.NArg() > 0:
		fmt.Fprintf(stderr, "redlock %s: it takes flags only; -h lists them\n", flags.Name())
		return exitUsage, false
	}
	return exitOK, true
}

var word = regexp.MustCompile(`^-{0,2}[a-z]{1,16}$`)

// harmless returns s, for a message, if it has the shape of a command or a flag;
// nothing otherwise: it may be an endpoint with a password that was misplaced.
func harmless(s string) string {
	if !word.MatchString(s) {
		return ""
	}
	return " (" + s + ")"
}

// caught is the cause of a context that a signal ended.
type caught struct{ os.Signal }

func (c caught) Error() string { return c.String() }

// interrupted returns the exit code of a command whose context ended.
func interrupted(ctx context.Context) int {
	var c caught
	if errors.As(context.Cause(ctx), &c) {
		if s, ok := c.Signal.(syscall.Signal); ok {
			return 128 + int(s)
		}
	}
	return exitInterrupted
}
