package redistest

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"net"
	"strconv"
	"strings"
	"time"
)

// doTimeout bounds one command of Do, from the dial to the end of the reply.
const doTimeout = 2 * time.Second

// replyError is an error reply, word for word.
type replyError string

func (e replyError) Error() string { return string(e) }

// isReply reports whether err is the server's answer and not the lack of one.
func isReply(err error) bool {
	_, ok := errors.AsType[replyError](err)
	return ok
}

// Do sends one command over a fresh connection and returns the reply: string,
// int64, []any or nil. An error reply is returned as an error that reads exactly
// as the server wrote it (inside an array it is an element); any
// other error means that no whole reply came within 2 s.
func (s *Server) Do(args ...string) (any, error) {
	reply, err := roundTrip(s.Addr(), args)
	if err != nil && !isReply(err) {
		command := strings.Join(args[:min(2, len(args))], " ")
		return nil, fmt.Errorf("redistest: %s on %s: %w", command, s.Addr(), err)
	}
	return reply, err
}

func roundTrip(addr string, args []string) (any, error) {
	conn, err := net.DialTimeout("tcp", addr, doTimeout)
	if err != nil {
		return nil, err
	}
	defer conn.Close()
	if err := conn.SetDeadline(time.Now().Add(doTimeout)); err != nil {
		return nil, err
	}
	var request strings.Builder
	fmt.Fprintf(&request, "*%d\r\n", len(args))
	for _, arg := range args {
		fmt.Fprintf(&request, "$%d\r\n%s\r\n", len(arg), arg)
	}
	// A write error does not end it: a server at maxclients says why and closes
	// without reading, so the reply is worth more than the broken pipe.
	_, writeErr := io.WriteString(conn, request.String())
	in := bufio.NewReader(conn)
	reply, err := readReply(in)
	if err != nil && !isReply(err) {
		return nil, errors.Join(writeErr, err)
	}
	// Leave only when the server has forgotten this connection. Otherwise the
	// next connection to a server with --maxclients 1 may be one too many.
	if conn.(*net.TCPConn).CloseWrite() == nil {
		_, _ = io.Copy(io.Discard, in)
	}
	return reply, err
}

// readReply reads one RESP2 reply.
func readReply(in *bufio.Reader) (any, error) {
	line, err := in.ReadString('\n')
	if err != nil {
		return nil, err
	}
	line = strings.TrimRight(line, "\r\n")
	if line == "" {
		return nil, errors.New("empty reply line")
	}
	kind, rest := line[0], line[1:]
	switch kind {
	case '+':
		return rest, nil
	case '-':
		return nil, replyError(rest)
	}
	n, err := strconv.ParseInt(rest, 10, 64)
	if err != nil {
		return nil, fmt.Errorf("reply %q: %w", line, err)
	}
	switch {
	case kind == ':':
		return n, nil
	case n < 0 && (kind == '$' || kind == '*'):
		return nil, nil
	case kind == '$':
		bulk := make([]byte, n+2)
		if _, err := io.ReadFull(in, bulk); err != nil {
			return nil, err
		}
		return string(bulk[:n]), nil
	case kind == '*':
		array := make([]any, n)
		for i := range array {
			element, err := readReply(in)
			if isReply(err) {
				element = err
			} else if err != nil {
				return nil, err
			}
			array[i] = element
		}
		return array, nil
	}
	return nil, fmt.Errorf("reply %q is not RESP2", line)
}
