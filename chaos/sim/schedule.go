package sim

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"time"
)

// A Kind is what goes wrong.
type Kind string

// The kinds of faults.
const (
	SlowLink    Kind = "slow link"       // messages take up to Amount longer
	Loss        Kind = "loss"            // packets get lost: a message and all behind it come late, or the connection is dead
	CutRequests Kind = "requests cut"    // nothing passes to the instance; what was sent comes late or never
	CutReplies  Kind = "replies cut"     // nothing passes from the instance
	Duplicate   Kind = "duplicates"      // requests run once more, up to Amount later
	Hang        Kind = "hung instance"   // stopped: it takes messages and runs them when it goes on
	SlowServer  Kind = "slow instance"   // up to Amount for each message
	Restart     Kind = "restart"         // with its memory
	Forget      Kind = "restart, empty"  // without
	ServerJump  Kind = "clock jumps"     // an instance's, by Amount
	ServerFast  Kind = "fast clock"      // an instance's, twice as fast
	ClientJump  Kind = "client's clock"  // the wall clock of a client jumps by Amount
	Freeze      Kind = "client pauses"   // its workers and its messages stand still
	Sleep       Kind = "client sleeps"   // the same, and so does its monotonic clock
	Refuse      Kind = "connections cut" // those of a link break at once
)

// kinds are all of them, those within the assumptions of mutual exclusion first.
var kinds = []Kind{SlowLink, Loss, CutRequests, CutReplies, Duplicate, Hang, SlowServer, Restart, Refuse, ClientJump, Freeze, Sleep, Forget, ServerJump, ServerFast}

// A Fault is one thing that goes wrong for a while.
type Fault struct {
	Kind     Kind
	Client   int // all: every client
	Instance int // all: every instance
	From, To time.Duration
	Amount   time.Duration
}

const all = -1

func (f Fault) String() string {
	s := string(f.Kind)
	if f.Instance != all {
		s += fmt.Sprintf(" at instance %d", f.Instance)
	}
	if f.Client != all {
		s += fmt.Sprintf(" of client %d", f.Client)
	}
	if f.Amount != 0 {
		s += fmt.Sprintf(", %v", f.Amount.Round(time.Microsecond))
	}
	return fmt.Sprintf("%s, %.3f to %.3f ms", s, ms(f.From), ms(f.To))
}

func ms(d time.Duration) float64 { return float64(d) / float64(time.Millisecond) }

// hits reports whether f is on at t for a link.
func (f *Fault) hits(t time.Duration, client, instance int) bool {
	return f.From <= t && t < f.To && (f.Client == all || f.Client == client) && (f.Instance == all || f.Instance == instance)
}

// stands reports whether the client stands still while f is on.
func (f *Fault) stands() bool { return f.Kind == Freeze || f.Kind == Sleep }

// A Schedule is everything that a run is made of.
type Schedule struct {
	Seed       uint64
	Instances  int
	Workers    []int // of each client
	Resources  int
	Faults     []Fault
	Active     time.Duration // then everything heals
	Delay      time.Duration // of a message, typically
	TTLs       []time.Duration
	Long       bool          // some locks have a ttl that nobody sees the end of
	Quarantine time.Duration // 0: the default
	Rates      []float64     // of the instances' clocks
	Offsets    []time.Duration
	Eager      bool // those that wait hardly pause
	Unfenced   bool // the quorum issues no tokens
	Deaf       bool // nobody may subscribe: those that wait ask now and then, all of them

	// What can be claimed under these faults.
	Exclusive  bool // no two holders at a time
	Covered    bool // a majority keeps the keys for as long as the holder believes in its lock
	Ordered    bool // extends too respect the order of tokens
	Unrepeated bool // no request runs twice, so that extends may shorten
}

const longTTL = 20 * time.Second

