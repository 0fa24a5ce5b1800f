package redlock

import (
	"fmt"
	"strings"
	"text/tabwriter"
	"time"
	"unicode/utf8"
)

// A Severity says how bad a [Finding] is.
type Severity int

// The severities.
const (
	Info    Severity = iota // worth knowing; nothing has to be done
	Warning                 // locks are safe as it is, but with less in reserve than it seems
	Unsafe                  // two may hold one lock, an instance will never vote, or nobody gets a lock
)

var severities = [...]string{Info: "info", Warning: "warning", Unsafe: "unsafe"}

func (s Severity) String() string {
	if s < Info || s > Unsafe {
		return fmt.Sprintf("Severity(%d)", int(s))
	}
	return severities[s]
}

// MarshalText returns String.
func (s Severity) MarshalText() ([]byte, error) { return []byte(s.String()), nil }

// UnmarshalText reads what MarshalText wrote.
func (s *Severity) UnmarshalText(text []byte) error {
	for i, name := range severities {
		if name == string(text) {
			*s = Severity(i)
			return nil
		}
	}
	return fmt.Errorf("redlock: %s is no severity", quote(string(text)))
}

// A Report is what [Locker.Check] found. It prints as a table.
type Report struct {
	Quorum    int              `json:"quorum"`
	Instances []InstanceReport `json:"instances"`
	Findings  []Finding        `json:"findings"` // about all of them together
}

// An InstanceReport is what was found at one instance. What it does not tell is
// zero.
type InstanceReport struct {
	Instance string        `json:"instance"` // its name, never with a password
	Grants   bool          `json:"grants"`   // it ran everything that a lock needs
	Version  string        `json:"version"`  // "7.0.15", "valkey 8.1.0"
	Role     string        `json:"role"`     // "master" or "replica"
	RunID    string        `json:"run_id"`
	Uptime   time.Duration `json:"uptime_ns"`  // in whole seconds
	Latency  time.Duration `json:"latency_ns"` // the median of some round trips

	// How far its clock is ahead of ours, and how fast it is, ours being 1: each
	// with the largest error that the measurement can have. That of the rate is zero
	// where the rate was not measured.
	ClockOffset      time.Duration `json:"clock_offset_ns"`
	ClockOffsetError time.Duration `json:"clock_offset_error_ns"`
	ClockRate        float64       `json:"clock_rate"`
	ClockRateError   float64       `json:"clock_rate_error"`

	Findings []Finding `json:"findings"`
}

// A Finding is one thing to know about an instance, or about all of them.
type Finding struct {
	Severity Severity `json:"severity"`
	Check    string   `json:"check"` // what was looked at, as docs/preflight.md names it: "eviction"
	Text     string   `json:"text"`  // what is the case, and what it means
	Fix      string   `json:"fix"`   // what to do about it
}

// Worst returns the severity of the worst finding of all; Info where there is none.
func (r *Report) Worst() Severity {
	worst := worstOf(r.Findings)
	for _, in := range r.Instances {
		worst = max(worst, in.Worst())
	}
	return worst
}

// Worst returns the severity of the instance's worst finding; Info where there is
// none.
func (r *InstanceReport) Worst() Severity { return worstOf(r.Findings) }

func worstOf(fs []Finding) Severity {
	worst := Info
	for _, f := range fs {
		worst = max(worst, f.Severity)
	}
	return worst
}

// String returns the report as text of lines: a table of the instances, then the
// findings, the worst first.
func (r *Report) String() string {
	var s strings.Builder
	table := tabwriter.NewWriter(&s, 0, 0, 2, ' ', 0)
	fmt.Fprintln(table, "INSTANCE\tGRANTS\tVERSION\tROLE\tUPTIME\tLATENCY\tCLOCK\tFINDINGS")
	for _, in := range r.Instances {
		fmt.Fprintln(table, strings.Join(in.row(), "\t"))
	}
	table.Flush()
	for _, g := range r.groups() {
		about := "all"
		if g.instances != nil {
			about = strings.Join(g.instances, ", ")
		}
		fmt.Fprintf(&s, "\n%s: %s, %s\n", g.Severity, g.Check, about)
		wrap(&s, "  ", g.Text)
		wrap(&s, "  -> ", g.Fix)
	}
	return s.String()
}

// row returns the cells of an instance. What it does not tell is a dash.
func (r *InstanceReport) row() []string {
	grants, uptime, latency, clock := "no", "", "", ""
	if r.Grants {
		grants = "yes"
	}
	if r.Uptime > 0 || r.RunID != "" {
		uptime = r.Uptime.String()
	}
	if r.Latency > 0 {
		latency = digits(r.Latency).String()
	}
	if r.ClockOffsetError > 0 {
		// Digits beyond the error would be invented.
		offset := digits(r.ClockOffset)
		if r.ClockOffset.Abs() < r.ClockOffsetError {
			offset = 0
		}
		clock = fmt.Sprintf("%+.3fs", offset.Seconds())
	}
	if r.ClockRateError > 0 && rateDiffers(r.ClockRate, r.ClockRateError, 0.001) {
		clock += fmt.Sprintf(" x%.3f", r.ClockRate)
	}
	count := [len(severities)]int{}
	for _, f := range r.Findings {
		count[f.Severity]++
	}
	var found []string
	for s := Unsafe; s >= Info; s-- {
		if count[s] > 0 {
			word := s.String()
			if s == Warning && count[s] > 1 {
				word = "warnings"
			}
			found = append(found, fmt.Sprintf("%d %s", count[s], word))
		}
	}
	cells := []string{r.Instance, grants, r.Version, r.Role, uptime, latency, clock, strings.Join(found, ", ")}
	for i, c := range cells {
		if c == "" {
			cells[i] = "-"
		}
	}
	return cells
}

// digits returns d with about three digits.
func digits(d time.Duration) time.Duration {
	for unit := time.Duration(1); ; unit *= 10 {
		if d.Abs() < 1000*unit {
			return d.Round(unit)
		}
	}
}

// wrap writes text in lines that a terminal shows whole, the first one after
// lead, the others as far in.
func wrap(s *strings.Builder, lead, text string) {
	const width = 100
	at := 0
	for i, word := range strings.Fields(text) {
		n := utf8.RuneCountInString(word)
		switch {
		case i == 0:
			s.WriteString(lead)
			at = len(lead)
		case at+1+n > width:
			s.WriteString("\n" + strings.Repeat(" ", len(lead)))
			at = len(lead)
		default:
			s.WriteByte(' ')
			at++
		}
		s.WriteString(word)
		at += n
	}
	s.WriteByte('\n')
}
