package main

import (
	"bufio"
	"fmt"
	"html"
	"io"
	"math"
	"slices"
	"strconv"
	"time"
)

const (
	columns       = 3
	width, height = 300.0, 130.0
	cellWidth     = 370.0
	cellHeight    = 270.0
	most          = 6 // lines that a legend names
)

// The colours of the lines, on a light and on a dark page.
var colours = [...][2]string{
	{"#1f618d", "#6fb7e9"},
	{"#c0392b", "#ff7b6b"},
	{"#1e8449", "#6fcf97"},
	{"#b9770e", "#f0b449"},
	{"#7d3c98", "#c39bd3"},
	{"#5d6d7e", "#aab7c4"},
}

// draw writes the panels as SVG, readable on a light page and on a dark one.
func draw(out io.Writer, panels []panel, marks []mark, start, end time.Time) error {
	w := bufio.NewWriter(out)
	rows := (len(panels) + columns - 1) / columns
	fmt.Fprintf(w, `<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 %.0f %.0f" role="img" font-family="sans-serif" font-size="11">`+"\n",
		columns*cellWidth, float64(rows)*cellHeight+40)
	fmt.Fprintln(w, "<title>The panels of the dashboard during a run with faults</title>")
	fmt.Fprintln(w, "<style>\n.page{fill:#fff}.ink{fill:#222}.grid{stroke:#ddd}.mark{stroke:#999;stroke-dasharray:3 3}.line{fill:none;stroke-width:1.5}")
	rules(w, 0)
	fmt.Fprintln(w, "@media(prefers-color-scheme:dark){.page{fill:#0d1117}.ink{fill:#ddd}.grid{stroke:#333}.mark{stroke:#777}")
	rules(w, 1)
	fmt.Fprintln(w, "}\n</style>")
	fmt.Fprintf(w, `<rect class="page" width="%.0f" height="%.0f"/>`+"\n", columns*cellWidth, float64(rows)*cellHeight+40)
	says := start.UTC().Format("2006-01-02") + ": three instances, 12 callers on 4 resources, 40 locks kept alive."
	for _, m := range marks {
		says += fmt.Sprintf(" %.0f s: %s.", m.at.Seconds(), m.what)
	}
	text(w, 50, 22, "start", says)
	for i, p := range panels {
		p.draw(w, 50+float64(i%columns)*cellWidth, 65+float64(i/columns)*cellHeight, marks, end.Sub(start).Seconds())
	}
	fmt.Fprintln(w, "</svg>")
	return w.Flush()
}

func rules(w io.Writer, page int) {
	for i, c := range colours {
		fmt.Fprintf(w, ".l%d{stroke:%s}.f%d{fill:%s}\n", i, c[page], i, c[page])
	}
}

func (p panel) draw(w io.Writer, left, top float64, marks []mark, seconds float64) {
	fmt.Fprintf(w, `<text class="ink" x="%.1f" y="%.1f" font-weight="bold">%s</text>`+"\n", left, top-10, html.EscapeString(p.Title))
	highest := 0.0
	for _, l := range p.lines {
		for _, q := range l.points {
			if !math.IsInf(q.y, 0) && !math.IsNaN(q.y) {
				highest = max(highest, q.y)
			}
		}
	}
	highest = round(highest)
	x := func(s float64) float64 { return left + width*s/seconds }
	y := func(v float64) float64 { return top + height*(1-v/highest) }
	for _, part := range []float64{0, 0.5, 1} {
		fmt.Fprintf(w, `<line class="grid" x1="%.1f" x2="%.1f" y1="%.1f" y2="%.1f"/>`+"\n", left, left+width, y(highest*part), y(highest*part))
		text(w, left-5, y(highest*part)+4, "end", label(highest*part, p.FieldConfig.Defaults.Unit))
	}
	for _, m := range marks {
		fmt.Fprintf(w, `<line class="mark" x1="%.1f" x2="%.1f" y1="%.1f" y2="%.1f"/>`+"\n", x(m.at.Seconds()), x(m.at.Seconds()), top, top+height)
	}
	for s := 0.0; s <= seconds; s += 30 {
		text(w, x(s), top+height+14, "middle", fmt.Sprintf("%.0f s", s))
	}
	slices.SortStableFunc(p.lines, func(a, b line) int { return int(math.Copysign(1, b.sum()-a.sum())) })
	wide := slices.ContainsFunc(p.lines, func(l line) bool { return len(l.name) > 22 })
	for i, l := range p.lines {
		c := i % len(colours)
		for _, piece := range l.pieces() {
			fmt.Fprintf(w, `<polyline class="line l%d" points="`, c)
			for _, q := range piece {
				fmt.Fprintf(w, "%.1f,%.1f ", x(q.x), y(q.y))
			}
			fmt.Fprintln(w, `"/>`)
		}
		if i < most {
			lx, ly := left, top+height+24+14*float64(i)
			if !wide {
				lx, ly = left+float64(i%2)*width/2, top+height+24+14*float64(i/2)
			}
			fmt.Fprintf(w, `<rect class="f%d" x="%.1f" y="%.1f" width="8" height="8"/>`+"\n", c, lx, ly)
			text(w, lx+12, ly+8, "start", l.name)
		}
	}
}

func (l line) sum() float64 {
	sum := 0.0
	for _, q := range l.points {
		if !math.IsNaN(q.y) {
			sum += q.y
		}
	}
	return sum
}

// pieces returns the parts of l between which there is nothing to show.
func (l line) pieces() [][]point {
	var all [][]point
	last := math.Inf(-1)
	for _, q := range l.points {
		switch {
		case math.IsNaN(q.y) || math.IsInf(q.y, 0):
			continue
		case q.x-last > 1.5*step.Seconds():
			all = append(all, nil)
		}
		all[len(all)-1] = append(all[len(all)-1], q)
		last = q.x
	}
	return all
}

// round returns the next number above v that reads well on an axis.
func round(v float64) float64 {
	if v <= 0 {
		return 1
	}
	e := math.Pow(10, math.Floor(math.Log10(v)))
	for _, f := range []float64{1, 2, 4, 5, 10} {
		if v <= f*e {
			return f * e
		}
	}
	return v
}

func label(v float64, unit string) string {
	number := func(v float64) string { return strconv.FormatFloat(v, 'f', -1, 64) }
	switch {
	case unit == "s" && v > 0 && v < 1:
		return number(math.Round(v*1e6)/1e3) + " ms"
	case unit == "s":
		return number(v) + " s"
	case unit == "percentunit":
		return number(math.Round(v*1e3)/10) + " %"
	case unit == "ops":
		return number(v) + "/s"
	}
	return number(v)
}

func text(w io.Writer, x, y float64, anchor, s string) {
	fmt.Fprintf(w, `<text class="ink" x="%.1f" y="%.1f" text-anchor="%s">%s</text>`+"\n", x, y, anchor, html.EscapeString(s))
}
