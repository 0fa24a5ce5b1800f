// Command redlock runs commands under a lock of package redlock, and shows what
// there is to know about its instances, from a terminal.
//
//	redlock run nightly-backup -- ./backup.sh
//	redlock check
//	redlock inspect nightly-backup
//	redlock bench
//	redlock demo
//
// Its subcommands exit with 0 when they did what was asked, and otherwise with
// one of the codes below; see docs/command-line.md. Endpoints are never printed
// as they were given: there may be a password in them.
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
	"slices"
	"strings"
	"syscall"

	"github.com/redis/go-redis/v9/logging"
)

// Exit codes. 64, 69 and 75 are those of sysexits.h, 126 and 127 those of a
// shell; what a signal ended exits with 128 plus the number of the signal, as a
// shell reports it.
const (
	exitOK            = 0
	exitFailed        = 1
	exitWarnings      = 1   // check: with less in reserve than it seems
	exitUnsafe        = 2   // check: not fit for Redlock
	exitUsage         = 64  // a flag, an argument or an endpoint is wrong
	exitUnavailable   = 69  // no quorum of the instances can be reached
	exitBusy          = 75  // run: somebody else holds the lock
	exitLost          = 79  // run: the lock was lost while the command ran
	exitNotExecutable = 126 // run: the command can't be run
	exitNotFound      = 127 // run: there is no such command
	exitSignal        = 128
	exitInterrupted   = exitSignal + int(syscall.SIGINT)
)

// A command is one subcommand.
type command struct {
	name     string
	summary  string
	usage    string   // what its help begins with
	operands []string // the arguments that it takes besides flags
	// runs says that it runs what stands behind a --, and minds the signals by itself;
	// all others are interrupted by the first one.
	runs  bool
	setup func(flags *flag.FlagSet) action
}

// An action is what a command does once the flags that its setup declared are
// parsed. It returns the exit code.
type action func(ctx context.Context, operands []string, stdout, stderr io.Writer) int

// commands returns the subcommands, in the order of the help text.
func commands() []command {
	return []command{
		{name: "run", summary: "run a command while holding a lock", usage: runUsage, operands: []string{"NAME"}, runs: true, setup: runCommand},
		{name: "check", summary: "say whether the instances are fit for locks", usage: checkUsage, setup: check},
		{name: "inspect", summary: "say who holds a lock, on which instance and for how long", usage: inspectUsage, operands: []string{"NAME"}, setup: inspect},
		{name: "bench", summary: "measure how fast the instances lock, from here", usage: benchUsage, setup: bench},
		{name: "demo", summary: "a lock at work, on instances inside this process or on servers of yours", usage: demoUsage, setup: demo},
		{name: "completion", summary: "a script that completes command lines, for bash, zsh or fish", usage: completionUsage, operands: []string{"SHELL"}, setup: completion},
		{name: "version", summary: "the version of this program", usage: versionUsage, setup: version},
	}
}

func main() {
	logging.Disable() // go-redis would write between the lines
	os.Exit(run(context.Background(), os.Args[1:], os.Stdout, os.Stderr))
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
			return c.call(ctx, args, stdout, stderr)
		}
	}
	fmt.Fprintf(stderr, "redlock: there is no such command%s; redlock help lists them\n", harmless(name))
	return exitUsage
}

func help(w io.Writer) {
	fmt.Fprint(w, "Usage: redlock <command> [flags]\n\nThe commands:\n\n")
	for _, c := range commands() {
		fmt.Fprintf(w, "  %-11s %s\n", c.name, c.summary)
	}
	fmt.Fprint(w, `  help        this text; redlock help <command> has examples and lists the flags

Examples:

  export REDLOCK_ENDPOINTS=redis://a:6379,redis://b:6379,redis://c:6379
  redlock check
  redlock run nightly-backup -- ./backup.sh
`)
}

