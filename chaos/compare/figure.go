package compare

import (
	"fmt"
	"math"
	"slices"
	"strings"
	"time"

	"github.com/quorumlock/redlock/chaos/compare/client"
)

// The geometry of a figure, in units of its view box.
const (
	width   = 1000.0
	left    = 96.0 // of the plot, for labels
	right   = 20.0
	top     = 20.0 // for the names of the faults
	curves  = 110.0
	strip   = 8.0 // of what was not granted
	lane    = 15.0
	gap     = 10.0
	caption = 18.0 // for the seconds
)

// A box is a rectangle, with a text inside if it has room, and a text to show on
// request.
type box struct {
	X, Y, W, H float64
	Class      string
	Text, Tip  string
}

// A label is a text, or a line to it.
type label struct {
	X, Y float64
	Text string
}

// A figure is a variant's run on one axis of time: the curves of the latency, the
// instances, and who believed to hold.
type figure struct {
	Title    string
	About    string
	Width    float64
	Height   float64
	Left     float64
	Right    float64
	Bottom   float64 // of the plot
	Bands    []box   // the faults
	Levels   []label // of the latency, with a line
	Median   string  // paths
	Tail     string
	Failed   []box // bins, by how much was not granted
	Lanes    []label
	States   []box
	Marks    []box
	Holds    []mark // a path for each client
	Clashes  []box
	Stale    []label
	Seconds  []label
	CurvesAt float64
}

// A mark is a path and its class.
type mark struct{ Class, Path string }

// scale returns x positions of times.
type scale struct{ from, to time.Duration }

func (s scale) x(d time.Duration) float64 {
	d = min(max(d, s.from), s.to)
	return round(left + (width-left-right)*float64(d-s.from)/float64(s.to-s.from))
}

func round(x float64) float64 { return math.Round(x*10) / 10 }

func newFigure(r *result) *figure {
	p := r.record.plan
	t := scale{0, p.total}
	f := &figure{
		Title: r.title, Width: width, Left: left, Right: width - right, CurvesAt: top,
		About: fmt.Sprintf("%d attempts, %s, %s, %s", r.Total.Attempts, count(len(r.Holds), "hold"), count(r.Total.DoubleHolds, "double hold"), count(r.Total.Stale, "stale write")),
	}
	y := f.latency(r, t)
	y = f.instances(r, t, y+gap)
	y = f.resources(r, t, y+gap)
	f.Bottom, f.Height = y, y+caption
	for _, s := range r.Slots[1:] {
		class := "band"
		if !s.Happened {
			class = "band idle"
		}
		f.Bands = append(f.Bands, box{X: t.x(s.from), Y: top - 4, W: round(t.x(s.heal) - t.x(s.from)), H: y - top + 4, Class: class, Text: s.name, Tip: s.title})
	}
	step := 10 * time.Second
	if p.total < 20*time.Second {
		step = time.Second
	}
	for at := time.Duration(0); at <= p.total; at += step {
		f.Seconds = append(f.Seconds, label{t.x(at), y + 13, fmt.Sprintf("%.0f s", at.Seconds())})
	}
	return f
}

// latency draws the curves between the least and the largest that is granted.
func (f *figure) latency(r *result, t scale) (bottom float64) {
	low, high := math.Log10(0.1), math.Log10(float64(r.record.plan.job.Budget)/float64(ms))
	y := func(d time.Duration) float64 {
		x := (math.Log10(float64(d)/float64(ms)) - low) / (high - low)
		return round(top + curves*(1-min(max(x, 0), 1)))
	}
	for _, d := range []time.Duration{100 * time.Microsecond, ms, 10 * ms, 100 * ms} {
		f.Levels = append(f.Levels, label{left - 6, y(d), show(d)})
	}
	var median, tail []string
	pen := "M"
	for i, b := range r.Bins {
		x := t.x(b.From)
		if b.Granted == 0 {
			pen = "M" // the curves have a gap
		} else {
			median = append(median, fmt.Sprintf("%s%g %g", pen, x, y(b.P50)))
			tail = append(tail, fmt.Sprintf("%s%g %g", pen, x, y(b.P99)))
			pen = "L"
		}
		if lost := b.Attempts - b.Granted; lost > 0 {
			to := t.to
			if i+1 < len(r.Bins) {
				to = r.Bins[i+1].From
			}
			class := "some"
			if lost*2 > b.Attempts {
				class = "most"
			}
			f.Failed = append(f.Failed, box{
				X: x, Y: top + curves + 4, W: round(t.x(to) - x), H: strip, Class: class,
				Tip: fmt.Sprintf("%d of %d attempts without a lock", lost, b.Attempts),
			})
		}
	}
	f.Median, f.Tail = strings.Join(median, ""), strings.Join(tail, "")
	f.Lanes = append(f.Lanes, label{0, top + curves + 4 + strip, "no lock"})
	return top + curves + 4 + strip
}

