package main

import (
	"bufio"
	"bytes"
	"cmp"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"runtime"
	"runtime/debug"
	"slices"
	"strings"
	"time"
)

// A report is a run's figures with all that is needed to judge them.
type report struct {
	Head  head    `json:"head"`
	Rows  []row   `json:"targets"`
	Cells []*cell `json:"cells"`

	scenarios []scenario
}

// head says where the figures come from.
type head struct {
	Command string   `json:"command"`
	Date    string   `json:"date"`
	CPU     string   `json:"cpu"`
	Cores   int      `json:"cores"`
	Load    string   `json:"load_average"` // before the run, of one, five and fifteen minutes
	Go      string   `json:"go"`
	Redis   string   `json:"redis"`
	Modules []string `json:"modules"`
	Method  string   `json:"method"`
}

// ratios compare a cell with another contender's in the same setting; 0 where that one did not take part.
type ratios struct {
	P50       float64 `json:"p50_to_redsync,omitempty"`
	PerSecond float64 `json:"per_second_to_redsync,omitempty"`
	CPU       float64 `json:"cpu_to_redsync,omitempty"`
	PlainP50  float64 `json:"p50_to_plain,omitempty"`
}

func newHead(args []string, p *plan, ss servers) head {
	return head{
		Command: strings.Join(append([]string{"go run ."}, args...), " "),
		Date:    time.Now().UTC().Format(time.DateOnly),
		CPU:     cpuModel(),
		Cores:   runtime.NumCPU(),
		Load:    loadAverage(),
		Go:      runtime.Version() + " " + runtime.GOOS + "/" + runtime.GOARCH,
		Redis:   ss.version(),
		Modules: modules(),
		Method: fmt.Sprintf("Medians of repetitions (%d, of %v each, in alternating order); ttl %v (renewals %v); delayed round trips %v longer; redis-server processes on loopback",
			p.reps, p.duration, p.ttl, p.lease, p.delay),
	}
}

func cpuModel() string {
	f, err := os.Open("/proc/cpuinfo")
	if err != nil {
		return "unknown"
	}
	defer f.Close()
	for lines := bufio.NewScanner(f); lines.Scan(); {
		if name, value, _ := strings.Cut(lines.Text(), ":"); strings.TrimSpace(name) == "model name" {
			return strings.TrimSpace(value)
		}
	}
	return "unknown"
}

// loadAverage says how busy the machine is with other things.
func loadAverage() string {
	text, err := os.ReadFile("/proc/loadavg")
	fields := strings.Fields(string(text))
	if err != nil || len(fields) < 3 {
		return "unknown"
	}
	return strings.Join(fields[:3], " ")
}

// modules lists the versions of what is compared and of the client most of it stands on.
func modules() []string {
	build, ok := debug.ReadBuildInfo()
	if !ok {
		return nil
	}
	named := []string{"quorumlock/redlock", "go-redis/v9", "redsync/v4", "bsm/redislock", "redis/rueidis"}
	var list []string
	for _, dep := range build.Deps {
		if !slices.ContainsFunc(named, func(n string) bool { return strings.HasSuffix(dep.Path, n) }) {
			continue
		}
		version := dep.Version
		if dep.Replace != nil {
			version = "as in this tree"
		}
		list = append(list, dep.Path+" "+version)
	}
	return list
}

// compare fills in the ratios to the baselines.
func compare(cells []*cell) {
	medians := make(map[key]figures)
	for _, c := range cells {
		medians[c.key] = c.Median
	}
	for _, c := range cells {
		k := c.key
		k.Contender = baseline
		base := medians[k]
		c.Ratios.P50 = ratio(c.Median.P50, base.P50)
		c.Ratios.PerSecond = ratio(c.Median.PerSecond, base.PerSecond)
		c.Ratios.CPU = ratio(c.Median.CPU, base.CPU)
		k.Contender = plainBaseline
		c.Ratios.PlainP50 = ratio(c.Median.P50, medians[k].P50)
	}
}

func ratio[T time.Duration | float64](a, b T) float64 {
	if b == 0 {
		return 0
	}
	return float64(a) / float64(b)
}

