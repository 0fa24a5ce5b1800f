package redlock

import (
	"os"
	"testing"

	"go.uber.org/goleak"
)

// Every goroutine has an owner that waits for it: after the tests, none is left.
// TestMain is also the other process of tests that need one.
func TestMain(m *testing.M) {
	if endpoints := os.Getenv(otherProcess); endpoints != "" {
		os.Exit(lockElsewhere(endpoints))
	}
	goleak.VerifyTestMain(m)
}
