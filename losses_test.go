package redlock_test

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strconv"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/quorumlock/redlock"
	"github.com/quorumlock/redlock/internal/redistest"
)

// losses is how often each kind of loss is brought about, and a measure for the
// other tests of what it is to hold a lock. REDLOCK_LOSSES=1000 makes it more.
func losses(t testing.TB) int {
	text := os.Getenv("REDLOCK_LOSSES")
	if text == "" {
		return 50
	}
	n, err := strconv.Atoi(text)
	require.NoError(t, err)
	require.Positive(t, n)
	return n
}

const (
	atOnce      = 50 // locks that are lost together
	shortestTTL = 150 * time.Millisecond
	longestTTL  = time.Second

	mostLate = 20 * time.Millisecond // after the window, in one of a thousand losses
)

// A timer that is later than this: the process did not run. The race detector leaves less of
// the 5 ms before its end in which the loss of a lock is signalled.
var ranLate = paced(5*time.Millisecond, 2*time.Millisecond)

// A loss is what befalls the majority of three servers.
type loss struct {
	name    string
	reasons []redlock.LostReason
	begin   func(t *testing.T) striking
}

// A striking is servers, and what is done to one of them so that it has lost keys,
// or can't be asked for them.
type striking struct {
	servers []*redistest.Server
	strike  func(server int, keys []string) error
	mend    func(server int, keys []string) error
}

var kinds = []loss{
	{"stopped", []redlock.LostReason{redlock.LostNoQuorum}, func(t *testing.T) striking {
		servers := start(t, 3)
		return striking{
			servers,
			func(i int, _ []string) error { return servers[i].Pause() },
			func(i int, _ []string) error { return servers[i].Resume() },
		}
	}},

	{"killed", []redlock.LostReason{redlock.LostNoQuorum}, func(t *testing.T) striking {
		servers := start(t, 3)
		return striking{
			servers,
			func(i int, _ []string) error { return servers[i].Kill() },
			func(i int, _ []string) error { return servers[i].Restart() },
		}
	}},

	// Whoever renews before the new process listens finds nobody there, and is lost
	// to that if its window is short.
	{"restarted empty", []redlock.LostReason{redlock.LostExpired, redlock.LostNoQuorum}, func(t *testing.T) striking {
		servers := start(t, 3)
		return striking{servers, func(i int, _ []string) error { return servers[i].Restart() }, nothing}
	}},

	{"deleted", []redlock.LostReason{redlock.LostExpired}, func(t *testing.T) striking {
		servers := start(t, 3)
		return striking{
			servers,
			func(i int, keys []string) error { return command(append([]string{"DEL"}, keys...)...)(servers[i]) },
			nothing,
		}
	}},

	{"overwritten", []redlock.LostReason{redlock.LostTakenOver}, func(t *testing.T) striking {
		servers := start(t, 3)
		return striking{
			servers,
			func(i int, keys []string) error {
				args := []string{"MSET"}
				for _, key := range keys {
					args = append(args, key, "somebody else")
				}
				return command(args...)(servers[i])
			},
			func(i int, keys []string) error { return command(append([]string{"DEL"}, keys...)...)(servers[i]) },
		}
	}},

	{"clocks set forward", []redlock.LostReason{redlock.LostExpired}, func(t *testing.T) striking {
		clocks, servers := startClocks(t, 3)
		jump := func(d time.Duration) func(int, []string) error {
			return func(i int, _ []string) error {
				clocks[i].Jump(d)
				return nil
			}
		}
		return striking{servers, jump(8 * time.Second), jump(-8 * time.Second)}
	}},
}

func nothing(int, []string) error { return nil }

// startClocks returns n servers with clocks of their own.
func startClocks(t *testing.T, n int) ([]*redistest.Clock, []*redistest.Server) {
	t.Helper()
	var clocks []*redistest.Clock
	var servers []*redistest.Server
	for range n {
		c := redistest.StartWithClock(t)
		clocks, servers = append(clocks, c), append(servers, c.Server)
	}
	return clocks, servers
}

