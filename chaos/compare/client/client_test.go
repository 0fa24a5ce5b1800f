package client

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"io"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// A fake is a Locker in memory, which grants a lock to whoever asks first.
type fake struct {
	ttl time.Duration

	mu       sync.Mutex
	held     map[string]bool
	next     uint64
	extended int
	closed   bool
}

type fakeLease struct {
	*fake
	resource string
	until    time.Time
	token    uint64
}

var errHeld = errors.New("somebody else has it")

func (f *fake) Acquire(_ context.Context, resource string) (Lease, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.held[resource] {
		return nil, errHeld
	}
	f.held[resource] = true
	f.next++
	return &fakeLease{f, resource, time.Now().Add(f.ttl), f.next}, nil
}

func (f *fake) Close() error {
	f.closed = true
	return nil
}

func (l *fakeLease) Until() time.Time { return l.until }
func (l *fakeLease) Token() uint64    { return l.token }

func (l *fakeLease) Extend(context.Context) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.extended++
	l.until = time.Now().Add(l.ttl)
	return nil
}

func (l *fakeLease) Release(context.Context) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	delete(l.held, l.resource)
	return nil
}

func TestAClientWorksUntilItIsStopped(t *testing.T) {
	registers, err := NewRegisters()
	require.NoError(t, err)
	defer registers.Close()
	const ttl = 60 * time.Millisecond
	f := &fake{ttl: ttl, held: map[string]bool{}}
	in, input := io.Pipe()
	output, out := io.Pipe()
	ended := make(chan error, 1)
	go func() { ended <- Serve(t.Context(), func(Job) (Locker, error) { return f, nil }, in, out) }()
	lines := bufio.NewReader(output)
	job, err := json.Marshal(Job{
		Register: registers.Addr(), TTL: ttl, Private: 3, Every: 2 * time.Millisecond, Budget: time.Second,
		Waiters: 2, Work: 10 * time.Millisecond, Writes: []int{1, 10},
	})
	require.NoError(t, err)
	for _, line := range []string{string(job), "start"} {
		_, err := io.WriteString(input, line+"\n")
		require.NoError(t, err)
		if line != "start" {
			ready, err := lines.ReadString('\n')
			require.NoError(t, err)
			require.Equal(t, "ready\n", ready)
		}
	}
	require.Eventually(t, func() bool { return len(registers.Log()) > 50 }, 10*time.Second, time.Millisecond)
	_, err = io.WriteString(input, "stop\n")
	require.NoError(t, err)
	var seen Testimony
	require.NoError(t, json.NewDecoder(lines).Decode(&seen))
	require.NoError(t, input.Close())
	require.NoError(t, <-ended)

	require.True(t, f.closed)
	require.Empty(t, f.held, "everything was released")
	require.Positive(t, f.extended, "a hold longer than a third of the ttl")
	require.NotEmpty(t, seen.Attempts)
	require.Empty(t, seen.Errors)
	holds := map[int64]Hold{}
	for _, h := range seen.Holds {
		require.LessOrEqual(t, h.Call, h.Acquired)
		require.LessOrEqual(t, h.Acquired, h.End)
		holds[h.ID] = h
	}
	require.Len(t, holds, len(seen.Holds), "each has a number of its own")
	first := map[int64]bool{}
	for _, o := range registers.Log() {
		h, ok := holds[o.Hold]
		require.True(t, ok)
		require.Equal(t, h.Token, o.Token)
		require.Equal(t, first[o.Hold], o.Write, "a holder reads first")
		first[o.Hold] = true
	}
}

// A process that outlived who started it would lock for ever.
func TestAClientEndsWithItsInput(t *testing.T) {
	f := &fake{ttl: time.Second, held: map[string]bool{}}
	opened := func(Job) (Locker, error) { return f, nil }
	for _, input := range []string{"", "nonsense\n", "{}\n", "{}\nnonsense\n", `{"Every":1000000,"Private":1}` + "\nstart\n"} {
		require.Error(t, Serve(t.Context(), opened, strings.NewReader(input), io.Discard), "%q", input)
	}
}

func TestOnlyTheFencedRegisterRefuses(t *testing.T) {
	s, err := NewRegisters()
	require.NoError(t, err)
	defer s.Close()
	r, err := dialRegisters(s.Addr())
	require.NoError(t, err)
	defer r.close()
	for _, o := range []Operation{{Hold: 1, Token: 7, Write: true}, {Hold: 2, Token: 8}, {Hold: 1, Token: 7, Write: true}, {Hold: 3, Write: true}, {Hold: 4, Resource: 1, Token: 1}} {
		require.NoError(t, r.do(o))
	}
	var refused []bool
	for _, o := range s.Log() {
		refused = append(refused, o.Refused)
		require.Positive(t, o.At)
	}
	require.Equal(t, []bool{false, false, true, false, false}, refused)
}
