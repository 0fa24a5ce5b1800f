package history

import (
	"fmt"
	"os"
	"path/filepath"
	"time"
)

// A Demand is what a run has to be like. That no fenced resource applies a stale
// access, loses an update or keeps out the current holder is demanded always.
type Demand struct {
	Operations int // at least; with fewer, nothing was shown
	Faults     int // that hit something; the same

	Exclusive bool          // no two holders at one time, and nothing that takes two
	Order     bool          // tokens grow in real time
	Extends   bool          // and no extend is confirmed after a larger token; not where instances forget
	Clean     bool          // no lock key is left
	Recovers  time.Duration // after the end of the last fault, a lock is granted within this; 0: whenever
	Breaks    bool          // an unfenced resource applies a stale access: a control, which shows that the run could show it

	Pictures string // the directory for the picture of tokens out of order
}

// A Report is what the checks found.
type Report struct {
	Operations int
	Holds      int // locks that were granted
	Tries      int // acquires, also those in vain
	Accesses   int
	Faults     int // that hit something
	Misses     int // faults that hit nothing

	Overlaps     []Overlap
	Stale        []Stale // applied without a guard
	StaleFenced  []Stale // and with one
	Refused      int     // accesses that a guard refused
	Lost         []LostUpdate
	LostFenced   []LostUpdate
	WrongRefusal []Access
	OutOfOrder   []Violation
	Leftovers    []Leftover
	Signals      Signals
	Recovery     time.Duration
	Recovered    bool

	Failures []string // why the run failed; none: it passed
}

// Check judges the history by d. An error means that it could not.
func (h *History) Check(d Demand) (*Report, error) {
	r := &Report{
		Operations: h.Operations(), Tries: len(h.Holds), Accesses: len(h.Accesses),
		Overlaps: Overlaps(h.Holds), WrongRefusal: WrongRefusals(h.Accesses),
		OutOfOrder: Check(h.Ops(d.Extends)), Leftovers: h.Leftovers, Signals: SignalsOf(h.Holds),
	}
	for _, k := range h.Holds {
		if k.Result == OK {
			r.Holds++
		}
	}
	for _, f := range h.Faults {
		if f.Hits > 0 {
			r.Faults++
		} else {
			r.Misses++
		}
	}
	for _, a := range h.Accesses {
		if a.Result == Refused {
			r.Refused++
		}
	}
	for _, s := range StaleAccesses(h.Holds, h.Accesses) {
		if s.Access.Fenced {
			r.StaleFenced = append(r.StaleFenced, s)
		} else {
			r.Stale = append(r.Stale, s)
		}
	}
	for _, l := range LostUpdates(h.Accesses) {
		if l.Update.Fenced {
			r.LostFenced = append(r.LostFenced, l)
		} else {
			r.Lost = append(r.Lost, l)
		}
	}
	if h.Healed > 0 {
		r.Recovery, r.Recovered = Recovery(h.Holds, h.Healed)
	}
	r.judge(d)
	if !d.Order {
		return r, nil
	}
	return r, r.linearize(h.Ops(d.Extends), d.Pictures)
}

func (r *Report) judge(d Demand) {
	fail := func(format string, args ...any) { r.Failures = append(r.Failures, fmt.Sprintf(format, args...)) }
	if r.Operations < d.Operations {
		fail("too little happened: %d operations, and at least %d are needed", r.Operations, d.Operations)
	}
	if r.Faults < d.Faults {
		fail("too few faults: %d hit something, %d nothing, and at least %d are needed", r.Faults, r.Misses, d.Faults)
	}
	if d.Exclusive {
		failEach(fail, "two holders", r.Overlaps)
		var inTime []Stale
		for _, s := range r.Stale {
			if s.InTime {
				inTime = append(inTime, s)
			}
		}
		failEach(fail, "stale accesses within the lease", inTime)
	}
	failEach(fail, "stale accesses that a guard let pass", r.StaleFenced)
	failEach(fail, "lost updates behind a guard", r.LostFenced)
	failEach(fail, "accesses of the current holder that a guard refused", r.WrongRefusal)
	if d.Order {
		failEach(fail, "tokens out of order", r.OutOfOrder)
	}
	if d.Clean {
		failEach(fail, "lock keys that were left behind", r.Leftovers)
	}
	switch {
	case d.Recovers == 0:
	case !r.Recovered:
		fail("no lock was granted after all was well again")
	case r.Recovery > d.Recovers:
		fail("the first lock after all was well again took %v", r.Recovery)
	}
	if d.Breaks && len(r.Stale) == 0 {
		fail("no stale access at a resource without a guard: the run could not have shown one behind a guard either")
	}
}

func failEach[T any](fail func(string, ...any), what string, found []T) {
	if len(found) > 0 {
		fail("%s: %d, as this: %v", what, len(found), found[0])
	}
}

// linearizeLimit is what porcupine may take. 400,000 operations on a dozen resources
// take it 2 s.
const linearizeLimit = 5 * time.Minute

// linearize asks porcupine, too, and leaves its picture in dir.
func (r *Report) linearize(ops []Op, dir string) error {
	var picture lazyFile
	if dir != "" {
		picture.path = filepath.Join(dir, "tokens.html")
	}
	ok, err := Linearizable(ops, linearizeLimit, &picture)
	if err == nil {
		err = picture.close()
	}
	if err == nil && !ok {
		where := ""
		if dir != "" {
			where = ": see " + picture.path
		}
		r.Failures = append(r.Failures, "porcupine finds no order of the tokens"+where)
	}
	return err
}

// A lazyFile is created by the first write, and not at all without a path.
type lazyFile struct {
	path string
	file *os.File
}

func (f *lazyFile) Write(p []byte) (int, error) {
	if f.path == "" {
		return len(p), nil
	}
	if f.file == nil {
		var err error
		if f.file, err = os.Create(f.path); err != nil {
			return 0, err
		}
	}
	return f.file.Write(p)
}

func (f *lazyFile) close() error {
	if f.file == nil {
		return nil
	}
	return f.file.Close()
}