// Whatever a majority suffers, the holder hears of it before its window is over:
// in 999 of 1000 losses, and at most 20 ms late in the other one. A loss at which
// this process did not run counts from when it ran again, and is reported.
func TestALossIsSignalledBeforeTheWindowIsOver(t *testing.T) {
	for _, kind := range kinds {
		t.Run(kind.name, func(t *testing.T) {
			t.Parallel()
			s := kind.begin(t)
			l := openAt(t, redistest.Addrs(s.servers))
			v := newVerdict(t, kind.reasons)
			for v.judged < losses(t) {
				s.lose(t, l, v)
			}
			requireNoOrphans(t, s.servers)
			v.require()
		})
	}
}

// lose has many locks held, brings the loss about, and lets v judge.
func (s striking) lose(t *testing.T, l *redlock.Locker, v *verdict) {
	t.Helper()
	locks := make([]*kept, atOnce)
	keys := make([]string, atOnce)
	var wg sync.WaitGroup
	for i := range locks {
		keys[i] = fmt.Sprint("r", rand.Uint64())
		wg.Go(func() { locks[i] = keep(t, l, keys[i], anyTTL()) })
	}
	wg.Wait()
	time.Sleep(longestTTL/3 + rand.N(longestTTL/3)) // all have been renewed, and any phase is as likely
	for _, k := range locks {
		k.look()
	}

	majority := rand.Perm(len(s.servers))[:len(s.servers)/2+1]
	both := func(do func(int, []string) error) {
		t.Helper()
		errs := make([]error, len(majority))
		for i, server := range majority {
			wg.Go(func() { errs[i] = do(server, keys) })
		}
		wg.Wait()
		require.NoError(t, errors.Join(errs...))
	}
	struck := time.Now()
	both(s.strike)
	for _, k := range locks {
		k.look() // it may have been renewed on the way
	}
	over, cancel := context.WithTimeout(t.Context(), 2*longestTTL)
	defer cancel()
	for _, k := range locks {
		switch {
		case k.ended(over):
			v.judge(k, struck)
		case s.count(k.lock) > len(s.servers)/2:
			v.healed++ // by a renewal between the blows at two servers
			_ = k.lock.Release(t.Context())
		default:
			t.Errorf("%s: no signal", k.lock.Resource())
		}
	}
	both(s.mend)
}

// count returns how many servers have the key of k.
func (s striking) count(k *redlock.Lock) int {
	n := 0
	for _, server := range s.servers {
		if value, _ := get(server, k.Resource()); value == k.Owner() {
			n++
		}
	}
	return n
}

// A kept is a lock that is kept alive, and when that ended.
type kept struct {
	lock   *redlock.Lock
	ctx    context.Context
	before time.Time     // ValidUntil, as last seen before the end
	at     time.Time     // when the end was seen
	done   chan struct{} // closed then
}

func anyTTL() time.Duration { return shortestTTL + rand.N(longestTTL-shortestTTL) }

// keep holds a lock, with a phase of its own.
func keep(t *testing.T, l *redlock.Locker, resource string, ttl time.Duration) *kept {
	k, err := keepOn(t.Context(), l, resource, ttl)
	if err != nil {
		t.Errorf("acquire: %v", err)
	}
	return k
}

func keepOn(ctx context.Context, l *redlock.Locker, resource string, ttl time.Duration) (*kept, error) {
	time.Sleep(rand.N(ttl / 3)) // the phase
	lock, err := l.Acquire(ctx, resource, ttl)
	if err != nil {
		return nil, err
	}
	k := &kept{lock: lock, ctx: lock.KeepAlive(ctx), done: make(chan struct{})}
	context.AfterFunc(k.ctx, func() {
		k.at = time.Now()
		close(k.done)
	})
	return k, nil
}

// ended reports whether the end is seen before ctx ends.
func (k *kept) ended(ctx context.Context) bool {
	select {
	case <-k.done:
		return true
	case <-ctx.Done():
	}
	select {
	case <-k.done:
		return true
	default:
		return false
	}
}

// look notes the window, unless the end has come: that of a lock that was lost for
// certain is cut off there.
func (k *kept) look() {
	if until := k.lock.ValidUntil(); k.ctx.Err() == nil {
		k.before = until
	}
}

// asLost returns the loss that err is.
func asLost(err error) (*redlock.LostError, bool) {
	lost, is := errors.AsType[*redlock.LostError](err)
	return lost, is && errors.Is(err, redlock.ErrLost)
}

