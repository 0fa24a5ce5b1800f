package tokens

import (
	"os"
	"testing"

	"go.uber.org/goleak"
)

// TestMain is also the client process of the tests: they start this binary again.
func TestMain(m *testing.M) {
	if config := os.Getenv(clientConfig); config != "" {
		os.Exit(runClient(config))
	}
	goleak.VerifyTestMain(m)
}
