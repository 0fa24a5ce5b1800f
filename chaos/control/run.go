package control

import (
	"context"
	"errors"
	"fmt"
	"io"
	"sync"
	"text/tabwriter"

	"github.com/quorumlock/redlock"
	"github.com/quorumlock/redlock/fence"
)

// A Verdict is what came of all plays of one scenario.
type Verdict struct {
	Scenario Scenario
	Without  Tally // plays without the fault, where nothing went wrong
	Harm     Tally // plays with it, where something did
	What     string
	Protect  []Tally // plays behind each protection, that stopped it
}

// A Tally counts the plays that showed what they should.
type Tally struct {
	Shown, Played int
	Err           error  // of the play that did not
	Skipped       string // why there was no play
}

// Shown reports whether every play showed what it should.
func (v *Verdict) Shown() bool {
	for _, t := range v.tallies() {
		if t.Err != nil || t.Skipped != "" || t.Shown < t.Played || t.Played == 0 {
			return false
		}
	}
	return true
}

// Err returns why not; nil if they did.
func (v *Verdict) Err() error {
	var errs []error
	for _, t := range v.tallies() {
		if t.Err != nil {
			errs = append(errs, fmt.Errorf("%s: %w", v.Scenario.Name, t.Err))
		}
	}
	return errors.Join(errs...)
}

// Skipped returns why some were not played.
func (v *Verdict) Skipped() string {
	for _, t := range v.tallies() {
		if t.Skipped != "" {
			return t.Skipped
		}
	}
	return ""
}

func (v *Verdict) tallies() []*Tally {
	all := []*Tally{&v.Without, &v.Harm}
	for i := range v.Protect {
		all = append(all, &v.Protect[i])
	}
	return all
}

// Run plays a scenario n times in each way, those of the ways side by side, until ctx
// ends. A way whose play does not show what it should is given up.
func Run(ctx context.Context, s Scenario, n int) *Verdict {
	v := &Verdict{Scenario: s, Protect: make([]Tally, len(s.Protect))}
	base := how{fault: true, fenced: s.Fenced, quarantined: s.Quarantined}
	var ways sync.WaitGroup
	ways.Go(func() {
		without := base
		without.fault = false
		v.Without.run(ctx, n, without, s.Break, func(o Outcome) error {
			switch {
			case o.Harm != "":
				return fmt.Errorf("%s without the fault", o.Harm)
			case !errors.Is(o.Refusal, redlock.ErrTaken) && !errors.Is(o.Refusal, errRefused) && !errors.Is(o.Refusal, fence.ErrStale):
				return fmt.Errorf("without the fault, nobody was refused the lock: %w", orNothing(o.Refusal))
			}
			return nil
		})
	})
	ways.Go(func() {
		v.Harm.run(ctx, n, base, s.Break, func(o Outcome) error {
			if o.Harm == "" {
				return fmt.Errorf("nothing went wrong: %w", orNothing(o.Refusal))
			}
			v.What = o.Harm
			return nil
		})
	})
	for i, p := range s.Protect {
		ways.Go(func() {
			v.Protect[i].run(ctx, n, p.how(base), p.storyOf(s), func(o Outcome) error {
				switch {
				case o.Harm != "":
					return fmt.Errorf("%s in spite of %s", o.Harm, p.By)
				case !errors.Is(o.Refusal, p.Want):
					return fmt.Errorf("%s: not stopped by %q, but by: %w", p.By, p.Want.Error(), orNothing(o.Refusal))
				}
				return nil
			})
		})
	}
	ways.Wait()
	return v
}

// run plays a story n times.
func (t *Tally) run(ctx context.Context, n int, h how, story func(*Stage), judge func(Outcome) error) {
	for range n {
		o := play(ctx, h, story)
		switch {
		case ctx.Err() != nil:
			t.Err = context.Cause(ctx)
			return
		case o.Skipped != "":
			t.Skipped = o.Skipped
			return
		case o.Failure != "":
			t.Err = errors.New(o.Failure)
		default:
			t.Err = judge(o)
		}
		t.Played++
		if t.Err != nil {
			return
		}
		t.Shown++
	}
}

var errNothing = errors.New("nothing stopped it")

func orNothing(err error) error {
	if err == nil {
		return errNothing
	}
	return err
}

// how a protection's story is played, where the scenario's is played as base.
func (p Protection) how(base how) how {
	base.fenced = base.fenced || p.fenced
	base.quarantined = base.quarantined || p.quarantined
	base.finding = p.finding
	return base
}

func (p Protection) storyOf(s Scenario) func(*Stage) {
	if p.story != nil {
		return p.story
	}
	return s.Break
}

// RunAll runs scenarios, some at a time.
func RunAll(ctx context.Context, scenarios []Scenario, n, atOnce int) []*Verdict {
	verdicts := make([]*Verdict, len(scenarios))
	turns := make(chan struct{}, atOnce)
	var wg sync.WaitGroup
	for i, s := range scenarios {
		turns <- struct{}{}
		wg.Go(func() {
			defer func() { <-turns }()
			verdicts[i] = Run(ctx, s, n)
		})
	}
	wg.Wait()
	return verdicts
}

// Table prints verdicts.
func Table(w io.Writer, verdicts []*Verdict) {
	table := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
	fmt.Fprintln(table, "SCENARIO\tNO FAULT\tUNPROTECTED\tPROTECTED")
	for _, v := range verdicts {
		fmt.Fprintf(table, "%s\tharmless %v\t%s %v\t", v.Scenario.Name, v.Without, v.What, v.Harm)
		for i, p := range v.Scenario.Protect {
			if i > 0 {
				fmt.Fprint(table, ", ")
			}
			fmt.Fprintf(table, "%s %v", p.By, v.Protect[i])
		}
		fmt.Fprintln(table)
	}
	table.Flush()
}

func (t Tally) String() string {
	if t.Skipped != "" {
		return "skipped"
	}
	return fmt.Sprintf("%d/%d", t.Shown, t.Played)
}
