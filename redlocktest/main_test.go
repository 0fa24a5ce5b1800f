package redlocktest_test

import (
	"testing"

	"go.uber.org/goleak"
)

// A cluster leaves nothing running.
func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }
