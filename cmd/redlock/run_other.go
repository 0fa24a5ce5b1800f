//go:build !(linux || darwin || freebsd || netbsd || openbsd || dragonfly)

package main

import (
	"context"
	"errors"
	"runtime"

	"github.com/quorumlock/redlock"
)

// runLocked refuses: a command that can't be told to stop, and be killed with all
// that it has started, can't be kept within a lock.
func (j *job) runLocked(context.Context, *redlock.Locker) (int, error) {
	return exitNotExecutable, errors.New("it does not work on " + runtime.GOOS + ", which has no process groups to signal")
}
