package client

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"sync"
	"time"

	"github.com/quorumlock/redlock/fence"
)

// An Operation is one access to the two registers of a resource. The unfenced one
// takes every write; the fenced one looks at the token first.
type Operation struct {
	Hold     int64
	Resource int
	Token    uint64
	Write    bool // else a read, a holder's first operation

	// Filled in by the registers.
	At      int64 // when it was applied
	Refused bool  // by the fenced one
}

// Registers are the resources: a fenced and an unfenced register each, behind one
// port. They keep a log, in the order in which operations were applied.
type Registers struct {
	listener net.Listener
	guard    fence.HighWater
	running  sync.WaitGroup

	mu     sync.Mutex
	log    []Operation
	conns  map[net.Conn]struct{}
	closed bool
}

// NewRegisters opens registers on a free loopback port; end them with Close.
func NewRegisters() (*Registers, error) {
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return nil, err
	}
	s := &Registers{listener: listener, conns: map[net.Conn]struct{}{}}
	s.running.Go(s.accept)
	return s, nil
}

// Addr returns where they are.
func (s *Registers) Addr() string { return s.listener.Addr().String() }

// Close ends all connections.
func (s *Registers) Close() {
	_ = s.listener.Close()
	s.mu.Lock()
	s.closed = true
	for conn := range s.conns {
		_ = conn.Close()
	}
	s.mu.Unlock()
	s.running.Wait()
}

// Log returns what was applied so far.
func (s *Registers) Log() []Operation {
	s.mu.Lock()
	defer s.mu.Unlock()
	return append([]Operation(nil), s.log...)
}

func (s *Registers) accept() {
	for {
		conn, err := s.listener.Accept()
		if err != nil {
			return
		}
		s.mu.Lock()
		s.conns[conn] = struct{}{}
		if s.closed {
			_ = conn.Close()
		}
		s.mu.Unlock()
		s.running.Go(func() {
			s.serve(conn)
			s.mu.Lock()
			defer s.mu.Unlock()
			delete(s.conns, conn)
		})
	}
}

func (s *Registers) serve(conn net.Conn) {
	defer conn.Close()
	in, out := json.NewDecoder(bufio.NewReader(conn)), json.NewEncoder(conn)
	for {
		var o Operation
		if in.Decode(&o) != nil {
			return
		}
		if out.Encode(s.apply(o)) != nil {
			return
		}
	}
}

// apply is one step, as a guard has to be: look at the token and write.
func (s *Registers) apply(o Operation) Operation {
	s.mu.Lock()
	defer s.mu.Unlock()
	if o.Token > 0 {
		o.Refused = errors.Is(s.guard.Check(context.Background(), fmt.Sprint(o.Resource), o.Token), fence.ErrStale)
	}
	o.At = time.Now().UnixNano()
	s.log = append(s.log, o)
	return o
}

// registers is a connection to [Registers].
type registers struct {
	conn net.Conn
	in   *json.Decoder
	out  *json.Encoder
}

func dialRegisters(addr string) (*registers, error) {
	conn, err := net.Dial("tcp", addr)
	if err != nil {
		return nil, err
	}
	return &registers{conn, json.NewDecoder(bufio.NewReader(conn)), json.NewEncoder(conn)}, nil
}

// do returns when o was applied. That it was refused is no error: the one who
// writes to the unfenced register would not know.
func (r *registers) do(o Operation) error {
	if err := r.out.Encode(o); err != nil {
		return err
	}
	return r.in.Decode(&o)
}

func (r *registers) close() { _ = r.conn.Close() }