// A verdict is on losses of one kind.
type verdict struct {
	t       *testing.T
	control *control
	stop    func() // it
	allowed []redlock.LostReason

	judged   int
	reasons  map[redlock.LostReason]int
	margins  []time.Duration // from the signal to the end of the window
	suspects []suspect       // those that came after it
	odd      []suspect       // those with another reason
	late     []time.Duration // of the suspects at which the process ran
	notRun   []time.Duration // and of those at which it did not
	too      int             // lost before anything was done to the servers
	healed   int             // not lost
	worstRun time.Duration   // from when the process ran again to the signal
}

// A suspect is a loss that may be explained by what the control has seen.
type suspect struct {
	from, at time.Time
	err      error
}

func newVerdict(t *testing.T, allowed []redlock.LostReason) *verdict {
	c, stop := newControl()
	t.Cleanup(stop)
	return &verdict{t: t, control: c, stop: stop, allowed: allowed, reasons: map[redlock.LostReason]int{}}
}

func (v *verdict) judge(k *kept, struck time.Time) {
	v.t.Helper()
	if k.at.Before(struck) {
		v.too++
		return
	}
	v.judged++
	err := context.Cause(k.ctx)
	lost, is := asLost(err)
	require.True(v.t, is, "%v", err)
	require.LessOrEqual(v.t, k.lock.Remaining(), time.Duration(0))
	v.reasons[lost.Reason]++

	// Servers that were stopped may have confirmed a renewal whose answer came later.
	until := k.before
	if end := k.lock.ValidUntil(); end.After(until) {
		until = end
	}
	margin := until.Sub(k.at.Round(0))
	v.margins = append(v.margins, margin)
	if !slices.Contains(v.allowed, lost.Reason) {
		v.odd = append(v.odd, suspect{from: struck, at: k.at, err: err})
	}
	if margin <= 0 {
		v.suspects = append(v.suspects, suspect{from: until, at: k.at})
	}
}

// require ends the control, which may notice a moment later than the lock that the
// process did not run, and passes the verdict.
func (v *verdict) require() {
	v.t.Helper()
	v.stop()
	for _, s := range v.odd { // who does not run misses answers, and then the end
		if _, slept := v.control.slept(s.from, s.at); !slept {
			v.t.Errorf("%v", s.err)
		}
	}
	for _, s := range v.suspects {
		late := s.at.Round(0).Sub(s.from)
		if again, slept := v.control.slept(s.from.Add(-ranLate), s.at); slept {
			v.notRun = append(v.notRun, late)
			v.worstRun = max(v.worstRun, s.at.Sub(again))
			continue
		}
		v.late = append(v.late, late)
	}
	slices.Sort(v.margins)
	v.t.Logf("%d losses %v: the signal came %v before the end of the window at worst, %v in the middle; %d came after it %v, and %d at which the process did not run %v, at worst %v after it ran again; %d were lost before, and %d healed",
		v.judged, v.reasons, v.margins[0], v.margins[len(v.margins)/2], len(v.late), v.late, len(v.notRun), v.notRun, v.worstRun, v.too, v.healed)
	most := v.judged / 1000
	if most == 0 { // too few to tell; a signal that is late for a reason is late every other time
		most = v.judged / 10
	}
	require.LessOrEqual(v.t, len(v.late), most, "late by %v", v.late)
	for _, late := range v.late {
		require.LessOrEqual(v.t, late, mostLate)
	}
	require.LessOrEqual(v.t, v.too+v.healed, v.judged, "more were not lost by this than were")
}

// A control notes when this process, or a thread of it, wanted to run and did not:
// that says nothing of the library. Timers of its own are late then; and where the
// machine stops one thread and runs the others, Linux tells how long it waited.
type control struct {
	mu   sync.Mutex
	gaps []gap
}

type gap struct{ due, woke time.Time }

// newControl returns a control, and what stops it.
func newControl() (c *control, stop func()) {
	c = &control{}
	quit := make(chan struct{})
	var wg sync.WaitGroup
	for range 2 * runtime.GOMAXPROCS(0) {
		wg.Go(func() { c.watchTimer(quit) })
	}
	wg.Go(func() { c.watchThreads(quit) })
	return c, sync.OnceFunc(func() {
		close(quit)
		wg.Wait()
	})
}

