package compare

import (
	"bytes"
	"embed"
	"errors"
	"fmt"
	htmltemplate "html/template"
	"os"
	"regexp"
	"slices"
	"strings"
	"text/template"
	"time"
)

//go:embed page.html.tmpl page.md.tmpl
var templates embed.FS

// A page is what both templates show.
type page struct {
	Lead    string
	Quick   bool
	Columns []string
	Summary []row
	Faults  []row
	Figures []*figure
	CloseUp []*closeUp
	LeftOut []string
	Method  []string
	Env     env
}

// A row is one of a table with a column for each variant.
type row struct {
	Title string
	About string
	Cells []cell
}

// A cell is one figure.
type cell struct {
	Text  string
	Notes []string
	Class string   // "good", "fair", "bad" or none
	Harm  []string // what nobody wants
}

const none = "–"

func newPage(p *plan, e env, results []*result) *page {
	pg := &page{Lead: lead(results), Quick: p.quick, LeftOut: p.leftOut, Method: method(p), Env: e}
	for _, r := range results {
		pg.Columns = append(pg.Columns, r.title)
		pg.Figures = append(pg.Figures, newFigure(r))
		if c := newCloseUp(r); c != nil {
			pg.CloseUp = append(pg.CloseUp, c)
		}
	}
	pg.Summary = summary(results)
	for i := range results[0].Slots {
		pg.Faults = append(pg.Faults, faultRow(i, results))
	}
	return pg
}

// lead is the first line: what somebody wants to know who reads no other. The peer
// is not in it.
func lead(results []*result) string {
	ours := slices.DeleteFunc(slices.Clone(results), func(r *result) bool { return r.peer != "" })
	if len(ours) == 0 {
		ours = results
	}
	var gaps, prices []string
	late, taken, fenced := 0, 0, false
	for i, r := range ours {
		gap, _ := worst(r)
		verb := " for up to "
		if i == 0 {
			verb = " gave out no lock for up to "
		}
		gaps = append(gaps, inSentence(r.title)+verb+show(gap))
		late, taken, fenced = late+r.Total.Stale, taken+r.Total.StaleFenced, fenced || r.Fenced
		if base := ours[0]; r.n > base.n && base.HasCommands {
			prices = append(prices, fmt.Sprintf("%s %.1f times", inSentence(r.title), r.Commands/base.Commands))
		}
	}
	line := "While one server failed in each of the ways below, " + enumerate(gaps)
	if fenced && late > 0 {
		none := "none"
		if taken > 0 {
			none = fmt.Sprint(taken)
		}
		line += fmt.Sprintf("; of %s by holders that were too late, resources that check fencing tokens took %s", count(late, "write"), none)
	}
	if len(prices) > 0 {
		line += ". A lock costs " + enumerate(prices) + " the commands of " + inSentence(ours[0].title)
	}
	return line + "."
}

// worst returns the longest time without a lock in the slots of a server's faults,
// and what the fault was.
func worst(r *result) (longest time.Duration, title string) {
	for _, s := range r.Slots[1:] {
		if s.Happened && s.name != "pause" && s.Outage > longest {
			longest, title = s.Outage, s.title
		}
	}
	return longest, title
}

// inSentence is a variant's title within a sentence: names are not capitalised.
func inSentence(title string) string {
	if strings.HasPrefix(title, "Quorum") {
		return "a q" + title[1:]
	}
	return lower(title)
}

func enumerate(parts []string) string {
	if len(parts) < 2 {
		return strings.Join(parts, "")
	}
	return strings.Join(parts[:len(parts)-1], ", ") + " and " + parts[len(parts)-1]
}

func count(n int, noun string) string {
	if n == 1 {
		return "1 " + noun
	}
	return fmt.Sprintf("%d %ss", n, noun)
}

// show prints a duration with two or three digits.
func show(d time.Duration) string {
	switch {
	case d >= 10*time.Second:
		return fmt.Sprintf("%.0f s", d.Seconds())
	case d >= time.Second:
		return fmt.Sprintf("%.1f s", d.Seconds())
	case d >= 10*time.Millisecond:
		return fmt.Sprintf("%.0f ms", float64(d)/float64(time.Millisecond))
	case d >= time.Millisecond:
		return fmt.Sprintf("%.1f ms", float64(d)/float64(time.Millisecond))
	}
	return strings.TrimSuffix(fmt.Sprintf("%.2f", float64(d)/float64(time.Millisecond)), "0") + " ms"
}

// percent never rounds up to all.
func percent(x float64) string {
	switch {
	case x < 0:
		return none
	case x == 1:
		return "100 %"
	}
	return fmt.Sprintf("%.1f %%", min(x*100, 99.9))
}

func grade(availability float64) string {
	switch {
	case availability < 0:
		return ""
	case availability >= 0.99:
		return "good"
	case availability >= 0.9:
		return "fair"
	}
	return "bad"
}

