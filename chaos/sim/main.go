package sim

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"os/exec"
	"strconv"
)

// Main runs the simulation for the chaos command, as a test: virtual time exists in
// tests only. It returns the exit code.
func Main(ctx context.Context, args []string, stdout, stderr io.Writer) int {
	flags := flag.NewFlagSet("chaos sim", flag.ContinueOnError)
	flags.SetOutput(stderr)
	whole := flags.Bool("whole", false, "the whole stack, with the Lua script in miniredis, and not the core")
	n := flags.Int("schedules", 1000, "how many schedules")
	seed := flags.Uint64("seed", 1, "the seed of the first one")
	switch err := flags.Parse(args); {
	case errors.Is(err, flag.ErrHelp):
		return 0
	case err != nil:
		return 64
	case flags.NArg() > 0 || *n <= 0:
		fmt.Fprintln(stderr, "chaos sim: takes flags only, and at least one schedule")
		return 64
	}
	test := "^TestCore$"
	if *whole {
		test = "^TestWholeStack$"
	}
	cmd := exec.CommandContext(ctx, "go", "test", "github.com/quorumlock/redlock/chaos/sim", "-run", test, "-count=1", "-v", "-timeout=0",
		"-args", "-schedules", strconv.Itoa(*n), "-seed", strconv.FormatUint(*seed, 10))
	cmd.Stdout, cmd.Stderr = stdout, stderr
	fmt.Fprintln(stderr, cmd)
	err := cmd.Run()
	var exit *exec.ExitError
	switch {
	case err == nil:
		return 0
	case errors.As(err, &exit):
		return 1
	}
	fmt.Fprintln(stderr, "chaos sim: it runs as a test, in the source tree, with the go command:", err)
	return 1
}
