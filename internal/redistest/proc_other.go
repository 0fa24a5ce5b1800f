//go:build !linux

package redistest

import (
	"errors"
	"syscall"
)

// procAttr has nothing to offer elsewhere: a server outlives a test process that
// is killed.
func procAttr() *syscall.SysProcAttr { return nil }

// noSignal is one that os.Process refuses to send. Pausing needs Linux: nothing
// here could tell when a server has really stopped.
type noSignal struct{}

func (noSignal) Signal()        {}
func (noSignal) String() string { return "pausing a server needs Linux" }

var sigStop, sigCont noSignal

func stopped(int) (bool, error) { return false, errors.New(sigStop.String()) }
