package faults

import (
	"os"
	"testing"

	"go.uber.org/goleak"
)

// TestMain is also the client process of the tests, and the command: they start this
// binary again.
func TestMain(m *testing.M) {
	if code, isClient := Client(); isClient {
		os.Exit(code)
	}
	if args := os.Getenv(commandVariable); args != "" {
		os.Exit(command(args))
	}
	goleak.VerifyTestMain(m)
}
