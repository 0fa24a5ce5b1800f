package compare

import (
	"cmp"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/quorumlock/redlock/chaos/compare/client"
)

// fullPage is a page with all variants, all faults and every kind of harm, made up
// from a seed.
func fullPage() *page {
	random := rand.New(rand.NewPCG(5, 5))
	p := newPlan(5, false, false, true)
	p.leftOut = []string{"A fault: that needs something with a rather long name that this machine has not."}
	var results []*result
	for _, v := range variants() {
		start := time.Unix(1_000_000, 0)
		at := func(d time.Duration) int64 { return start.Add(d).UnixNano() }
		r := &record{variant: v, plan: p, start: start, slots: p.slots, measuredTo: p.healthy, used: usage{9000, time.Second, 2 * time.Second}}
		for i := range v.n {
			r.endpoints = append(r.endpoints, string(rune('a'+i)))
		}
		for c := range p.clients {
			t := client.Testimony{Quarantines: []client.Quarantine{{Instance: "a", At: at(10 * time.Second), For: 4 * time.Second}}}
			for d := time.Duration(0); d < p.total; d += 50 * ms {
				down := v.n == 1 && d > 7*time.Second && d < 12*time.Second
				t.Attempts = append(t.Attempts, client.Attempt{At: at(d), Took: time.Duration(random.ExpFloat64() * float64(2*ms)), Granted: !down})
			}
			for d := time.Duration(0); d < p.total-time.Second; d += 500 * ms {
				begin := d + time.Duration(c)*250*ms
				h := client.Hold{
					ID: int64(c)<<32 | int64(d/ms), Client: c, Resource: int(d/(500*ms)) % 4, Token: uint64(begin) + 1, //nolint:gosec // positive
					Call: at(begin), Acquired: at(begin), Until: at(begin + 2*time.Second), End: at(begin + 240*ms),
				}
				if d == 50*time.Second {
					h.End = at(begin + 700*ms)
				}
				if v.peer != "" {
					h.Token = 0
				}
				t.Holds = append(t.Holds, h)
				for n := range 4 {
					o := client.Operation{Hold: h.ID, Resource: h.Resource, Token: h.Token, Write: n > 0, At: h.Acquired + int64(n)*int64(60*ms)}
					if d == 50*time.Second && n == 3 {
						o.At, o.Refused = h.End, v.peer == "" && c == 0
					}
					r.log = append(r.log, o)
				}
			}
			r.seen = append(r.seen, t)
		}
		slices.SortFunc(r.log, func(a, b client.Operation) int { return cmp.Compare(a.At, b.At) })
		for i, state := range []string{"down", "hung", "slow", "cut off", "clock ahead"} {
			from := time.Duration(7+8*i) * time.Second
			r.spans = append(r.spans, span{i % v.n, state, from, from + 3*time.Second}, span{i % v.n, "flushed", from, from})
		}
		results = append(results, judge(r))
	}
	return newPage(p, env{Command: "go run ./chaos compare", Seed: 5, Date: "2026-11-30", CPU: "a processor", Cores: 2, Load: "0.5", Go: "go", Redis: "7.0.15"}, results)
}

func TestThePageSaysWhatWasFound(t *testing.T) {
	pg := fullPage()
	html, err := pg.html()
	require.NoError(t, err)
	md, err := pg.markdown()
	require.NoError(t, err)
	for _, page := range []string{string(html), string(md)} {
		for _, v := range variants() {
			has(t, page, v.title)
		}
		for _, f := range faults(30*ms, time.Second) {
			has(t, strings.ReplaceAll(page, "&#39;", "'"), f.title)
		}
		has(t, page, "double hold")
		has(t, page, "no replica to fail over to")
		has(t, page, "with a rather long name")
		has(t, page, "go run ./chaos compare")
	}
	has(t, pg.Lead, "one Redis gave out no lock for up to 5.0 s")
	require.Len(t, pg.Figures, len(variants()))
	require.Len(t, pg.CloseUp, len(variants()), "each has harm")
	for _, c := range pg.CloseUp {
		require.NotEmpty(t, c.Clashes)
		late := 0
		for _, d := range c.Dots {
			if d.Class == "late" {
				late++
			}
		}
		require.Positive(t, late)
	}
	for _, f := range pg.Figures {
		require.NotEmpty(t, f.Median)
		require.NotEmpty(t, f.Clashes)
		require.NotEmpty(t, f.Stale)
		for _, boxes := range [][]box{f.Bands, f.States, f.Clashes, f.Marks} {
			for _, b := range boxes {
				require.GreaterOrEqual(t, b.X, left)
				require.LessOrEqual(t, b.X+b.W, width)
				require.LessOrEqual(t, b.Y+b.H, f.Height)
			}
		}
	}
	// No tokens, no verdict on them.
	require.Equal(t, none, pg.Summary[4].Cells[4].Text, pg.Summary[4].Title)
}

func TestNumbersAreShortAndNeverFlatter(t *testing.T) {
	for d, want := range map[time.Duration]string{
		90 * time.Microsecond: "0.09 ms", 570 * time.Microsecond: "0.57 ms", 100 * time.Microsecond: "0.1 ms", 1570 * time.Microsecond: "1.6 ms",
		42 * ms: "42 ms", 999 * ms: "999 ms", 6820 * ms: "6.8 s", 61 * time.Second: "61 s",
	} {
		require.Equal(t, want, show(d))
	}
	for x, want := range map[float64]string{1: "100 %", 0.99999: "99.9 %", 0.5: "50.0 %", 0: "0.0 %", -1: none} {
		require.Equal(t, want, percent(x))
	}
	for title, want := range map[string]string{
		"One Redis": "one Redis", "FLUSHALL on one": "FLUSHALL on one", "A client pauses": "a client pauses",
		"Quorum of three": "a quorum of three", "redsync, three": "redsync, three",
	} {
		require.Equal(t, want, inSentence(title))
	}
}