// median returns the median of each figure on its own, the sum of each count, and the most goroutines.
func median(reps []figures) figures {
	f := figures{
		P50:        middle(reps, func(f figures) time.Duration { return f.P50 }),
		P99:        middle(reps, func(f figures) time.Duration { return f.P99 }),
		AcquireP50: middle(reps, func(f figures) time.Duration { return f.AcquireP50 }),
		AcquireP99: middle(reps, func(f figures) time.Duration { return f.AcquireP99 }),
		RoundTrip:  middle(reps, func(f figures) time.Duration { return f.RoundTrip }),
		PerSecond:  middle(reps, func(f figures) float64 { return f.PerSecond }),
		Allocs:     middle(reps, func(f figures) float64 { return f.Allocs }),
		CPU:        middle(reps, func(f figures) time.Duration { return f.CPU }),
		ServerCPU:  middle(reps, func(f figures) time.Duration { return f.ServerCPU }),
		Requests:   middle(reps, func(f figures) float64 { return f.Requests }),
		Commands:   middle(reps, func(f figures) float64 { return f.Commands }),
		Fairness:   middle(reps, func(f figures) float64 { return f.Fairness }),
		KeyBytes:   middle(reps, func(f figures) float64 { return f.KeyBytes }),
	}
	f.Shares = shares{
		Kernel:    middle(reps, func(f figures) float64 { return f.Shares.Kernel }),
		Scheduler: middle(reps, func(f figures) float64 { return f.Shares.Scheduler }),
		Memory:    middle(reps, func(f figures) float64 { return f.Shares.Memory }),
		Redis:     middle(reps, func(f figures) float64 { return f.Shares.Redis }),
		Rest:      middle(reps, func(f figures) float64 { return f.Shares.Rest }),
	}
	for _, rep := range reps {
		f.Locks += rep.Locks
		f.Errors += rep.Errors
		f.KeysLeft += rep.KeysLeft
		f.FenceKeys += rep.FenceKeys
		f.FenceFaults += rep.FenceFaults
		f.Goroutines = max(f.Goroutines, rep.Goroutines)
		f.Error = cmp.Or(f.Error, rep.Error)
	}
	return f
}

func middle[T time.Duration | float64](reps []figures, of func(figures) T) T {
	values := make([]T, len(reps))
	for i, rep := range reps {
		values[i] = of(rep)
	}
	slices.Sort(values)
	n := len(values)
	return (values[(n-1)/2] + values[n/2]) / 2
}

// brief says what was measured, for those who watch, in one line.
func (f figures) brief() string {
	var s []string
	for _, x := range []struct {
		format string
		value  float64
	}{{"%s/s", f.PerSecond}, {"p50 %s µs", micro(f.P50)}, {"CPU %s µs", micro(f.CPU)}} {
		if x.value > 0 {
			s = append(s, fmt.Sprintf(x.format, digits(x.value)))
		}
	}
	return strings.Join(append(s, f.complaint()), "  ")
}

// complaint says what went wrong, or nothing, in one line.
func (f figures) complaint() string {
	var s []string
	if f.Errors > 0 {
		s = append(s, fmt.Sprintf("%d ERRORS, the first: %s", f.Errors, strings.ReplaceAll(f.Error, "\n", "; ")))
	}
	if f.KeysLeft > 0 {
		s = append(s, fmt.Sprintf("%d LOCK KEYS LEFT", f.KeysLeft))
	}
	if f.FenceFaults > 0 {
		s = append(s, fmt.Sprintf("%d FENCE KEYS WRONG", f.FenceFaults))
	}
	return strings.Join(s, "; ")
}

func (r report) json(w io.Writer) error {
	e := json.NewEncoder(w)
	e.SetIndent("", "  ")
	e.SetEscapeHTML(false)
	return e.Encode(r)
}

// A part is a piece of the report that a document can quote.
type part struct{ name, text string }

// parts returns the head, the targets and a table for each scenario.
func (r report) parts() []part {
	list := []part{{"head", r.headText()}, {"targets", r.targetsText()}}
	for _, s := range r.scenarios {
		list = append(list, part{s.name, r.table(s)})
	}
	return list
}

