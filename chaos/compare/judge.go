package compare

import (
	"cmp"
	"fmt"
	"slices"
	"time"

	"github.com/quorumlock/redlock/chaos/compare/client"
	"github.com/quorumlock/redlock/chaos/history"
)

// A record is what a variant did and saw.
type record struct {
	variant   variant
	plan      *plan
	start     time.Time
	endpoints []string
	slots     []slot
	spans     []span
	seen      []client.Testimony
	log       []client.Operation

	used                     usage
	measuredFrom, measuredTo time.Duration
}

// at returns when a moment was, since the start.
func (r *record) at(ns int64) time.Duration { return time.Duration(ns - r.start.UnixNano()) }

// A result is what the record shows.
type result struct {
	variant
	Slots    []slotResult // the first is the time before the first fault
	Total    slotResult   // of everything
	Faults   slotResult   // of everything but the first slot
	Bins     []bin
	Holds    []hold
	Clashes  []clash // double holds
	Late     []late  // stale writes
	Writes   int
	Disorder []history.Violation
	Fenced   bool // the library has tokens

	Locks                float64 // that Commands and the like are divided by
	Commands             float64 // by lock, all instances together
	ServerCPU, ClientCPU time.Duration
	HasCommands, HasCPU  bool

	record *record
}

// A slotResult is what happened from the beginning of a fault until that of the next.
type slotResult struct {
	slot                 // its fault is nil before the first
	Happened    bool     // the fault can happen to this variant
	Attempts    int      // of private resources
	Granted     int      // within the budget
	P50, P99    duration // of those that were granted
	Outage      duration // the longest time without any grant
	Recovery    duration // from the beginning until nine of ten attempts are granted again; 0 if they always were
	Recovered   bool     // they were before the next fault
	DoubleHolds int
	Overlap     duration // of them, together
	Stale       int      // writes that the unfenced registers took
	StaleFenced int      // writes of these that the fenced ones took, too
}

type duration = time.Duration

// availability is the part of the attempts that were granted, or -1 if there were
// none.
func (s slotResult) availability() float64 {
	if s.Attempts == 0 {
		return -1
	}
	return float64(s.Granted) / float64(s.Attempts)
}

// A bin is a short time of the curves.
type bin struct {
	From              duration
	Attempts, Granted int
	P50, P99          duration
}

// A hold is a lock of a contended resource, in time since the start.
type hold struct {
	client.Hold
	from, to duration // while its holder was entitled to believe in it
}

// A clash is a time at which two believed to hold.
type clash struct {
	a, b     hold
	from, to duration
}

// A late write is one of a holder after a newer one was at work.
type late struct {
	op    client.Operation
	at    duration
	newer client.Hold
}

// judge works out the result.
func judge(r *record) *result {
	res := &result{variant: r.variant, record: r, Fenced: r.variant.peer == ""}
	attempts := r.attempts()
	res.Holds = r.holds()
	res.Clashes = clashes(res.Holds)
	res.Late = stale(r, res.Holds)
	for _, o := range r.log {
		if o.Write {
			res.Writes++
		}
	}
	var ops []history.Op
	for _, h := range res.Holds {
		if h.Token > 0 {
			ops = append(ops, history.Op{
				Client: h.Client, Resource: fmt.Sprint(h.Resource), Kind: history.Acquire,
				Call: h.Call, Return: h.Acquired, Token: h.Token,
			})
		}
	}
	res.Disorder = history.Check(ops)

	all := append([]slot{{until: r.slots[0].from}}, r.slots...)
	for i, s := range all {
		to := r.plan.total
		if i+1 < len(all) {
			to = all[i+1].from
		}
		s.until = to
		res.Slots = append(res.Slots, res.slot(s, attempts))
	}
	res.Total = res.slot(slot{until: r.plan.total}, attempts)
	res.Faults = res.slot(slot{from: r.slots[0].from, until: r.plan.total}, attempts)
	res.Bins = bins(attempts, r.plan.total)
	res.cost(attempts)
	return res
}

// An attempt is one of a private resource, in time since the start.
type attempt struct {
	at, took duration
	granted  bool
}

func (r *record) attempts() []attempt {
	var as []attempt
	for _, t := range r.seen {
		for _, a := range t.Attempts {
			as = append(as, attempt{r.at(a.At), a.Took, a.Granted})
		}
	}
	slices.SortFunc(as, func(a, b attempt) int { return cmp.Compare(a.at, b.at) })
	return as
}

// holds are sorted by their beginning.
func (r *record) holds() []hold {
	var hs []hold
	for _, t := range r.seen {
		for _, h := range t.Holds {
			hs = append(hs, hold{h, r.at(h.Acquired), r.at(min(h.End, h.Until))})
		}
	}
	slices.SortFunc(hs, func(a, b hold) int { return cmp.Compare(a.from, b.from) })
	return hs
}

