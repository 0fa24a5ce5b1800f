package main

import (
	_ "embed"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"time"
)

// guardText holds the thresholds: for ratios looser than what a quiet machine shows, by what a short run needs; for counts,
// which do not depend on the machine, a little above what they are.
//
//go:embed guard.json
var guardText []byte

// A threshold is what a row of the report must reach for the guard to be content.
type threshold struct {
	Row     string   `json:"row"`
	AtLeast *float64 `json:"at_least,omitempty"`
	AtMost  *float64 `json:"at_most,omitempty"`
}

func thresholds(text []byte) ([]threshold, error) {
	var ts []threshold
	if err := json.Unmarshal(text, &ts); err != nil {
		return nil, fmt.Errorf("guard.json: %w", err)
	}
	for _, t := range ts {
		if (t.AtLeast == nil) == (t.AtMost == nil) {
			return nil, fmt.Errorf("guard.json: %q needs at_least or at_most", t.Row)
		}
	}
	return ts, nil
}

func (t threshold) limit() limit {
	if t.AtLeast != nil {
		return atLeast(*t.AtLeast)
	}
	return atMost(*t.AtMost)
}

// guard makes p the short run that the guard judges.
func (p *plan) guard() error {
	var err error
	if p.scenarios, err = pick(scenarios(), "throughput,handover,local", "scenario", scenarioName); err != nil {
		return err
	}
	if p.contenders, err = choose(contenders(), fencedLock+","+unfencedLock+","+baseline); err != nil {
		return err
	}
	p.sizes, p.goroutines, p.waiters = []int{1, 3}, []int{1, 64}, []int{64}
	p.duration, p.reps = 500*time.Millisecond, 5
	return nil
}

// keep writes how the rows stand to the thresholds, and returns an error that names those that are worse, or absent: a
// guard that has lost its row guards nothing.
func keep(w io.Writer, ts []threshold, rows []row) error {
	byID := make(map[string]row)
	for _, r := range rows {
		byID[r.id()] = r
	}
	var errs []error
	for _, t := range ts {
		r, ok := byID[t.Row]
		if !ok || r.Missing {
			errs = append(errs, fmt.Errorf("guard: %s: not measured", t.Row))
			continue
		}
		verdict := "ok"
		if !t.limit().met(r.Measured) {
			verdict = "WORSE"
			errs = append(errs, fmt.Errorf("guard: %s: %s is not %s", t.Row, small(r.Measured), t.limit()))
		}
		fmt.Fprintf(w, "%-5s  %8s  %-8s  %s\n", verdict, small(r.Measured), t.limit(), t.Row)
	}
	return errors.Join(errs...)
}