func (r report) markdown(w io.Writer) error {
	b := bufio.NewWriter(w)
	for _, p := range r.parts() {
		switch p.name {
		case "head":
		case "targets":
			fmt.Fprint(b, "\n## Targets\n\n")
		default:
			fmt.Fprintf(b, "\n## %s\n\n", strings.ToUpper(p.name[:1])+p.name[1:])
		}
		fmt.Fprint(b, p.text)
	}
	return b.Flush()
}

func (r report) headText() string {
	h := r.Head
	return fmt.Sprintf("    %s\n\n%s, %d cores, load average %s before the run; %s; redis-server %s; %s.\n%s.\n%s.\n",
		h.Command, h.CPU, h.Cores, h.Load, h.Go, h.Redis, h.Date, strings.Join(h.Modules, ", "), h.Method)
}

func (r report) targetsText() string {
	var b bytes.Buffer
	fmt.Fprintln(&b, "| what | figure | measured | from | target | met |")
	fmt.Fprintln(&b, "|:--|:--|--:|--:|--:|:--|")
	for _, row := range r.Rows {
		measured, met := small(row.Measured), "yes"
		switch {
		case row.Missing:
			measured, met, row.From = "–", "not measured", "–"
		case !row.Met:
			met = "**no**"
		}
		fmt.Fprintf(&b, "| %s | %s | %s | %s | %s | %s |\n", row.What, row.Figure, measured, row.From, row.Target, met)
	}
	return b.String()
}

// table writes a table for each N, with what went wrong above them all.
func (r report) table(s scenario) string {
	var b bytes.Buffer
	fmt.Fprintf(&b, "%s.\n", s.title)
	var cells []*cell
	cases := false
	for _, c := range r.Cells {
		if c.Scenario != s.name {
			continue
		}
		cells = append(cells, c)
		cases = cases || c.Case != ""
		// The keys that others leave are in their column, and no surprise.
		if s := c.Median.complaint(); s != "" && (c.contender.ours || c.Median.Errors > 0) {
			fmt.Fprintf(&b, "\n> **%s**: %s\n", c, s)
		}
	}
	n := 0
	for _, c := range cells {
		if c.N != n {
			n = c.N
			fmt.Fprintf(&b, "\nN = %d\n\n", n)
			header(&b, s, cases)
		}
		if cases {
			fmt.Fprintf(&b, "| %s ", c.Case)
		}
		fmt.Fprintf(&b, "| %d | %s |", c.Load, c.Contender)
		for _, col := range s.columns {
			fmt.Fprintf(&b, " %s |", col.text(c))
		}
		fmt.Fprintln(&b)
	}
	return b.String()
}

func header(b *bytes.Buffer, s scenario, cases bool) {
	names, rule := []string{s.load, "contender"}, "|--:|:--|"
	if cases {
		names, rule = append([]string{"case"}, names...), "|:--"+rule
	}
	for _, col := range s.columns {
		names = append(names, col.head)
		rule += "--:|"
	}
	fmt.Fprintf(b, "| %s |\n%s\n", strings.Join(names, " | "), rule)
}

// micros writes d, which took some time or was not seen.
func micros(d time.Duration) string { return orDash(micro(d)) }

// digits writes x with about three digits, more where they stand before the point.
func digits(x float64) string {
	switch {
	case x >= 100:
		return fmt.Sprintf("%.0f", x)
	case x >= 10:
		return fmt.Sprintf("%.1f", x)
	default:
		return fmt.Sprintf("%.2f", x)
	}
}

// small is digits for ratios, which may be far below 1.
func small(x float64) string {
	if x > 0 && x < 1 {
		return fmt.Sprintf("%.3f", x)
	}
	return digits(x)
}

func orDash(x float64) string {
	if x == 0 {
		return "–"
	}
	return digits(x)
}

func loud(n int, what string) string {
	if n == 0 {
		return "0"
	}
	return fmt.Sprintf("**%d %s**", n, what)
}
