package compare

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/quorumlock/redlock/chaos/compare/client"
)

// A story is a record with everything in milliseconds since the start, of two
// clients, and a fault from 1,000 on.
func story(holds []client.Hold, log []client.Operation, attempts []client.Attempt) *record {
	start := time.Unix(1_000_000, 0)
	at := func(t int64) int64 { return start.UnixNano() + t*int64(ms) }
	for i, h := range holds {
		h.Call, h.Acquired, h.Until, h.End = at(h.Call), at(h.Acquired), at(h.Until), at(h.End)
		holds[i] = h
	}
	for i := range log {
		log[i].At = at(log[i].At)
	}
	for i := range attempts {
		attempts[i].At = at(attempts[i].At)
		attempts[i].Took *= ms
	}
	p := newPlan(1, true, false, false)
	p.total = 4 * time.Second
	return &record{
		variant: variants()[0], plan: p, start: start,
		slots: []slot{{fault: p.slots[0].fault, from: time.Second, heal: 2 * time.Second, until: p.total}},
		seen:  []client.Testimony{{Holds: holds, Attempts: attempts}},
		log:   log,
	}
}

func TestHoldsThatOverlapWithinTheirLeasesAreDoubleHolds(t *testing.T) {
	for _, c := range []struct {
		name string
		a, b client.Hold
		want time.Duration
	}{
		{"one after the other", client.Hold{Acquired: 100, Until: 900, End: 300}, client.Hold{Acquired: 300, Until: 900, End: 500}, 0},
		{"both at work", client.Hold{Acquired: 1100, Until: 1900, End: 1300}, client.Hold{Acquired: 1200, Until: 1900, End: 1500}, 100 * ms},
		{"one within the other", client.Hold{Acquired: 1100, Until: 1900, End: 1800}, client.Hold{Acquired: 1200, Until: 1900, End: 1500}, 300 * ms},
		{"late, but its lease was over", client.Hold{Acquired: 1100, Until: 1200, End: 1800}, client.Hold{Acquired: 1200, Until: 1900, End: 1500}, 0},
		{"different resources", client.Hold{Acquired: 1100, Until: 1900, End: 1300}, client.Hold{Acquired: 1200, Until: 1900, End: 1500, Resource: 1}, 0},
	} {
		t.Run(c.name, func(t *testing.T) {
			c.a.ID, c.b.ID = 1, 2
			r := judge(story([]client.Hold{c.b, c.a}, nil, nil))
			require.Equal(t, c.want, r.Total.Overlap)
			require.Equal(t, c.want, r.Slots[1].Overlap, "of the fault")
			require.Equal(t, c.want > 0, r.Total.DoubleHolds == 1)
		})
	}
}

// Three that overlap are three pairs, also if the one in the middle ends first.
func TestEveryPairOfDoubleHoldsCounts(t *testing.T) {
	r := judge(story([]client.Hold{
		{ID: 1, Acquired: 100, Until: 900, End: 900},
		{ID: 2, Acquired: 200, Until: 900, End: 300},
		{ID: 3, Acquired: 250, Until: 900, End: 800},
		{ID: 4, Acquired: 900, Until: 1900, End: 1000},
	}, nil, nil))
	require.Equal(t, 3, r.Total.DoubleHolds)
	require.Equal(t, 3, r.Slots[0].DoubleHolds, "before the fault")
	require.Zero(t, r.Slots[1].DoubleHolds)
}

func TestWritesAfterAnOperationOfANewerHolderAreStale(t *testing.T) {
	write := func(hold, at int64, token uint64) client.Operation {
		return client.Operation{Hold: hold, At: at, Token: token, Write: true}
	}
	read := func(hold, at int64, token uint64) client.Operation {
		return client.Operation{Hold: hold, At: at, Token: token}
	}
	refused := func(o client.Operation) client.Operation {
		o.Refused = true
		return o
	}
	older, newer := client.Hold{ID: 1, Acquired: 100, Until: 900, End: 1400}, client.Hold{ID: 2, Acquired: 1000, Until: 1900, End: 1500}
	for _, c := range []struct {
		name          string
		tokens        [2]uint64
		log           []client.Operation
		stale, fenced int
	}{
		{"in order", [2]uint64{7, 8}, []client.Operation{write(1, 200, 7), read(2, 1100, 8), write(2, 1200, 8)}, 0, 0},
		{"before the newer one did anything", [2]uint64{7, 8}, []client.Operation{write(1, 1200, 7), read(2, 1300, 8)}, 0, 0},
		{"after its first read, refused", [2]uint64{7, 8}, []client.Operation{read(2, 1100, 8), refused(write(1, 1200, 7))}, 1, 0},
		{"after its first read, taken", [2]uint64{7, 8}, []client.Operation{read(2, 1100, 8), write(1, 1200, 7)}, 1, 1},
		{"a late read does no harm", [2]uint64{7, 8}, []client.Operation{read(2, 1100, 8), read(1, 1200, 7)}, 0, 0},
		{"the token tells who is newer", [2]uint64{8, 7}, []client.Operation{write(1, 1100, 8), refused(write(2, 1200, 7))}, 1, 0},
		{"without tokens, the time", [2]uint64{}, []client.Operation{read(2, 1100, 0), write(1, 1200, 0)}, 1, 1},
	} {
		t.Run(c.name, func(t *testing.T) {
			a, b := older, newer
			a.Token, b.Token = c.tokens[0], c.tokens[1]
			r := judge(story([]client.Hold{a, b}, c.log, nil))
			require.Equal(t, c.stale, r.Total.Stale)
			require.Equal(t, c.stale, r.Slots[1].Stale)
			require.Equal(t, c.fenced, r.Total.StaleFenced)
		})
	}
}

