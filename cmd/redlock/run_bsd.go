//go:build darwin || freebsd || netbsd || openbsd || dragonfly

package main

import "syscall"

// inOwnGroup makes a command the first of a process group of its own.
func inOwnGroup() *syscall.SysProcAttr { return &syscall.SysProcAttr{Setpgid: true} }

// adoptOrphans does nothing: whom init adopts, init waits for.
func adoptOrphans() {}
