package redlock

import (
	"errors"
	"io"
	"net"
	"os"
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
	var socket syscall.Conn
	switch conn := conn.(type) {
	case *net.TCPConn:
		socket = conn
	case *net.UnixConn:
		socket = conn
	default:
		return nil
	}
	raw, err := socket.SyscallConn()
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
	return 0, os.NewSyscallError("read", l.err)
}

// letOthersRun lets another thread have the processor, if one wants it: it may be the
// server. (runtime.Gosched would wake a thread, for what another goroutine might do.)
func letOthersRun() {
	_, _, _ = syscall.RawSyscall(syscall.SYS_SCHED_YIELD, 0, 0, 0)
}
