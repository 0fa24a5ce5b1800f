package main

import (
	"context"
	"flag"
	"fmt"
	"io"
	"runtime"
	"runtime/debug"
)

// version prints the version of the module that this program was built from, and
// of its Go.
func version(_ context.Context, args []string, stdout, stderr io.Writer) int {
	flags := flag.NewFlagSet("version", flag.ContinueOnError)
	if code, ok := parse(flags, args, "Usage: redlock version\n", stdout, stderr); !ok {
		return code
	}
	of := "(unknown)"
	if info, ok := debug.ReadBuildInfo(); ok && info.Main.Version != "" {
		of = info.Main.Version
	}
	fmt.Fprintf(stdout, "redlock %s %s %s/%s\n", of, runtime.Version(), runtime.GOOS, runtime.GOARCH)
	return exitOK
}