// clashes finds the pairs of holds of one resource that overlap. holds are sorted.
func clashes(holds []hold) []clash {
	var found []clash
	open := map[int][]hold{}
	for _, h := range holds {
		still := open[h.Resource][:0]
		for _, o := range open[h.Resource] {
			if o.to <= h.from {
				continue
			}
			still = append(still, o)
			if to := min(o.to, h.to); to > h.from {
				found = append(found, clash{o, h, h.from, to})
			}
		}
		open[h.Resource] = append(still, h)
	}
	return found
}

// newer reports whether a is a newer hold than b: by their tokens, and where there
// are none by when they began.
func newer(a, b client.Hold) bool {
	if a.Token > 0 && b.Token > 0 {
		return a.Token > b.Token
	}
	return a.Acquired > b.Acquired
}

// stale finds the writes that came after an operation of a newer holder.
func stale(r *record, holds []hold) []late {
	of := map[int64]client.Hold{}
	for _, h := range holds {
		of[h.ID] = h.Hold
	}
	var found []late
	newest := map[int]client.Hold{}
	for _, o := range r.log {
		h, ok := of[o.Hold]
		if !ok {
			continue // of a holder that was at work when the run ended
		}
		n, any := newest[o.Resource]
		if !any || newer(h, n) {
			newest[o.Resource] = h
		} else if o.Write && newer(n, h) {
			found = append(found, late{o, r.at(o.At), n})
		}
	}
	return found
}

func (res *result) slot(s slot, attempts []attempt) slotResult {
	in := slotResult{slot: s, Happened: s.fault == nil || s.hits(res.variant)}
	var took []duration
	granted := []duration{s.from}
	for _, a := range attempts {
		if done := a.at + a.took; a.granted && done >= s.from && done < s.until {
			granted = append(granted, done)
		}
		if a.at < s.from || a.at >= s.until {
			continue
		}
		in.Attempts++
		if a.granted {
			in.Granted++
			took = append(took, a.took)
		}
	}
	in.P50, in.P99 = quantile(took, 0.5), quantile(took, 0.99)
	slices.Sort(granted)
	granted = append(granted, s.until)
	for i := range granted[1:] {
		in.Outage = max(in.Outage, granted[i+1]-granted[i])
	}
	in.Recovery, in.Recovered = recovery(s, attempts)
	for _, c := range res.Clashes {
		if c.from >= s.from && c.from < s.until {
			in.DoubleHolds++
			in.Overlap += c.to - c.from
		}
	}
	for _, l := range res.Late {
		if l.at < s.from || l.at >= s.until {
			continue
		}
		in.Stale++
		if !l.op.Refused {
			in.StaleFenced++
		}
	}
	return in
}

// recovery returns how long it took from the beginning of s until nine of ten
// attempts were granted again, and whether they were before its end.
func recovery(s slot, attempts []attempt) (took duration, recovered bool) {
	const step = 250 * ms
	recovered = true
	for from := s.from; from < s.until; from += step {
		asked, granted := 0, 0
		for _, a := range attempts {
			if a.at >= from && a.at < min(from+step, s.until) {
				asked++
				if a.granted {
					granted++
				}
			}
		}
		if recovered = granted*10 >= asked*9; !recovered {
			took = min(from+step, s.until) - s.from
		}
	}
	return took, recovered
}

func bins(attempts []attempt, total duration) []bin {
	const count = 120
	width := total / count
	bs := make([]bin, count)
	took := make([][]duration, count)
	for i := range bs {
		bs[i].From = duration(i) * width
	}
	for _, a := range attempts {
		i := int(a.at / width)
		if i >= count {
			continue
		}
		bs[i].Attempts++
		if a.granted {
			bs[i].Granted++
			took[i] = append(took[i], a.took)
		}
	}
	for i := range bs {
		bs[i].P50, bs[i].P99 = quantile(took[i], 0.5), quantile(took[i], 0.99)
	}
	return bs
}

// cost divides what was used before the first fault by the locks of that time.
func (res *result) cost(attempts []attempt) {
	r := res.record
	within := func(d duration) bool { return d >= r.measuredFrom && d < r.measuredTo }
	for _, a := range attempts {
		if a.granted && within(a.at) {
			res.Locks++
		}
	}
	for _, h := range res.Holds {
		if within(h.from) {
			res.Locks++
		}
	}
	if res.Locks == 0 {
		return
	}
	res.Commands = r.used.commands / res.Locks
	res.ServerCPU = duration(float64(r.used.serverCPU) / res.Locks)
	res.ClientCPU = duration(float64(r.used.clients) / res.Locks)
	res.HasCommands, res.HasCPU = r.used.commands > 0, r.used.serverCPU > 0
}

// quantile returns the q-quantile of ds, the nearest rank, and sorts them; 0 of none.
func quantile(ds []duration, q float64) duration {
	if len(ds) == 0 {
		return 0
	}
	slices.Sort(ds)
	return ds[int(q*float64(len(ds)-1)+0.5)]
}
