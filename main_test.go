package redlock

import (
	"testing"

	"go.uber.org/goleak"
)

// Every goroutine has an owner that waits for it: after the tests, none is left.
func TestMain(m *testing.M) {
	goleak.VerifyTestMain(m)
}