// NewSchedule returns the schedule of a seed.
func NewSchedule(seed uint64) *Schedule {
	r := rand.New(rand.NewPCG(uint64(dice(seed).of(aboutSchedule)), seed))
	s := &Schedule{Seed: seed, Instances: pick(r, 3, 3, 3, 3, 3, 3, 5, 5, 1, 2, 4), Resources: 1 + r.IntN(2)}
	most := pick(r, 3, 3, 3, 3, 8) // of workers, if that is enough for one of each client
	for range pick(r, 2, 2, 3, 3, 4) {
		n := min(pick(r, 1, 1, 1, 2, 2, 3), max(most, 1))
		most -= n
		s.Workers = append(s.Workers, n)
		s.Offsets = append(s.Offsets, span(r, 0, 200*time.Millisecond)-100*time.Millisecond)
	}
	edge := s.drawTimes(r)
	s.Unfenced = r.IntN(10) == 0
	s.drawFaults(r, edge)
	s.Long = !s.has(Duplicate) && r.IntN(3) == 0
	s.Quarantine = s.quarantine()
	s.Deaf = r.IntN(3) == 0
	if !s.has(Forget) && r.IntN(2) == 0 {
		// So far apart that what one has counted to is far ahead of another's clock.
		for i := range s.Offsets {
			s.Offsets[i] *= 8
		}
	}
	s.claim()
	return s
}

// drawTimes sets how long everything takes. At the edge the drift of the ttls is more
// than the network and the eagerness of the others.
func (s *Schedule) drawTimes(r *rand.Rand) (edge bool) {
	s.Active = span(r, 500*time.Millisecond, pick(r, 1100*time.Millisecond, 1100*time.Millisecond, 1100*time.Millisecond, 2200*time.Millisecond))
	s.Delay = pick(r, 60*time.Microsecond, 200*time.Microsecond, 600*time.Microsecond, 2*time.Millisecond)
	base := span(r, max(50*time.Millisecond, 40*s.Delay), 300*time.Millisecond)
	s.TTLs = []time.Duration{base, base, base + span(r, 0, base), base / 2}
	s.Eager = r.IntN(2) == 0
	if edge = r.IntN(4) == 0; edge {
		s.TTLs = []time.Duration{span(r, 700*time.Millisecond, time.Second).Truncate(time.Millisecond)}
		s.Delay = 60 * time.Microsecond
		s.Eager = true
		s.Active += s.TTLs[0]
	}
	for range s.Instances {
		s.Rates = append(s.Rates, 1+pick(r, 0, 0.0095, -0.0095, 0.019*(r.Float64()-0.5)))
	}
	return edge
}

// drawFaults sets the faults.
func (s *Schedule) drawFaults(r *rand.Rand, edge bool) {
	allowed := slices.Clone(kinds[:len(kinds)-3])
	switch forgets, outside := r.IntN(3) == 0, r.IntN(8) == 0; {
	case edge:
		allowed = slices.DeleteFunc(allowed, func(k Kind) bool { return k == Restart })
	case forgets:
		// Then the order rests on the clients' clocks, too.
		allowed = slices.DeleteFunc(allowed, func(k Kind) bool { return k == ClientJump })
		allowed = append(allowed, Forget, Forget, Forget)
	case outside:
		allowed = append(allowed, ServerJump, ServerJump, ServerFast, ServerFast)
	}
	for range 1 + r.IntN(6) {
		s.Faults = append(s.Faults, s.newFault(r, allowed)...)
	}
	if s.has(ClientJump) {
		// One of the two clocks has to be right.
		for i := range s.Faults {
			if s.Faults[i].Kind == Sleep {
				s.Faults[i].Kind = Freeze
			}
		}
	}
	if s.has(Restart) || s.has(Forget) {
		// Those that wait for the end of a quarantine wake each other all the time.
		s.Delay = max(s.Delay, time.Millisecond)
	}
}

// quarantine returns what the longest ttl needs; 0 if the default is enough.
func (s *Schedule) quarantine() time.Duration {
	longest := slices.Max(s.TTLs)
	if s.Long {
		longest = longTTL
	}
	if longest <= time.Second/2 {
		return 0
	}
	return longest + 2*time.Second
}

// claim sets what can be claimed under the faults.
func (s *Schedule) claim() {
	s.Exclusive = !s.has(ServerJump) && !s.has(ServerFast)
	s.Covered = s.Exclusive && !s.has(Forget)
	s.Ordered = !s.has(Forget)
	s.Unrepeated = !s.has(Duplicate)
}

func (s *Schedule) has(k Kind) bool {
	return slices.ContainsFunc(s.Faults, func(f Fault) bool { return f.Kind == k })
}