func (c *control) watchTimer(quit <-chan struct{}) {
	timer := time.NewTimer(0)
	defer timer.Stop()
	for ended := false; !ended; {
		due := time.Now().Add(time.Millisecond)
		timer.Reset(time.Millisecond)
		select {
		case <-quit:
			ended = true
		case <-timer.C:
		}
		if woke := time.Now(); woke.Sub(due) > ranLate {
			c.note(gap{due, woke})
		}
	}
}

func (c *control) watchThreads(quit <-chan struct{}) {
	const interval = 10 * time.Millisecond
	ticker := time.NewTicker(interval)
	defer ticker.Stop()
	known := map[string]time.Duration{}
	for ended := false; !ended; {
		select {
		case <-quit:
			ended = true
		case <-ticker.C:
		}
		threads, _ := filepath.Glob("/proc/self/task/*/schedstat") // none on other systems
		for _, name := range threads {
			var ran, waited time.Duration // for a processor, since the thread began
			if text, err := os.ReadFile(name); err != nil {
				continue // it has ended
			} else if _, err := fmt.Sscan(string(text), &ran, &waited); err != nil {
				continue
			}
			now := time.Now()
			if before, is := known[name]; is && waited-before > ranLate {
				c.note(gap{now.Add(before - waited - interval), now})
			}
			known[name] = waited
		}
	}
}

func (c *control) note(g gap) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.gaps = append(c.gaps, g)
}

// slept reports whether the process did not run at some time from one instant to
// the other, and when it ran again.
func (c *control) slept(from, to time.Time) (again time.Time, slept bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, g := range c.gaps {
		if g.due.Before(to) && g.woke.After(from) {
			again, slept = g.woke, true
		}
	}
	return again, slept
}

// Half a ttl without a majority costs nothing; more than a ttl costs the lock, in
// time, and nothing else: the resource can be locked again afterwards, and nothing
// is left behind.
func TestAMajorityThatHangsCostsNothingForHalfTheTTL(t *testing.T) {
	ttls := []time.Duration{time.Second, 2500 * time.Millisecond}
	if redlock.RaceDetector { // a sixth of it is left to the servers when they run again
		ttls = []time.Duration{3 * time.Second, 5 * time.Second}
	}
	for _, ttl := range ttls {
		t.Run(ttl.String(), func(t *testing.T) {
			t.Parallel()
			servers := start(t, 3)
			l := openAt(t, redistest.Addrs(servers))
			v := newVerdict(t, []redlock.LostReason{redlock.LostNoQuorum})
			locks := make([]*kept, 20)
			var wg sync.WaitGroup
			for i := range locks {
				wg.Go(func() { locks[i] = keep(t, l, fmt.Sprint("r", i), ttl) })
			}
			wg.Wait()
			hang := func(d time.Duration) {
				t.Helper()
				each(t, servers[1:], (*redistest.Server).Pause)
				time.Sleep(d)
				each(t, servers[1:], (*redistest.Server).Resume)
			}
			for range 2 {
				hang(ttl / 2)
				until := map[*kept]time.Time{}
				for _, k := range locks {
					until[k] = k.lock.ValidUntil()
				}
				for _, k := range locks {
					becomes(t, func() bool { return k.ctx.Err() != nil || k.lock.ValidUntil().After(until[k]) }, "it is renewed")
					require.NoError(t, context.Cause(k.ctx))
				}
			}

			struck := time.Now()
			for _, k := range locks {
				k.look()
			}
			hang(ttl + ttl/4)
			for _, k := range locks {
				select {
				case <-k.done:
					v.judge(k, struck)
				default:
					t.Errorf("%s: no signal", k.lock.Resource())
				}
			}
			v.require()
			for i := range locks {
				k, err := l.Acquire(t.Context(), fmt.Sprint("r", i), ttl, redlock.WithMaxWait(soon))
				require.NoError(t, err)
				require.Greater(t, k.FencingToken(), locks[i].lock.FencingToken())
				_ = k.Release(t.Context())
			}
			requireNoOrphans(t, servers)
		})
	}
}
