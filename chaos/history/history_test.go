package history

import (
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// A run that is as it should be: two holders of a fenced counter, one after the other.
func goodRun() *History {
	return &History{
		Holds: []Hold{
			{Client: 1, Resource: "r", Sent: 10, Answered: 20, Result: OK, Token: 5, Until: 100, Release: Step{50, 60, OK}},
			{Client: 2, Resource: "r", Sent: 15, Answered: 25, Result: Refused},
			{Client: 2, Resource: "r", Sent: 55, Answered: 70, Result: OK, Token: 6, Until: 150, Extends: []Step{{80, 85, OK}}, Signal: 140},
		},
		Accesses: []Access{
			access(1, 5, 22, 1, func(a *Access) { a.Kind = Read }),
			access(1, 5, 30, 2, func(a *Access) { a.Value = 1 }),
			access(2, 6, 75, 3, func(a *Access) { a.Base, a.Value = 1, 2 }),
			{Client: 1, Resource: "r", Fenced: true, Token: 5, Kind: Update, Sent: 110, Answered: 120, Result: Refused},
		},
		Faults: []Fault{{Name: "pause", Target: "1", From: 10, To: 40, Hits: 2}, {Name: "pause", Target: "2", From: 20, To: 40}},
		Healed: 50,
	}
}

// access is an update of the fenced resource r that took 2 ns, but for what change says.
func access(client int, token uint64, sent, seq int64, change func(*Access)) Access {
	a := Access{
		Client: client, Resource: "r", Fenced: true, Token: token, Kind: Update, Sent: sent, Answered: sent + 2,
		Result: OK, Seq: seq, Committed: sent + 1,
	}
	change(&a)
	return a
}

var everything = Demand{Operations: 4, Faults: 1, Exclusive: true, Order: true, Extends: true, Clean: true, Recovers: 20}

func TestAGoodRunPasses(t *testing.T) {
	r, err := goodRun().Check(everything)
	require.NoError(t, err)
	require.Empty(t, r.Failures)
	require.Equal(t, 2+1+1+4, r.Operations)
	require.Equal(t, []int{2, 3, 4, 1, 1, 1}, []int{r.Holds, r.Tries, r.Accesses, r.Faults, r.Misses, r.Refused})
	require.Equal(t, Signals{1, 10, 10, 10}, r.Signals)
	require.Equal(t, 20*time.Nanosecond, r.Recovery)
}

// Each thing that can be wrong is found, and only where it is demanded, unless it is
// always.
func TestWhatIsWrongIsFound(t *testing.T) {
	unfenced := func(h *History) {
		for i := range h.Accesses {
			h.Accesses[i].Fenced = false
		}
	}
	for name, c := range map[string]struct {
		change func(*History)
		demand func(*Demand) // makes it no longer one
		want   string
	}{
		"too little": {
			func(h *History) { h.Accesses, h.Holds[0].Release = nil, Step{200, 210, OK}; h.Holds = h.Holds[:1] },
			func(d *Demand) { d.Operations = 0 }, "too little happened: 2 operations, and at least 4",
		},
		"faults that hit nothing": {
			func(h *History) { h.Faults[0].Hits = 0 },
			func(d *Demand) { d.Faults = 0 }, "too few faults: 0 hit something, 2 nothing",
		},
		"two holders": {
			func(h *History) { h.Holds[0].Release = Step{} },
			func(d *Demand) { d.Exclusive = false }, "two holders: 1, as this: two holders of r for 30ns: clients 1 and 2, tokens 5 and 6",
		},
		"a holder within another's time": {
			func(h *History) { h.Holds[0].Until, h.Holds[0].Release = 1000, Step{} },
			func(d *Demand) { d.Exclusive = false }, "two holders of r for 70ns",
		},
		"a stale access that was let pass": {
			func(h *History) {
				h.Accesses = append(h.Accesses, access(1, 5, 90, 4, func(a *Access) { a.Kind = Write }))
			},
			nil, "stale accesses that a guard let pass: 1, as this: write of r by client 1, token 5, after its lease, after that of client 2, token 6",
		},
		"a stale access with a larger token": {
			func(h *History) {
				h.Holds[0].Token = 7
				h.Accesses = append(h.Accesses, access(1, 7, 90, 4, func(a *Access) { a.Kind = Write }))
			},
			nil, "stale accesses that a guard let pass",
		},
		"a stale access within the lease": {
			func(h *History) {
				unfenced(h)
				h.Holds[2].Signal, h.Holds[2].Until = 0, 78
				h.Holds[0].Release = Step{77, 78, OK}
				h.Holds[2].Answered = 71
				h.Accesses[1] = access(1, 5, 74, 4, func(a *Access) { a.Fenced, a.Kind = false, Write })
				h.Accesses[2] = access(2, 6, 72, 3, func(a *Access) { a.Fenced, a.Kind = false, Write })
			},
			func(d *Demand) { d.Exclusive = false }, "stale accesses within the lease: 1",
		},
		"a lost update": {
			func(h *History) { h.Accesses[2].Base = 0 },
			nil, "lost updates behind a guard: 1, as this: client 2, token 6, set r to 2 from 0, and it was 1 by client 1, token 5",
		},
		"a current holder that was refused": {
			func(h *History) { h.Accesses[3].Token = 6 },
			nil, "accesses of the current holder that a guard refused: 1",
		},
		"a refusal before the larger token": {
			func(h *History) { h.Accesses[3].Sent, h.Accesses[3].Answered = 30, 40 },
			nil, "accesses of the current holder that a guard refused: 1",
		},
		"tokens out of order": {
			func(h *History) { h.Holds[0].Token = 7; h.Accesses = nil },
			func(d *Demand) { d.Order = false }, "a token that is not larger than one before",
		},
		"an extend that is too late": {
			func(h *History) { h.Holds[0].Extends = []Step{{90, 95, OK}} },
			func(d *Demand) { d.Extends = false }, "an extend after a larger token",
		},
		"a leftover": {
			func(h *History) { h.Leftovers = []Leftover{{"s", "r", 5}} },
			func(d *Demand) { d.Clean = false }, "lock keys that were left behind: 1, as this: {s r 5}",
		},
		"a slow recovery": {
			func(h *History) { h.Holds[2].Answered = 73 },
			func(d *Demand) { d.Recovers = 23 }, "the first lock after all was well again took 23ns",
		},
		"no recovery": {
			func(h *History) { h.Healed = 60 },
			func(d *Demand) { d.Recovers = 0 }, "no lock was granted after all was well again",
		},
	} {
		t.Run(name, func(t *testing.T) {
			h, d := goodRun(), everything
			c.change(h)
			require.Contains(t, failures(t, h, d), c.want)
			if c.demand != nil {
				c.demand(&d)
				require.NotContains(t, failures(t, h, d), c.want)
			}
		})
	}
}

// A control has to break what is not guarded.
func TestAControlThatBreaksNothingFails(t *testing.T) {
	h, d := goodRun(), everything
	d.Breaks = true
	require.Contains(t, failures(t, h, d), "no stale access at a resource without a guard")
	h.Accesses = append(h.Accesses, Access{Client: 2, Resource: "s", Token: 6, Kind: Write, Result: OK, Seq: 1},
		Access{Client: 1, Resource: "s", Token: 5, Kind: Write, Result: OK, Seq: 2})
	require.Empty(t, failures(t, h, d))
}

func failures(t *testing.T, h *History, d Demand) string {
	t.Helper()
	r, err := h.Check(d)
	require.NoError(t, err)
	text := ""
	for _, f := range r.Failures {
		text += f + "\n"
	}
	return text
}

func TestALeaseEndsWithWhatComesFirst(t *testing.T) {
	h := Hold{Answered: 10, Result: OK, Until: 100}
	end := func() int64 { _, to, _ := h.Held(); return to }
	require.EqualValues(t, 100, end())
	h.Signal = 90
	require.EqualValues(t, 90, end())
	h.Release.Sent = 80
	require.EqualValues(t, 80, end())
	h.Until = 9
	_, _, held := h.Held()
	require.False(t, held, "it was over before the answer")
	h = Hold{Answered: 10, Result: Unknown, Until: 100}
	_, _, held = h.Held()
	require.False(t, held)
}

func TestAPictureOfTokensOutOfOrderIsLeft(t *testing.T) {
	h, d := goodRun(), everything
	d.Pictures = t.TempDir()
	require.Empty(t, failures(t, h, d))
	path := filepath.Join(d.Pictures, "tokens.html")
	require.NoFileExists(t, path)
	h.Holds[0].Token = 7
	require.Contains(t, failures(t, h, d), path)
	text, err := os.ReadFile(path)
	require.NoError(t, err)
	require.Contains(t, string(text), "<html")
}

func TestWhatIsRecordedIsLoaded(t *testing.T) {
	path := filepath.Join(t.TempDir(), "history")
	want, got := goodRun(), &History{}
	r, err := NewRecorder(path)
	require.NoError(t, err)
	for _, h := range want.Holds {
		r.Hold(h)
	}
	for _, a := range want.Accesses {
		r.Access(a)
	}
	require.NoError(t, r.Close())
	require.NoError(t, got.Load(path))
	require.Equal(t, want.Holds, got.Holds)
	require.Equal(t, want.Accesses, got.Accesses)

	// Of a process that was killed.
	text, err := os.ReadFile(path)
	require.NoError(t, err)
	require.NoError(t, os.WriteFile(path, text[:len(text)-10], 0o600))
	torn := &History{}
	require.NoError(t, torn.Load(path))
	require.Equal(t, want.Accesses[:3], torn.Accesses)

	require.NoError(t, os.WriteFile(path, []byte("nonsense\n"), 0o600))
	require.Error(t, torn.Load(path))
	require.Error(t, torn.Load(filepath.Join(t.TempDir(), "none")))
}
