package main

import (
	"bytes"
	"encoding/json"
	"encoding/xml"
	"errors"
	"io"
	"os"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// A target whose cell has another name than it thinks would be "not measured" for ever.
func TestARunWithoutFlagsMeasuresEveryTarget(t *testing.T) {
	c, err := parse(nil, t.Output())
	require.NoError(t, err)
	measured := make(map[key]bool)
	for _, s := range c.scenarios {
		for _, trial := range s.trials(&c.plan) {
			for _, cell := range trial.cells {
				require.False(t, measured[cell.key], cell)
				measured[cell.key] = true
			}
		}
	}
	for _, target := range targets(&c.plan) {
		require.True(t, measured[target.cell], target.cell)
		if target.base.Contender != "" {
			require.True(t, measured[target.base], target.base)
		}
	}
}

func TestRowsSayWhatWasMetMissedAndNotMeasured(t *testing.T) {
	ours := key{Scenario: "throughput", N: 3, Load: 64, Contender: fencedLock}
	theirs := ours
	theirs.Contender = baseline
	medians := map[key]figures{ours: {PerSecond: 700, P50: time.Millisecond}, theirs: {PerSecond: 100}}
	rate := target{"speed", ours, theirs, figRate, atLeast(7)}
	require.Equal(t, row{What: "speed", Figure: "per second / redsync", Measured: 7, From: "700 / 100", Target: "≥ 7", Met: true}, rate.row(medians))
	rate.limit = atLeast(7.1)
	require.False(t, rate.row(medians).Met)

	// The least of figures meets every limit: an absent one must not.
	p50 := target{"latency", ours, theirs, figP50, atMost(0.75)}
	require.True(t, p50.row(medians).Missing, "the other's is absent")
	require.False(t, p50.row(medians).Met)
	require.True(t, target{what: "p99", cell: ours, figure: figP99, limit: atMost(1)}.row(medians).Missing, "ours is absent")
	require.True(t, target{what: "cell", cell: key{}, figure: figErrors, limit: atMost(0)}.row(medians).Missing)
	require.True(t, target{what: "errors", cell: ours, figure: figErrors, limit: atMost(0)}.row(medians).Met)

	text := report{Rows: []row{rate.row(medians), p50.row(medians)}}.targetsText()
	require.Contains(t, text, "| speed | per second / redsync | 7.00 | 700 / 100 | ≥ 7.1 | **no** |")
	require.Contains(t, text, "| latency | p50 / redsync | – | – | ≤ 0.75 | not measured |")
}

func TestTheGuardGuardsRowsThatItMeasures(t *testing.T) {
	c, err := parse([]string{"-guard"}, t.Output())
	require.NoError(t, err)
	limits, err := thresholds(guardText)
	require.NoError(t, err)
	require.NotEmpty(t, limits)

	var cells []*cell
	for _, s := range c.scenarios {
		for _, trial := range s.trials(&c.plan) {
			cells = append(cells, trial.cells...)
		}
	}
	for _, cell := range cells {
		cell.Median = figures{P50: 1, P99: 1, PerSecond: 1, Allocs: 1, CPU: 1, Requests: 1, Fairness: 1}
	}
	err = keep(io.Discard, limits, judge(&c.plan, cells))
	require.NotContains(t, errors.Join(err, io.EOF).Error(), "not measured", "a row of guard.json that the guard does not measure")
}

func TestTheGuardFindsWhatIsWorse(t *testing.T) {
	limits, err := thresholds([]byte(`[{"row": "a: x", "at_most": 2}, {"row": "b: x", "at_least": 2}]`))
	require.NoError(t, err)
	rows := []row{{What: "a", Figure: "x", Measured: 2}, {What: "b", Figure: "x", Measured: 2}}
	var out bytes.Buffer
	require.NoError(t, keep(&out, limits, rows))
	require.Contains(t, out.String(), "ok")

	rows[0].Measured, rows[1].Measured = 2.1, 1.9
	err = keep(&out, limits, rows)
	require.ErrorContains(t, err, "a: x: 2.10 is not ≤ 2")
	require.ErrorContains(t, err, "b: x: 1.90 is not ≥ 2")
	require.ErrorContains(t, keep(&out, limits, rows[:1]), "b: x: not measured")
	rows[0].Missing = true
	require.ErrorContains(t, keep(&out, limits, rows), "a: x: not measured")

	for _, bad := range []string{`{}`, `[{"row": "a"}]`, `[{"row": "a", "at_most": 1, "at_least": 1}]`} {
		_, err := thresholds([]byte(bad))
		require.Error(t, err, bad)
	}
}

func TestADocumentQuotesOneRunWhole(t *testing.T) {
	document := "before\n<!-- bench head -->\nold\n<!-- /bench -->\nbetween\n<!-- bench delay -->\n<!-- /bench -->\nafter\n"
	quoted, err := quote(document, []part{{"head", "new $1\n"}, {"delay", "table\n"}})
	require.NoError(t, err)
	require.Equal(t, "before\n<!-- bench head -->\n\nnew $1\n\n<!-- /bench -->\nbetween\n<!-- bench delay -->\n\ntable\n\n<!-- /bench -->\nafter\n", quoted)
	again, err := quote(quoted, []part{{"head", "new $1\n"}, {"delay", "table\n"}})
	require.NoError(t, err)
	require.Equal(t, quoted, again)
	_, err = quote(document, []part{{"head", "new\n"}})
	require.ErrorContains(t, err, "delay")
}

func TestThePerformancePageQuotesWhatExists(t *testing.T) {
	text, err := os.ReadFile("../docs/performance.md")
	require.NoError(t, err)
	var parts []part
	for _, p := range (report{scenarios: scenarios()}).parts() {
		parts = append(parts, part{p.name, "as measured\n"})
	}
	_, err = quote(string(text), parts)
	require.NoError(t, err)
	require.Len(t, quotation.FindAllString(string(text), -1), len(parts), "every part of a report has its place")
}

func TestThePlotShowsEveryPanel(t *testing.T) {
	var cells []*cell
	for _, k := range []key{
		{Scenario: "throughput", N: 1, Load: 64},
		{Scenario: "throughput", N: 3, Load: 64},
		{Scenario: "throughput", N: 3, Load: 1},
		{Scenario: "local", N: 3, Load: 16},
		{Scenario: "renewals", N: 3, Load: 100},
		{Scenario: "renewals", N: 3, Load: 1000},
	} {
		for _, k.Contender = range []string{fencedLock, baseline} {
			cells = append(cells, &cell{key: k, Median: figures{CPU: time.Duration(1000 * (1 + len(cells)))}})
		}
	}
	var svg bytes.Buffer
	require.NoError(t, report{Cells: cells}.plot(&svg))
	require.Contains(t, svg.String(), "prefers-color-scheme:dark")
	require.NotContains(t, svg.String(), "NaN")
	require.NotContains(t, svg.String(), "not measured")

	lines := 0
	for d := xml.NewDecoder(&svg); ; {
		token, err := d.Token()
		if errors.Is(err, io.EOF) {
			break
		}
		require.NoError(t, err)
		if e, ok := token.(xml.StartElement); ok && e.Name.Local == "polyline" {
			lines++
		}
	}
	require.Equal(t, 2*len(panels), lines)

	svg.Reset()
	require.NoError(t, report{}.plot(&svg))
	require.Equal(t, len(panels), bytes.Count(svg.Bytes(), []byte("not measured")))
}

func TestJSONKnowsWhatEveryCellIs(t *testing.T) {
	var js bytes.Buffer
	r := report{Rows: []row{{What: "w", Target: "≤ 1"}}, Cells: []*cell{{key: key{Scenario: "delay", N: 3, Load: 1, Contender: fencedLock}}}}
	require.NoError(t, r.json(&js))
	var back struct {
		Targets []row
		Cells   []key
	}
	require.NoError(t, json.Unmarshal(js.Bytes(), &back))
	require.Equal(t, r.Cells[0].key, back.Cells[0])
	require.Equal(t, r.Rows, back.Targets)
}
