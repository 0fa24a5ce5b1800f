//go:build linux

package fencetest

import (
	"fmt"
	"os"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/quorumlock/redlock/internal/redistest"
)

const (
	staleTTL   = 150 * time.Millisecond
	stalePairs = 5 // of writers, for each guard
)

// pauses is how often a writer is stopped, for each guard.
func pauses(t *testing.T) int {
	text := os.Getenv("REDLOCK_STALE_PAUSES")
	if text == "" {
		return 10
	}
	n, err := strconv.Atoi(text)
	require.NoError(t, err)
	require.Positive(t, n)
	return n
}

// A holder is stopped between its last look at the clock and its write, for longer
// than its lease; another process takes the lock meanwhile, and the first one
// writes late. A guard refuses every such write. Without one, each is applied: that
// is the proof that the test can fail.
func TestStaleWritersAreRefusedByTheGuardAndOnlyByIt(t *testing.T) {
	endpoints := redistest.Addrs(redistest.StartN(t, 3))
	n := pauses(t)
	for _, kind := range kinds {
		for _, guarded := range []bool{true, false} {
			name := kind.name
			if !guarded {
				name += " without its guard"
			}
			t.Run(name, func(t *testing.T) {
				t.Parallel()
				spec := kind.new(t)
				sub := must(t, spec)
				spec.Unguarded = !guarded
				pairs := make([]*pair, min(stalePairs, n))
				t.Run("pairs", func(t *testing.T) {
					for i := range pairs {
						pairs[i] = &pair{resource: fmt.Sprintf("r%d-%s", i, strings.ReplaceAll(name, " ", "-"))}
						t.Run(fmt.Sprint(i), func(t *testing.T) {
							t.Parallel()
							pairs[i].run(t, job{spec, endpoints, staleTTL}, i, n)
						})
					}
				})
				var stale, late int
				for _, p := range pairs {
					stale += p.verify(t, sub, guarded)
					late += p.late
				}
				t.Logf("%s: %d pauses, %d stale writes applied (%d more rounds had no time left at the last look)", name, n, stale, late)
				if guarded {
					require.Zero(t, stale)
				} else {
					require.Equal(t, n, stale)
				}
			})
		}
	}
}

// A pair is two writers that compete for one resource.
type pair struct {
	resource string
	a, b     *writer
	stopped  []string // the tokens of writers that were stopped
	late     int
}

// run stops its writers in turn, for its share of n pauses.
func (p *pair) run(t *testing.T, j job, number, n int) {
	p.a, p.b = startWriter(t, j), startWriter(t, j)
	for i := number; i < n; i += stalePairs {
		p.pause(t, i)
		p.a, p.b = p.b, p.a
	}
}

// pause stops a holder past its lease, and lets it write late: when the next one
// has read, has written, or has written and released.
func (p *pair) pause(t *testing.T, i int) {
	tokenA := p.acquire(t, p.a)
	p.a.stop()
	tokenB := p.acquire(t, p.b) // waits until the lease is over
	require.Less(t, number(t, tokenA), number(t, tokenB))
	if i%3 > 0 {
		require.Equal(t, "written", p.b.do("write"))
	}
	if i%3 > 1 {
		p.release(t, p.b, "released", "lost", "unknown")
	}

	p.a.ask("write")
	p.a.resume()
	require.Contains(t, []string{"written", "stale " + tokenB}, p.a.answer())
	p.stopped = append(p.stopped, tokenA)

	if i%3 == 0 {
		require.Equal(t, "written", p.b.do("write"))
	}
	if i%3 < 2 {
		p.release(t, p.b, "released", "lost", "unknown")
	}
	p.release(t, p.a, "lost", "unknown")
}

func (p *pair) release(t *testing.T, w *writer, want ...string) {
	require.Contains(t, want, w.do("release"))
}

// acquire returns the token with which w holds the lock after its last look at the
// clock.
func (p *pair) acquire(t *testing.T, w *writer) string {
	for range 100 {
		answer := w.do("acquire " + p.resource)
		if token, held := strings.CutPrefix(answer, "held "); held {
			return token
		}
		require.Equal(t, "late", answer)
		p.late++
		p.release(t, w, "lost", "unknown")
	}
	require.Fail(t, "a hundred acquires, and none in time")
	return ""
}

// verify returns how many writes of stopped writers are in the log, which was
// written together with the data and knows nothing of guards.
func (p *pair) verify(t *testing.T, sub subject, guarded bool) (stale int) {
	log, value, err := sub.state(t.Context(), p.resource)
	require.NoError(t, err)
	for _, token := range log {
		if slices.Contains(p.stopped, strconv.FormatUint(token, 10)) {
			stale++
		}
	}
	require.Len(t, log, len(p.stopped)+stale, "each holder that was not stopped has written, too")
	if guarded {
		require.True(t, slices.IsSorted(log), "%v", log)
		require.Equal(t, log[len(log)-1], value)
	}
	return stale
}

func number(t *testing.T, text string) uint64 {
	n, err := strconv.ParseUint(text, 10, 64)
	require.NoError(t, err)
	return n
}
