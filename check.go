package redlock

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"time"
)

// Check asks every instance, all at once, whether it is fit for Redlock, and runs
// on each the script that locks, on a key of its own that is gone a few seconds
// later. See docs/preflight.md for what it looks at.
//
// It works as far as the permissions allow, and says what it could not see. An
// instance that is down or hangs is a finding about it; it costs about the
// instance time-out, at least 1 s, and nothing else. Without one, Check takes some
// 300 ms, in which it watches the clocks.
//
// If something is unsafe the error is an *[UnsafeError], and the report tells the
// rest. When ctx ends, Check returns at once: the error matches ctx's, and the
// report has what was seen until then. [ErrClosed], a nil ctx and a nil Locker are
// errors without a report.
func (l *Locker) Check(ctx context.Context) (*Report, error) {
	if l == nil {
		return nil, errNilLocker
	}
	if ctx == nil {
		return nil, errNilContext
	}
	return l.check(ctx, l.quarantine())
}

func (l *Locker) check(ctx context.Context, guard time.Duration) (*Report, error) {
	if err := l.enter(); err != nil {
		return nil, err
	}
	defer l.exit()
	if ctx.Err() != nil {
		return nil, &endedError{op: "check", ctx: ctx}
	}
	asking, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	defer context.AfterFunc(l.closing, func() { cancel(ErrClosed) })()

	seen := make([]*facts, len(l.instances))
	var wg sync.WaitGroup
	for i, in := range l.instances {
		wg.Go(func() { seen[i] = in.inspect(asking) })
	}
	wg.Wait() // no question outlasts asking, whatever the client does
	if errors.Is(context.Cause(asking), ErrClosed) {
		return nil, ErrClosed
	}

	r := l.report(seen, guard)
	err := r.unsafe()
	if ctx.Err() != nil {
		err = &endedError{op: "check", ctx: ctx, last: err}
	}
	return r, err
}

// report judges the instances one by one, and as a set.
func (l *Locker) report(seen []*facts, guard time.Duration) *Report {
	n := len(seen)
	r := &Report{Quorum: quorumOf(n)}
	fs := findings{} // JSON has [] then, not null
	switch {
	case n == 1:
		fs.add(Info, "single", "list three or five instances that fail separately",
			"there is one instance: when it is down nobody gets a lock, and a restart or an eviction that nobody notices is enough for a second holder")
	case n%2 == 0:
		fs.add(Warning, "even", "add an instance, or take one away",
			"%d instances tolerate the loss of %d, no more than %d do, and more can fail", n, n-quorumOf(n), n-1)
	}

	granting, unknown := 0, 0
	byRunID := map[string]string{}
	for i, f := range seen {
		in := l.instances[i]
		ir := in.report(f, guard)
		r.Instances = append(r.Instances, ir)
		other, twice := byRunID[ir.RunID]
		switch {
		case twice && ir.RunID != "":
			fs.add(Unsafe, "duplicate", "list every server once",
				"%s and %s are one server: it votes once, and so fewer losses are tolerated than %d instances promise", other, in.name, n)
			continue
		case ir.Grants:
			granting++
		case errors.Is(f.lost, errPending):
			unknown++
		}
		byRunID[ir.RunID] = in.name
	}
	switch {
	case granting+unknown < r.Quorum:
		fs.add(Unsafe, "quorum", "see what is said about each of the others",
			"%d of %d instances grant locks, and a lock needs %d: nobody gets one", granting, n, r.Quorum)
	case granting < r.Quorum:
		fs.add(Warning, "quorum", "give Check more time", "%d of %d instances grant locks, as far as was seen, and a lock needs %d", granting, n, r.Quorum)
	}
	r.Findings = fs
	return r
}

// An UnsafeError says what makes the instances unfit for Redlock: one line of text
// that names each unsafe finding, and the instances. Its report tells the rest.
type UnsafeError struct{ Report *Report }

func (e *UnsafeError) Error() string {
	var texts []string
	for _, g := range e.Report.groups() {
		if g.Severity != Unsafe {
			continue
		}
		text := g.Check + ": " + g.Text
		if g.instances != nil {
			text += fmt.Sprintf(" (%s)", strings.Join(g.instances, ", "))
		}
		texts = append(texts, text)
	}
	return "redlock: unsafe: " + strings.Join(texts, "; ")
}

// unsafe returns an UnsafeError, or nil if nothing is unsafe.
func (r *Report) unsafe() error {
	if r.Worst() < Unsafe {
		return nil
	}
	return &UnsafeError{r}
}

// A group is a finding and the instances it is about; none if it is about the set.
type group struct {
	Finding
	instances []string
}

// groups returns the findings, the worst first: what is said of several instances
// in the same words, once.
func (r *Report) groups() []group {
	var all []group
	for _, f := range r.Findings {
		all = append(all, group{Finding: f})
	}
	for _, in := range r.Instances {
		for _, f := range in.Findings {
			i := slices.IndexFunc(all, func(g group) bool { return g.Finding == f && g.instances != nil })
			if i < 0 {
				i = len(all)
				all = append(all, group{Finding: f})
			}
			all[i].instances = append(all[i].instances, in.Instance)
		}
	}
	slices.SortStableFunc(all, func(a, b group) int { return int(b.Severity) - int(a.Severity) })
	return all
}