// instances draws a lane for each endpoint.
func (f *figure) instances(r *result, t scale, y float64) (bottom float64) {
	for i := range r.record.endpoints {
		f.Lanes = append(f.Lanes, label{0, y + lane - 4, fmt.Sprintf("instance %d", i+1)})
		f.States = append(f.States, box{X: left, Y: y + 5, W: width - left - right, H: 5, Class: "up"})
		for _, q := range r.record.quarantines(i) {
			f.state(t, y, "quarantine", q.from, q.to)
		}
		for _, s := range r.record.spans {
			switch {
			case s.instance != i:
			case s.from == s.to:
				f.Marks = append(f.Marks, box{X: t.x(s.from), Y: y, H: lane, Tip: s.state})
			default:
				f.state(t, y, s.state, s.from, s.to)
			}
		}
		y += lane
	}
	return y
}

func (f *figure) state(t scale, y float64, state string, from, to time.Duration) {
	class := strings.Fields(state)[0]
	b := box{X: t.x(from), Y: y + 2, W: round(t.x(to) - t.x(from)), H: lane - 4, Class: class, Tip: state}
	for _, text := range []string{class, state} {
		if b.W > 5*float64(len(text))+6 {
			b.Text = text
		}
	}
	f.States = append(f.States, b)
}

// quarantines returns when instance i did not count, as the clients saw it, each
// time once.
func (r *record) quarantines(i int) []span {
	var found []span
	for _, t := range r.seen {
		for _, q := range t.Quarantines {
			from := r.at(q.At)
			to := from + q.For
			if q.Instance != r.endpoints[i] || to <= 0 || slices.ContainsFunc(found, func(s span) bool { return from < s.to && s.from < to }) {
				continue
			}
			found = append(found, span{i, "quarantine", max(from, 0), to})
		}
	}
	return found
}

// resources draws a lane for each shared resource.
func (f *figure) resources(r *result, t scale, y float64) (bottom float64) {
	paths := make([]strings.Builder, r.record.plan.clients)
	at := func(resource int) float64 { return y + float64(resource)*lane }
	for i := range r.record.plan.job.Writes {
		f.Lanes = append(f.Lanes, label{0, at(i) + lane - 4, fmt.Sprintf("resource %d", i+1)})
	}
	for _, h := range r.Holds {
		x, to := t.x(h.from), t.x(h.to)
		fmt.Fprintf(&paths[h.Client], "M%g %gh%gv9h-%[3]gz", x, at(h.Resource)+3, round(max(to-x, 0.4)))
	}
	for i := range paths {
		f.Holds = append(f.Holds, mark{fmt.Sprintf("client%d", i), paths[i].String()})
	}
	for _, c := range r.Clashes {
		f.Clashes = append(f.Clashes, box{
			X: t.x(c.from), Y: at(c.a.Resource) + 1, W: round(max(t.x(c.to)-t.x(c.from), 2)), H: lane - 2,
			Tip: fmt.Sprintf("two holders for %s", show(c.to-c.from)),
		})
	}
	for _, l := range r.Late {
		f.Stale = append(f.Stale, label{t.x(l.at), at(l.op.Resource) + lane/2, "a stale write"})
	}
	return y + lane*float64(len(r.record.plan.job.Writes))
}

