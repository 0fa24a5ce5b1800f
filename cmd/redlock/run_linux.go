package main

import "syscall"

// inOwnGroup makes a command the first of a process group of its own, and has the
// kernel kill it, though not what it has started, if we are killed.
func inOwnGroup() *syscall.SysProcAttr {
	return &syscall.SysProcAttr{Setpgid: true, Pdeathsig: syscall.SIGKILL}
}

const prSetChildSubreaper = 36

// adoptOrphans makes processes whose parent has ended children of ours. An ended
// process counts as one of its group until its parent has waited for it, and what
// runs as process 1 of a container may never do that.
func adoptOrphans() {
	_, _, _ = syscall.RawSyscall(syscall.SYS_PRCTL, prSetChildSubreaper, 1, 0)
}