func TestTokensOutOfOrderAreSeen(t *testing.T) {
	holds := []client.Hold{{ID: 1, Call: 90, Acquired: 100, Until: 300, End: 200, Token: 8}, {ID: 2, Call: 210, Acquired: 220, Until: 500, End: 400, Token: 7}}
	require.Len(t, judge(story(holds, nil, nil)).Disorder, 1)
}

// Attempts every 10 ms; those from 1,000 to 1,500 fail, after their 100 ms.
func TestAnOutageIsMeasured(t *testing.T) {
	var attempts []client.Attempt
	for at := int64(0); at < 4000; at += 10 {
		a := client.Attempt{At: at, Took: 1, Granted: true}
		if at >= 1000 && at < 1500 {
			a.Took, a.Granted = 100, false
		}
		attempts = append(attempts, a)
	}
	r := judge(story(nil, nil, attempts))
	before, fault := r.Slots[0], r.Slots[1]
	require.InDelta(t, 1.0, before.availability(), 0)
	require.InDelta(t, 250.0/300, fault.availability(), 1e-9)
	require.Equal(t, 300, fault.Attempts)
	require.Equal(t, ms, fault.P99, "of what was granted")
	require.Equal(t, 501*ms, fault.Outage, "from the beginning to the first that was granted")
	require.Equal(t, 500*ms, fault.Recovery)
	require.True(t, fault.Recovered)
	require.Zero(t, before.Recovery)
	title := ""
	longest, title := worst(r)
	require.Equal(t, 501*ms, longest)
	require.Equal(t, "One is killed", title)
}

func TestAnOutageThatDoesNotEndIsNoRecovery(t *testing.T) {
	attempts := []client.Attempt{{At: 100, Took: 1, Granted: true}, {At: 1100, Took: 300}, {At: 3900, Took: 300}}
	fault := judge(story(nil, nil, attempts)).Slots[1]
	require.False(t, fault.Recovered)
	require.Equal(t, 3*time.Second, fault.Outage)
}

// Every fourth attempt fails until 2,000, every twentieth after that.
func TestNineOfTenAreARecovery(t *testing.T) {
	var attempts []client.Attempt
	for at := int64(0); at < 4000; at += 10 {
		failed := at%40 == 0 && at >= 1000 && at < 2000 || at%200 == 0 && at >= 2000
		attempts = append(attempts, client.Attempt{At: at, Took: 1, Granted: !failed})
	}
	fault := judge(story(nil, nil, attempts)).Slots[1]
	require.Equal(t, time.Second, fault.Recovery)
	require.True(t, fault.Recovered)
}

func TestCostIsDividedByTheLocksOfItsTime(t *testing.T) {
	var attempts []client.Attempt
	for at := int64(0); at < 1000; at += 100 {
		attempts = append(attempts, client.Attempt{At: at, Took: 1, Granted: at != 500})
	}
	s := story([]client.Hold{{ID: 1, Acquired: 600, Until: 900, End: 700}, {ID: 2, Acquired: 950, Until: 1900, End: 980}}, nil, attempts)
	s.measuredFrom, s.measuredTo = 400*ms, 900*ms
	s.used = usage{commands: 20, serverCPU: 10 * ms, clients: 5 * ms}
	r := judge(s)
	require.InDelta(t, 5, r.Locks, 0, "400, 600, 700, 800 and one hold")
	require.InDelta(t, 4, r.Commands, 0)
	require.Equal(t, 2*ms, r.ServerCPU)
	require.Equal(t, ms, r.ClientCPU)
}
