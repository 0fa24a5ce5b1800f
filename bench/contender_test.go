package main

import (
	"bufio"
	"encoding/json"
	"io"
	"testing"
	"time"

	"github.com/quorumlock/redlock/chaos/compare/client"
	"github.com/quorumlock/redlock/internal/redistest"
	"github.com/stretchr/testify/require"
)

// The comparison's client process has leases of redsync that end, are extended and
// are released.
func TestAContenderIsAClientOfTheComparison(t *testing.T) {
	ss := redistest.StartN(t, 3)
	const ttl = 3 * time.Second
	registers, err := client.NewRegisters()
	require.NoError(t, err)
	t.Cleanup(registers.Close)
	job, err := json.Marshal(client.Job{
		Endpoints: redistest.Addrs(ss), Register: registers.Addr(), TTL: ttl,
		Private: 10, Every: 5 * time.Millisecond, Budget: time.Second,
		Waiters: 1, Work: 5 * time.Millisecond, Writes: []int{400}, // longer than a third of the ttl
	})
	require.NoError(t, err)
	in, input := io.Pipe()
	output, out := io.Pipe()
	ended := make(chan error, 1)
	go func() { ended <- contend(t.Context(), []string{"redsync-tuned"}, in, out) }()
	say := func(line string) {
		_, err := io.WriteString(input, line+"\n")
		require.NoError(t, err)
	}
	lines := bufio.NewReader(output)
	say(string(job))
	line, err := lines.ReadString('\n')
	require.NoError(t, err)
	require.Equal(t, "ready\n", line)
	say("start")
	require.Eventually(t, func() bool {
		writes := 0
		for _, o := range registers.Log() {
			if o.Write {
				writes++
			}
		}
		return writes > 400
	}, 20*time.Second, 10*time.Millisecond)
	say("stop")
	var seen client.Testimony
	require.NoError(t, json.NewDecoder(lines).Decode(&seen))
	require.NoError(t, input.Close())
	require.NoError(t, <-ended)
	require.Empty(t, seen.Errors)
	require.NotEmpty(t, seen.Attempts)
	require.NotEmpty(t, seen.Holds)
	extended := 0
	for _, h := range seen.Holds {
		require.Greater(t, h.Until, h.Acquired)
		require.Zero(t, h.Token)
		if h.Until-h.Acquired > int64(ttl) {
			extended++
		}
	}
	require.Positive(t, extended)
}

func TestAContenderHasOneName(t *testing.T) {
	require.ErrorContains(t, contend(t.Context(), nil, nil, nil), "one contender")
	require.Error(t, contend(t.Context(), []string{"nobody"}, nil, nil))
}
