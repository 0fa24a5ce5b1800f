//go:build linux

package fencetest

import (
	"os"
	"testing"
)

// writerEnv makes the test binary a writer; see writer_test.go.
const writerEnv = "FENCETEST_WRITER"

func TestMain(m *testing.M) {
	if spec := os.Getenv(writerEnv); spec != "" {
		if err := serveWriter(spec, os.Stdin, os.Stdout); err != nil {
			_, _ = os.Stderr.WriteString(err.Error() + "\n")
			os.Exit(1)
		}
		return
	}
	code := m.Run()
	postgres.stop()
	mariadb.stop()
	os.Exit(code)
}