// harm is the class of a count that should be 0.
func harm(n int) string {
	if n == 0 {
		return "good"
	}
	return "bad"
}

// summary is the table of what counts.
func summary(results []*result) []row {
	base := results[0]
	ratio := func(x, of float64) []string {
		if of == 0 {
			return nil
		}
		return []string{fmt.Sprintf("× %.1f", x/of)}
	}
	perLock := func(has bool, text string, x, of float64) cell {
		if !has {
			return cell{Text: none}
		}
		return cell{Text: text, Notes: ratio(x, of)}
	}
	us := func(d time.Duration) string { return fmt.Sprintf("%.0f µs", float64(d)/float64(time.Microsecond)) }
	rows := []struct {
		title, about string
		cell         func(*result) cell
	}{
		{"Longest time without a lock", "of any private resource, while a server failed", func(r *result) cell {
			gap, title := worst(r)
			class := "good"
			if gap > r.record.plan.job.Budget {
				class = "bad"
			}
			return cell{Text: show(gap), Notes: []string{lower(title)}, Class: class}
		}},
		{"Availability through all faults", "attempts that had a lock in time", func(r *result) cell {
			a := r.Faults.availability()
			return cell{Text: percent(a), Notes: []string{fmt.Sprintf("of %d", r.Faults.Attempts)}, Class: grade(a)}
		}},
		{"Double holds", "two inside their leases at one time", func(r *result) cell {
			notes := []string{"of " + count(len(r.Holds), "hold")}
			if r.Total.DoubleHolds > 0 {
				notes = append(notes, show(r.Total.Overlap)+" in all")
			}
			return cell{Text: fmt.Sprint(r.Total.DoubleHolds), Notes: notes, Class: harm(r.Total.DoubleHolds)}
		}},
		{"Stale writes without fencing", "taken after an operation of a newer holder", func(r *result) cell {
			return cell{Text: fmt.Sprint(r.Total.Stale), Notes: []string{"of " + count(r.Writes, "write")}, Class: harm(r.Total.Stale)}
		}},
		{"Stale writes with fencing", "of the same writes, those that the fenced register took", func(r *result) cell {
			if !r.Fenced {
				return cell{Text: none, Notes: []string{"no tokens"}}
			}
			return cell{Text: fmt.Sprint(r.Total.StaleFenced), Class: harm(r.Total.StaleFenced)}
		}},
		{"Tokens out of order", "", func(r *result) cell {
			if !r.Fenced {
				return cell{Text: none, Notes: []string{"no tokens"}}
			}
			return cell{Text: fmt.Sprint(len(r.Disorder)), Class: harm(len(r.Disorder))}
		}},
		{"Acquire, median", "before the first fault", func(r *result) cell {
			return cell{Text: show(r.Slots[0].P50), Notes: ratio(float64(r.Slots[0].P50), float64(base.Slots[0].P50))}
		}},
		{"Acquire, p99", "before the first fault", func(r *result) cell {
			return cell{Text: show(r.Slots[0].P99), Notes: []string{fmt.Sprintf("of %d", r.Slots[0].Granted)}}
		}},
		{"Commands per lock", "acquire, extend, release, waiting; all instances together", func(r *result) cell {
			return perLock(r.HasCommands, fmt.Sprintf("%.1f", r.Commands), r.Commands, base.Commands)
		}},
		{"Servers' CPU per lock", "all instances together, replicas too", func(r *result) cell {
			return perLock(r.HasCPU, us(r.ServerCPU), float64(r.ServerCPU), float64(base.ServerCPU))
		}},
		{"Clients' CPU per lock", "with the work itself", func(r *result) cell {
			return perLock(r.ClientCPU > 0, us(r.ClientCPU), float64(r.ClientCPU), float64(base.ClientCPU))
		}},
	}
	var table []row
	for _, x := range rows {
		line := row{Title: x.title, About: x.about}
		for _, r := range results {
			line.Cells = append(line.Cells, x.cell(r))
		}
		table = append(table, line)
	}
	return table
}

// faultRow is what slot i did to each variant.
func faultRow(i int, results []*result) row {
	line := row{Title: "Before the first fault", About: "everything is well"}
	if f := results[0].Slots[i].fault; f != nil {
		line.Title, line.About = f.title, fmt.Sprintf("%s; %s, and %s to recover", f.about, show(f.length), show(f.pause))
	}
	for _, r := range results {
		s := r.Slots[i]
		if !s.Happened {
			line.Cells = append(line.Cells, cell{Text: none, Notes: []string{"no replica to fail over to"}})
			continue
		}
		c := cell{Text: percent(s.availability()), Class: grade(s.availability())}
		if s.Granted > 0 {
			c.Notes = append(c.Notes, "p99 "+show(s.P99))
		}
		switch {
		case s.fault == nil:
		case !s.Recovered:
			c.Notes = append(c.Notes, "not back in time")
		case s.Recovery > 0:
			c.Notes = append(c.Notes, "back after "+show(s.Recovery))
		}
		if s.DoubleHolds > 0 {
			c.Harm = append(c.Harm, count(s.DoubleHolds, "double hold"))
		}
		if s.Stale > 0 {
			note := count(s.Stale, "stale write")
			if r.Fenced {
				note += fmt.Sprintf(", %d with fencing", s.StaleFenced)
			}
			c.Harm = append(c.Harm, note)
		}
		line.Cells = append(line.Cells, c)
	}
	return line
}

