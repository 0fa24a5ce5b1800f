package compare

import (
	"context"
	"os"
	"os/signal"
	"syscall"
	"testing"

	"go.uber.org/goleak"
)

// wholeCommand is the environment variable that makes this binary the command.
const wholeCommand = "REDLOCK_COMPARE_TEST_COMMAND"

// TestMain is also a client process, and the command as a process.
func TestMain(m *testing.M) {
	if os.Getenv(clientProcess) != "" || os.Getenv(wholeCommand) != "" {
		ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
		code := Main(ctx, os.Args[1:], os.Stdout, os.Stderr)
		stop()
		os.Exit(code)
	}
	goleak.VerifyTestMain(m)
}