// newFault returns one fault, or one that several instances have at a time.
func (s *Schedule) newFault(r *rand.Rand, allowed []Kind) []Fault {
	f := Fault{Kind: allowed[r.IntN(len(allowed))], Client: all, Instance: r.IntN(s.Instances)}
	f.From = span(r, 20*time.Millisecond, s.Active*4/5)
	most := s.Active - f.From
	f.To = f.From + span(r, min(10*time.Millisecond, most), min(most, pick(r, 100*time.Millisecond, 300*time.Millisecond, 1500*time.Millisecond)))
	base := s.TTLs[0]
	switch f.Kind {
	case SlowLink, Loss, CutRequests, CutReplies, Refuse:
		if r.IntN(2) == 0 {
			f.Client = r.IntN(len(s.Workers))
		}
		if r.IntN(4) == 0 {
			f.Instance = all
		}
		f.Amount = span(r, time.Millisecond, base)
	case Duplicate:
		f.Amount = span(r, time.Millisecond, 3*base)
	case SlowServer:
		f.Amount = span(r, time.Millisecond, base/4)
	case ServerJump:
		f.Amount = span(r, base/2, 2*base)
	case Freeze, Sleep, ClientJump:
		f.Instance = all
		f.Client = r.IntN(len(s.Workers))
		if f.Kind == ClientJump {
			f.Amount = span(r, -2*base, 2*base)
		}
	case Restart, Forget:
		f.To = f.From + span(r, time.Millisecond, min(most, pick(r, 5*time.Millisecond, 100*time.Millisecond)))
	}
	fs := []Fault{f}
	switch f.Kind {
	case Hang, Forget, Restart, ServerJump, ServerFast, CutReplies:
		// One instance alone is a minority that nobody misses.
		for i := range s.Instances {
			if f.Instance != all && i != f.Instance && r.IntN(2) == 0 {
				g := f
				g.Instance = i
				shift := span(r, 0, 5*time.Millisecond)
				g.From, g.To = g.From+shift, min(g.To+shift, s.Active)
				fs = append(fs, g)
			}
		}
	}
	return fs
}

func pick[T any](r *rand.Rand, of ...T) T { return of[r.IntN(len(of))] }

func span(r *rand.Rand, least, most time.Duration) time.Duration {
	return least + time.Duration(r.Int64N(max(int64(most-least), 1)))
}

// Parts names what can be taken out of s: its faults, clients and workers.
func (s *Schedule) Parts() []string {
	var parts []string
	for c, n := range s.Workers {
		if n > 0 {
			parts = append(parts, fmt.Sprintf("client%d", c))
		}
	}
	for i := range s.Faults {
		if s.Faults[i].Kind != "" {
			parts = append(parts, fmt.Sprintf("fault%d", i))
		}
	}
	for c, n := range s.Workers {
		if n > 1 {
			parts = append(parts, fmt.Sprintf("worker%d", c))
		}
	}
	return parts
}

// Without returns s without some of its parts. What is left keeps its number, and so
// does what it always did. A client's workers go one by one, the last one first.
func (s *Schedule) Without(parts ...string) (*Schedule, error) {
	left := *s
	left.Workers, left.Faults = slices.Clone(s.Workers), slices.Clone(s.Faults)
	for _, part := range parts {
		var i int
		switch {
		case scan(part, "client", &i) && i < len(left.Workers):
			left.Workers[i] = 0
		case scan(part, "worker", &i) && i < len(left.Workers) && left.Workers[i] > 0:
			left.Workers[i]--
		case scan(part, "fault", &i) && i < len(left.Faults):
			left.Faults[i].Kind = ""
		default:
			return nil, fmt.Errorf("the schedule of seed %d has no %q", s.Seed, part)
		}
	}
	return &left, nil
}

func scan(text, word string, i *int) bool {
	number, found := strings.CutPrefix(text, word)
	if !found {
		return false
	}
	n, err := fmt.Sscanf(number, "%d", i)
	return n == 1 && err == nil && *i >= 0 && fmt.Sprint(*i) == number
}

func (s *Schedule) String() string {
	var b strings.Builder
	fmt.Fprintf(&b, "seed %d: %d instances, workers of each client %v, %d resources, delay %v, ttls %v, %v of faults", s.Seed, s.Instances, s.Workers, s.Resources, s.Delay, s.TTLs, s.Active)
	for i, f := range s.Faults {
		if f.Kind != "" {
			fmt.Fprintf(&b, "\n  fault%d: %v", i, f)
		}
	}
	return b.String()
}