// method says how it was measured.
func method(p *plan) []string {
	j := p.job
	hold := func(writes int) string { return show(time.Duration(writes) * j.Work) }
	lines := []string{
		fmt.Sprintf("Each variant had %s of work and faults, at the same times and with the same victims. %d client processes; each begins to acquire a resource that nobody else wants every %s, whatever became of those before it (%d such resources; a lock within %s counts as granted), and competes with %d of its goroutines for each of %d shared ones, held for about %s to %s.",
			show(p.total), p.clients, show(j.Every), j.Private, show(j.Budget), j.Waiters, len(j.Writes), hold(j.Writes[0]), hold(j.Writes[len(j.Writes)-1])),
		fmt.Sprintf("The ttl is %s. A holder extends when less than two thirds are left, looks at its lease before each write, and works for %s before it writes. Each write goes to a register that takes everything and to one that checks fencing tokens; the registers suffer no fault.", show(j.TTL), show(j.Work)),
		"A double hold is a pair of holders of one resource, both inside the lease that their library told them, neither of which had begun to release. A stale write arrived after an operation of a newer holder (by token; without tokens, by the time of acquisition). Back: when nine of ten attempts are granted again, counted from the beginning of the fault, in steps of 250 ms.",
		fmt.Sprintf("Servers persist nothing, listen on loopback, and are reached through a proxy inside the measuring process, whose delay is in every figure. With failover, a monitor promotes the replica %s after the master is gone; Sentinel's default is 30 s. Commands and CPU are those of the time before the first fault.", show(p.detect)),
		"Libraries run with their defaults, this one with its quarantine: a server that restarted, or took over, does not count for the ttl and 2 s. redsync fails fast, on clients that end a command with its context and don't repeat it.",
	}
	if p.embedded {
		lines[3] = "The instances are embedded (miniredis) and keep their data when they are killed; they are reached through a proxy, whose delay is in every figure. They tell no uptime, so there is no quarantine, and no CPU time of their own."
	}
	return lines
}

// String is the cell in Markdown.
func (c cell) String() string {
	parts := append(slices.Clone(c.Notes), c.Harm...)
	if len(parts) == 0 {
		return c.Text
	}
	return c.Text + " (" + strings.Join(parts, ", ") + ")"
}

func (pg *page) html() ([]byte, error) {
	t, err := htmltemplate.ParseFS(templates, "page.html.tmpl")
	if err != nil {
		return nil, err
	}
	var b bytes.Buffer
	err = t.Execute(&b, pg)
	return b.Bytes(), err
}

func (pg *page) markdown() ([]byte, error) {
	t, err := template.ParseFS(templates, "page.md.tmpl")
	if err != nil {
		return nil, err
	}
	var b bytes.Buffer
	err = t.Execute(&b, pg)
	return b.Bytes(), err
}

// write writes the files; an empty name is none.
func (pg *page) write(html, md, doc string) error {
	page, err := pg.html()
	if err != nil {
		return err
	}
	text, err := pg.markdown()
	if err != nil {
		return err
	}
	quoting := []byte(nil)
	if doc != "" {
		if quoting, err = quoted(doc, string(text)); err != nil {
			return err
		}
	}
	toFile := func(name string, content []byte) error {
		if name == "" {
			return nil
		}
		return os.WriteFile(name, content, 0o644)
	}
	return errors.Join(toFile(html, page), toFile(md, text), toFile(doc, quoting))
}

// quotation is the place in a document that quotes the result.
var quotation = regexp.MustCompile(`(?s)(<!-- compare -->\n).*?(<!-- /compare -->)`)

// quoted returns the document with text where it quotes the result.
func quoted(doc, text string) ([]byte, error) {
	old, err := os.ReadFile(doc)
	if err != nil {
		return nil, err
	}
	if !quotation.Match(old) {
		return nil, fmt.Errorf("%s has no <!-- compare --> and <!-- /compare --> to write between", doc)
	}
	return quotation.ReplaceAllFunc(old, func(place []byte) []byte {
		m := quotation.FindSubmatch(place)
		return fmt.Appendf(nil, "%s\n%s\n\n%s", m[1], strings.TrimSpace(text), m[2])
	}), nil
}
