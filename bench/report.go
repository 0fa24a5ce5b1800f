package main

import (
	"bufio"
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
	Title string  `json:"title"`
	Cells []*cell `json:"cells"`
}

// head says where the figures come from.
type head struct {
	Command string   `json:"command"`
	Date    string   `json:"date"`
	CPU     string   `json:"cpu"`
	Cores   int      `json:"cores"`
	Go      string   `json:"go"`
	Redis   string   `json:"redis"`
	Modules []string `json:"modules"`
	Method  string   `json:"method"`
}

// ratios compare a cell with another contender's at the same size and load; 0 where that one did not take part.
type ratios struct {
	P50       float64 `json:"p50_to_redsync"`
	PerSecond float64 `json:"per_second_to_redsync"`
	CPU       float64 `json:"cpu_to_redsync"`
	PlainP50  float64 `json:"p50_to_plain"`
}

func newHead(args []string, p plan, ss servers) head {
	return head{
		Command: strings.Join(append([]string{"go run ."}, args...), " "),
		Date:    time.Now().UTC().Format(time.DateOnly),
		CPU:     cpuModel(),
		Cores:   runtime.NumCPU(),
		Go:      runtime.Version() + " " + runtime.GOOS + "/" + runtime.GOARCH,
		Redis:   ss.version(),
		Modules: modules(),
		Method: fmt.Sprintf("each cell %d times for %v in alternating order, medians; ttl %v; redis-server processes on loopback",
			p.reps, p.duration, p.ttl),
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
	find := func(name string, like *cell) (figures, bool) {
		for _, c := range cells {
			if c.Contender == name && c.N == like.N && c.Goroutines == like.Goroutines {
				return c.Median, true
			}
		}
		return figures{}, false
	}
	for _, c := range cells {
		if base, ok := find(baseline, c); ok {
			c.Ratios.P50 = ratio(c.Median.P50, base.P50)
			c.Ratios.PerSecond = ratio(c.Median.PerSecond, base.PerSecond)
			c.Ratios.CPU = ratio(c.Median.CPU, base.CPU)
		}
		if base, ok := find(plainBaseline, c); ok {
			c.Ratios.PlainP50 = ratio(c.Median.P50, base.P50)
		}
	}
}

func ratio[T time.Duration | float64](a, b T) float64 {
	if b == 0 {
		return 0
	}
	return float64(a) / float64(b)
}

// median returns the median of each figure on its own, and the sum of the counts.
func median(reps []figures) figures {
	var f figures
	f.P50 = middle(reps, func(f figures) time.Duration { return f.P50 })
	f.P99 = middle(reps, func(f figures) time.Duration { return f.P99 })
	f.PerSecond = middle(reps, func(f figures) float64 { return f.PerSecond })
	f.Allocs = middle(reps, func(f figures) float64 { return f.Allocs })
	f.CPU = middle(reps, func(f figures) time.Duration { return f.CPU })
	for _, rep := range reps {
		f.Locks += rep.Locks
		f.Errors += rep.Errors
		f.KeysLeft += rep.KeysLeft
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

// complaint says what went wrong, or nothing, in one line.
func (f figures) complaint() string {
	var s []string
	if f.Errors > 0 {
		s = append(s, fmt.Sprintf("%d ERRORS, the first: %s", f.Errors, strings.ReplaceAll(f.Error, "\n", "; ")))
	}
	if f.KeysLeft > 0 {
		s = append(s, fmt.Sprintf("%d LOCK KEYS LEFT", f.KeysLeft))
	}
	return strings.Join(s, "; ")
}

func (r report) json(w io.Writer) error {
	e := json.NewEncoder(w)
	e.SetIndent("", "  ")
	return e.Encode(r)
}

// markdown writes a table for each size, with what went wrong above them all.
func (r report) markdown(w io.Writer) error {
	b := bufio.NewWriter(w)
	h := r.Head
	fmt.Fprintf(b, "    %s\n\n", h.Command)
	fmt.Fprintf(b, "%s, %d cores; %s; redis-server %s; %s.\n%s.\n\n", h.CPU, h.Cores, h.Go, h.Redis, h.Date, strings.Join(h.Modules, ", "))
	fmt.Fprintf(b, "**%s**: %s.\n", r.Title, h.Method)
	for _, c := range r.Cells {
		if s := c.Median.complaint(); s != "" {
			fmt.Fprintf(b, "\n> **%s**: %s\n", c, s)
		}
	}
	n := 0
	for _, c := range r.Cells {
		if c.N != n {
			n = c.N
			fmt.Fprintf(b, "\nN = %d\n\n", n)
			fmt.Fprintln(b, "| goroutines | contender | p50 µs | p99 µs | per second | allocs | CPU µs | errors | keys left | p50 / redsync | rate / redsync | CPU / redsync | p50 / plain |")
			fmt.Fprintln(b, "|--:|:--|--:|--:|--:|--:|--:|--:|--:|--:|--:|--:|--:|")
		}
		f, x := c.Median, c.Ratios
		fmt.Fprintf(b, "| %d | %s | %s | %s | %s | %s | %s | %s | %s | %s | %s | %s | %s |\n", c.Goroutines, c.Contender,
			micros(f.P50), micros(f.P99), digits(f.PerSecond), digits(f.Allocs), micros(f.CPU), loud(f.Errors, "ERRORS"), loud(f.KeysLeft, "LEFT"),
			orDash(x.P50), orDash(x.PerSecond), orDash(x.CPU), orDash(x.PlainP50))
	}
	return b.Flush()
}

func micros(d time.Duration) string { return digits(float64(d) / float64(time.Microsecond)) }

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

func orDash(ratio float64) string {
	if ratio == 0 {
		return "–"
	}
	return digits(ratio)
}

func loud(n int, what string) string {
	if n == 0 {
		return "0"
	}
	return fmt.Sprintf("**%d %s**", n, what)
}
