package main

import (
	"context"
	"flag"
	"fmt"
	"io"
	"runtime"
	"runtime/debug"
)

const versionUsage = "Usage: redlock version\n"

// version prints the version of the module that this program was built from, and
// of its Go.
func version(*flag.FlagSet) action {
	return func(_ context.Context, _ []string, stdout, _ io.Writer) int {
		of := "(unknown)"
		if info, ok := debug.ReadBuildInfo(); ok && info.Main.Version != "" {
			of = info.Main.Version
		}
		fmt.Fprintf(stdout, "redlock %s %s %s/%s\n", of, runtime.Version(), runtime.GOOS, runtime.GOARCH)
		return exitOK
	}
}
