package redlock

import (
	"errors"
	"io"
	"net"
	"syscall"
)

// A looker reads from a socket without waiting.
type looker struct {
	raw  syscall.RawConn
	into []byte
	read func(fd uintptr) bool // made once, so that a look allocates nothing
	n    int
	err  error
}

// newLooker returns nil for what is more than a socket: of TLS, say, or of a dialer that
// counts bytes, only its own Read tells what is inside.
func newLooker(conn net.Conn) *looker {
	switch conn.(type) {
	case *net.TCPConn, *net.UnixConn:
	default:
		return nil
	}
	raw, err := conn.(syscall.Conn).SyscallConn() //nolint:forcetypeassert // both are
	if err != nil {
		return nil
	}
	l := &looker{raw: raw}
	l.read = func(fd uintptr) bool {
		l.n, l.err = syscall.Read(int(fd), l.into) //nolint:gosec // a descriptor is an int
		return true
	}
	return l
}

// look reads what has come into b, and returns 0 and nil if that is nothing.
func (l *looker) look(b []byte) (n int, err error) {
	l.into = b
	if err := l.raw.Read(l.read); err != nil {
		return 0, err
	}
	switch {
	case l.n > 0:
		return l.n, nil
	case l.err == nil:
		return 0, io.EOF
	case errors.Is(l.err, syscall.EAGAIN), errors.Is(l.err, syscall.EINTR):
		return 0, nil
	}
	return 0, l.err
}

// letOthersRun lets another thread have the processor, if one wants it: it may be the
// server. (What would let another goroutine run wakes a thread for it.)
func letOthersRun() {
	_, _, _ = syscall.RawSyscall(syscall.SYS_SCHED_YIELD, 0, 0, 0)
}