// A closeUp is the moment at which a variant did harm for the first time: one lane
// for each holder, and what it did to the resource.
type closeUp struct {
	Title   string
	About   string
	Width   float64
	Height  float64
	Left    float64
	Right   float64
	Bottom  float64
	Lanes   []label
	Holds   []box
	Clashes []box
	Dots    []dot
	Seconds []label
}

// A dot is an operation on the registers.
type dot struct {
	X, Y  float64
	Class string
	Tip   string
}

// newCloseUp returns nil where there was no harm.
func newCloseUp(r *result) *closeUp {
	var at time.Duration
	var resource int
	switch {
	case len(r.Clashes) > 0:
		at, resource = r.Clashes[0].from, r.Clashes[0].a.Resource
	case len(r.Late) > 0:
		at, resource = r.Late[0].at, r.Late[0].op.Resource
	default:
		return nil
	}
	ttl := r.record.plan.job.TTL
	t := scale{at - ttl, at + ttl*3/4}
	c := &closeUp{
		Title: r.title, Width: width, Left: left, Right: width - right,
		About: fmt.Sprintf("resource %d, around %.1f s (%s)", resource+1, at.Seconds(), lower(r.during(at))),
	}
	lanes := map[int64]float64{}
	y := 6.0
	of := map[int64]float64{}
	for _, h := range r.Holds {
		if h.Resource != resource || max(h.to, r.record.at(h.End)) < t.from || h.from > t.to {
			continue
		}
		holder := h.ID >> 32
		if _, ok := lanes[holder]; !ok {
			lanes[holder] = y
			c.Lanes = append(c.Lanes, label{0, y + 13, fmt.Sprintf("process %d, %d", h.Client+1, holder%int64(r.record.plan.job.Waiters)+1)})
			y += 22
		}
		of[h.ID] = lanes[holder]
		if h.to < t.from {
			continue
		}
		tip := "until it was released"
		if h.Until < h.End {
			tip = "until the lease was over"
		}
		c.Holds = append(c.Holds, box{X: t.x(h.from), Y: lanes[holder] + 3, W: round(max(t.x(h.to)-t.x(h.from), 1)), H: 14, Class: fmt.Sprintf("client%d", h.Client), Tip: tip})
	}
	late := map[client.Operation]bool{}
	for _, l := range r.Late {
		late[l.op] = true
	}
	for _, o := range r.record.log {
		lane, ok := of[o.Hold]
		if when := r.record.at(o.At); ok && when >= t.from && when <= t.to {
			d := dot{X: t.x(when), Y: lane + 10, Class: "write", Tip: "a write"}
			switch {
			case late[o] && o.Refused:
				d.Class, d.Tip = "late", "a stale write: the fenced register refused it"
			case late[o]:
				d.Class, d.Tip = "late", "a stale write"
			case !o.Write:
				d.Class, d.Tip = "read", "the first read"
			}
			c.Dots = append(c.Dots, d)
		}
	}
	for _, x := range r.Clashes {
		if x.a.Resource == resource && x.from < t.to && x.to > t.from {
			c.Clashes = append(c.Clashes, box{X: t.x(x.from), Y: 3, W: round(max(t.x(x.to)-t.x(x.from), 1)), H: y - 2, Tip: "two holders for " + show(x.to-x.from)})
		}
	}
	c.Bottom, c.Height = y+2, y+2+caption
	for tick := t.from.Truncate(ttl / 4); tick <= t.to; tick += ttl / 4 {
		if tick >= t.from { // the first of them may be before
			c.Seconds = append(c.Seconds, label{t.x(tick), y + 15, fmt.Sprintf("%.1f s", tick.Seconds())})
		}
	}
	return c
}

// during returns the title of the fault of a moment.
func (res *result) during(at time.Duration) string {
	title := "before the first fault"
	for _, s := range res.Slots[1:] {
		if s.from <= at {
			title = s.title
		}
	}
	return title
}