// call parses the arguments of a subcommand, and does what it is for.
func (c command) call(ctx context.Context, args []string, stdout, stderr io.Writer) int {
	flags := flag.NewFlagSet(c.name, flag.ContinueOnError)
	flags.SetOutput(io.Discard) // its messages quote what was given
	flags.Usage = func() {}
	act := c.setup(flags)
	var program []string
	if i := slices.Index(args, "--"); c.runs && i >= 0 {
		args, program = args[:i], args[i+1:]
	}
	operands, err := parse(flags, args)
	switch {
	case errors.Is(err, flag.ErrHelp):
		fmt.Fprint(stdout, c.usage, "\nFlags:\n\n")
		printFlags(stdout, flags)
		return exitOK
	case err != nil:
		fmt.Fprintf(stderr, "redlock %s: %s; -h lists the flags\n", c.name, fault(err))
		return exitUsage
	case len(operands) != len(c.operands):
		fmt.Fprintf(stderr, "redlock %s: %s\n", c.name, c.takes())
		return exitUsage
	case c.runs && len(program) == 0:
		fmt.Fprintf(stderr, "redlock %s: there is no command: it stands behind a --\n", c.name)
		return exitUsage
	}
	if !c.runs {
		var stop func()
		ctx, stop = interruptible(ctx)
		defer stop()
	}
	return act(ctx, append(operands, program...), stdout, stderr)
}

// takes says what arguments a subcommand takes.
func (c command) takes() string {
	switch {
	case c.runs:
		return "it takes one " + c.operands[0] + " and, behind a --, a command; -h shows examples"
	case c.operands != nil:
		return "it takes one " + c.operands[0] + " besides flags; -h shows examples"
	}
	return "it takes flags only; -h lists them"
}

// parse parses flags that may stand before and behind the operands.
func parse(flags *flag.FlagSet, args []string) (operands []string, err error) {
	for {
		if err := flags.Parse(args); err != nil {
			return nil, err
		}
		if flags.NArg() == 0 {
			return operands, nil
		}
		operands, args = append(operands, flags.Arg(0)), flags.Args()[1:]
	}
}

var badValue = regexp.MustCompile(`" for (?:flag )?-([A-Za-z-]+): ([^"]*)$`)

// fault returns what is wrong with the flags, without what was given: that may be
// an endpoint with a password.
func fault(err error) string {
	if m := badValue.FindStringSubmatch(err.Error()); m != nil {
		return fmt.Sprintf("the value of %s is wrong: %s", dashed(m[1]), m[2])
	}
	_, wrong, _ := strings.Cut(err.Error(), ": ")
	return "a flag is unknown or lacks its value" + harmless(wrong)
}

// printFlags prints what each flag is for.
func printFlags(w io.Writer, flags *flag.FlagSet) {
	flags.VisitAll(func(f *flag.Flag) {
		value, text := flag.UnquoteUsage(f)
		if f.DefValue != "" && f.DefValue != "false" {
			text += " (default " + f.DefValue + ")"
		}
		fmt.Fprintf(w, "  %s\n        %s\n", strings.TrimSpace(dashed(f.Name)+" "+value), strings.ReplaceAll(text, "\n", "\n        "))
	})
}

// dashed returns the name of a flag as it is usually typed; package flag takes one
// dash or two.
func dashed(name string) string {
	if len(name) == 1 {
		return "-" + name
	}
	return "--" + name
}

var word = regexp.MustCompile(`^-{0,2}[A-Za-z][a-z-]{0,20}$`)

// harmless returns s, for a message, if it has the shape of a command or a flag;
// nothing otherwise: it may be an endpoint with a password that was misplaced.
func harmless(s string) string {
	if !word.MatchString(s) {
		return ""
	}
	return " (" + s + ")"
}

// interruptible returns a context that the first signal ends. The next one does
// not wait for anybody.
func interruptible(ctx context.Context) (_ context.Context, stop func()) {
	signals := make(chan os.Signal, 1)
	signal.Notify(signals, os.Interrupt, syscall.SIGTERM)
	ctx, ended := endedBy(ctx, signals)
	return ctx, func() {
		ended()
		signal.Stop(signals)
	}
}

// endedBy returns a context that the first of the signals ends, which is the last
// one that is caught. Those that come after stop are for somebody else.
func endedBy(ctx context.Context, signals chan os.Signal) (_ context.Context, stop func()) {
	ctx, cancel := context.WithCancelCause(ctx)
	quit, done := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(done)
		select {
		case s := <-signals:
			signal.Stop(signals)
			cancel(caught{s})
		case <-quit:
		}
	}()
	return ctx, func() {
		close(quit)
		<-done
	}
}

// caught is the cause of a context that a signal ended.
type caught struct{ os.Signal }

func (c caught) Error() string { return c.String() }

// interrupted returns the exit code of a command whose context ended.
func interrupted(ctx context.Context) int {
	var c caught
	if errors.As(context.Cause(ctx), &c) {
		if s, ok := c.Signal.(syscall.Signal); ok {
			return exitSignal + int(s)
		}
	}
	return exitInterrupted
}
