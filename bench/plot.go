package main

import (
	"bufio"
	"fmt"
	"html"
	"io"
	"math"
	"slices"
	"strconv"
)

// A panel is one chart of the plot: what a lock costs the client as one thing grows.
type panel struct {
	title, axis string
	x           func(c *cell) (x int, ok bool) // ok: the cell belongs to the panel
}

var panels = []panel{
	{"lock and release, 64 callers", "instances", func(c *cell) (int, bool) {
		return c.N, c.Scenario == "throughput" && c.Load == 64
	}},
	{"lock and release, N = 3", "callers", func(c *cell) (int, bool) {
		return c.Load, c.Scenario == "throughput" && c.N == usual
	}},
	{"hand-over in a process, N = 3", "waiters", func(c *cell) (int, bool) {
		return c.Load, c.Scenario == "local"
	}},
	{"renewal, N = 3", "locks held", func(c *cell) (int, bool) {
		return c.Load, c.Scenario == "renewals"
	}},
}

// plotted are the contenders in the plot, with their colours on a light and on a dark page.
var plotted = []struct{ name, light, dark string }{
	{fencedLock, "#c0392b", "#ff7b6b"},
	{unfencedLock, "#b9770e", "#f0b449"},
	{baseline, "#1f618d", "#6fb7e9"},
	{plainBaseline, "#5d6d7e", "#aab7c4"},
}

const (
	plotWidth, plotHeight = 860, 640
	panelWidth            = 350.0
	panelHeight           = 210.0
)

// plot writes client CPU per lock, panel by panel, as SVG: both axes logarithmic, readable on a light page and on a
// dark one.
func (r report) plot(w io.Writer) error {
	b := bufio.NewWriter(w)
	fmt.Fprintf(b, `<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 %d %d" role="img" font-family="sans-serif" font-size="12">`+"\n", plotWidth, plotHeight)
	fmt.Fprintln(b, "<title>Client CPU per lock, in microseconds</title>")
	fmt.Fprintln(b, "<style>\n.page{fill:#fff}.ink{fill:#222}.grid{stroke:#ddd}.line{fill:none;stroke-width:2}")
	for i, c := range plotted {
		fmt.Fprintf(b, ".l%d{stroke:%s}.f%d{fill:%s}\n", i, c.light, i, c.light)
	}
	fmt.Fprintln(b, "@media(prefers-color-scheme:dark){.page{fill:#0d1117}.ink{fill:#ddd}.grid{stroke:#333}")
	for i, c := range plotted {
		fmt.Fprintf(b, ".l%d{stroke:%s}.f%d{fill:%s}\n", i, c.dark, i, c.dark)
	}
	fmt.Fprintln(b, "}\n</style>")
	fmt.Fprintf(b, `<rect class="page" width="%d" height="%d"/>`+"\n", plotWidth, plotHeight)
	text(b, 60, 24, "start", "Client CPU per lock, µs; "+r.Head.Date+", "+r.Head.CPU)
	for i, c := range plotted {
		x := 60 + 150*float64(i)
		fmt.Fprintf(b, `<rect class="f%d" x="%.0f" y="36" width="12" height="12"/>`+"\n", i, x)
		text(b, x+18, 46, "start", c.name)
	}
	for i, p := range panels {
		left, top := 60+float64(i%2)*(panelWidth+70), 90+float64(i/2)*(panelHeight+75)
		p.draw(b, left, top, r.Cells)
	}
	fmt.Fprintln(b, "</svg>")
	return b.Flush()
}

// A point is a cell in a panel.
type point struct{ x, y float64 }

// lines returns each contender's points, from left to right, and all of them.
func (p panel) lines(cells []*cell) (lines [][]point, all []point) {
	lines = make([][]point, len(plotted))
	for _, c := range cells {
		x, ok := p.x(c)
		y := micro(c.Median.CPU)
		if !ok || y <= 0 {
			continue
		}
		for i, who := range plotted {
			if who.name == c.Contender {
				lines[i] = append(lines[i], point{float64(x), y})
				all = append(all, point{float64(x), y})
			}
		}
	}
	for _, line := range lines {
		slices.SortFunc(line, func(a, b point) int { return int(math.Copysign(1, a.x-b.x)) })
	}
	return lines, all
}

func (p panel) draw(w io.Writer, left, top float64, cells []*cell) {
	text(w, left, top-10, "start", p.title)
	lines, all := p.lines(cells)
	if len(all) == 0 {
		text(w, left+panelWidth/2, top+panelHeight/2, "middle", "not measured in this run")
		return
	}
	minX, maxX, minY, maxY := all[0].x, all[0].x, all[0].y, all[0].y
	for _, q := range all {
		minX, maxX, minY, maxY = min(minX, q.x), max(maxX, q.x), min(minY, q.y), max(maxY, q.y)
	}
	low, high := math.Floor(math.Log10(minY)), math.Max(math.Ceil(math.Log10(maxY)), math.Floor(math.Log10(minY))+1)
	px := func(x float64) float64 {
		if maxX == minX {
			return left + panelWidth/2
		}
		return left + panelWidth*math.Log(x/minX)/math.Log(maxX/minX)
	}
	py := func(y float64) float64 { return top + panelHeight*(high-math.Log10(y))/(high-low) }

	for e := low; e <= high; e++ {
		y := py(math.Pow(10, e))
		fmt.Fprintf(w, `<line class="grid" x1="%.1f" x2="%.1f" y1="%.1f" y2="%.1f"/>`+"\n", left, left+panelWidth, y, y)
		text(w, left-6, y+4, "end", strconv.FormatFloat(math.Pow(10, e), 'f', -1, 64))
	}
	slices.SortFunc(all, func(a, b point) int { return int(math.Copysign(1, a.x-b.x)) })
	for _, q := range slices.CompactFunc(all, func(a, b point) bool { return a.x == b.x }) {
		fmt.Fprintf(w, `<line class="grid" x1="%.1f" x2="%.1f" y1="%.1f" y2="%.1f"/>`+"\n", px(q.x), px(q.x), top, top+panelHeight)
		text(w, px(q.x), top+panelHeight+16, "middle", fmt.Sprint(q.x))
	}
	text(w, left+panelWidth/2, top+panelHeight+34, "middle", p.axis)
	for i, line := range lines {
		if len(line) == 0 {
			continue
		}
		fmt.Fprintf(w, `<polyline class="line l%d" points="`, i)
		for _, q := range line {
			fmt.Fprintf(w, "%.1f,%.1f ", px(q.x), py(q.y))
		}
		fmt.Fprintln(w, `"/>`)
		for _, q := range line {
			fmt.Fprintf(w, `<circle class="f%d" cx="%.1f" cy="%.1f" r="3.5"/>`+"\n", i, px(q.x), py(q.y))
		}
	}
}

func text(w io.Writer, x, y float64, anchor, s string) {
	fmt.Fprintf(w, `<text class="ink" x="%.1f" y="%.1f" text-anchor="%s">%s</text>`+"\n", x, y, anchor, html.EscapeString(s))
}
