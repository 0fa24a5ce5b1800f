package redistest

import (
	_ "embed"
	endian "encoding/binary" // binary is the name of something else here
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"testing"
	"time"
)

//go:embed clock/clock.c
var clockSource []byte

// A Clock is a server with a wall clock of its own, which starts out right. Its
// monotonic clock, by which it times its own chores, stays that of the machine.
type Clock struct {
	*Server
	tb      testing.TB
	control *os.File // see clock.c
	current int64
	state   clockState
}

// A clockState says how a clock differs: offset in nanoseconds at the real time
// anchor, and from then on parts per million.
type clockState struct{ offset, anchor, ppm int64 }

// StartWithClock is [Start] for a server with a clock of its own. It needs Linux
// and gcc, and skips the test, loudly, where there are none.
func StartWithClock(tb testing.TB, args ...string) *Clock {
	tb.Helper()
	Need(tb)
	gcc, err := exec.LookPath("gcc")
	if runtime.GOOS != "linux" || err != nil {
		tb.Skipf("SKIPPED, NOT PASSED: a server with a clock of its own needs Linux and gcc (%s, %v)", runtime.GOOS, err)
	}
	dir := tb.TempDir()
	source, library, control := filepath.Join(dir, "clock.c"), filepath.Join(dir, "clock.so"), filepath.Join(dir, "control")
	if err := os.WriteFile(source, clockSource, 0o600); err != nil {
		tb.Fatal(err)
	}
	if out, err := exec.Command(gcc, "-shared", "-fPIC", "-O1", "-o", library, source).CombinedOutput(); err != nil {
		tb.Fatalf("%v\n%s", err, out)
	}
	c := &Clock{tb: tb}
	if c.control, err = os.Create(control); err != nil {
		tb.Fatal(err)
	}
	tb.Cleanup(func() { _ = c.control.Close() })
	c.set(clockState{}) // both states
	c.set(clockState{})

	c.Server, err = launch([]string{"LD_PRELOAD=" + library, "REDISTEST_CLOCK=" + control}, args)
	if err != nil {
		tb.Fatal(err)
	}
	tb.Cleanup(func() {
		if err := c.Close(); err != nil {
			tb.Errorf("closing the server on %s: %v", c.Addr(), err)
		}
	})
	return c
}

// Jump sets the clock forward by d, or back by -d.
func (c *Clock) Jump(d time.Duration) {
	c.tb.Helper()
	s := c.state
	s.offset += int64(d)
	c.set(s)
}

// Rate lets the clock run at factor times the rate of the real one from now on,
// from what it shows now.
func (c *Clock) Rate(factor float64) {
	c.tb.Helper()
	now := time.Now().UnixNano()
	s := c.state
	s.offset += int64(float64(now-s.anchor) * float64(s.ppm) / 1e6)
	c.set(clockState{offset: s.offset, anchor: now, ppm: int64((factor - 1) * 1e6)})
}

// set switches to s, in one step: see clock.c.
func (c *Clock) set(s clockState) {
	c.tb.Helper()
	const word = 8
	next := 1 - c.current
	state := make([]byte, 0, 3*word)
	for _, n := range []int64{s.offset, s.anchor, s.ppm} {
		state = endian.NativeEndian.AppendUint64(state, uint64(n)) //nolint:gosec // the same bits
	}
	_, err := c.control.WriteAt(state, word+next*int64(len(state)))
	if err == nil {
		_, err = c.control.WriteAt(endian.NativeEndian.AppendUint64(nil, uint64(next)), 0) //nolint:gosec // 0 or 1
	}
	if err != nil {
		c.tb.Fatal(err)
	}
	c.current, c.state = next, s
}
