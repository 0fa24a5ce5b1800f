package redistest

import (
	_ "embed"
	endian "encoding/binary" // binary is the name of something else here
	"errors"
	"fmt"
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
	tb      testing.TB // nil for LaunchWithClock
	control string     // the name of the file, see clock.c
	current int64
	state   clockState
}

// A clockState says how a clock differs: offset in nanoseconds at the real time
// anchor, and from then on parts per million.
type clockState struct{ offset, anchor, ppm int64 }

// ErrNoClock means that a server can't have a clock of its own here.
var ErrNoClock = errors.New("a server with a clock of its own needs Linux and gcc")

// StartWithClock is [Start] for a server with a clock of its own. It skips the
// test, loudly, where there can be none.
func StartWithClock(tb testing.TB, args ...string) *Clock {
	tb.Helper()
	Need(tb)
	c, err := LaunchWithClock(args...)
	if errors.Is(err, ErrNoClock) {
		tb.Skipf("SKIPPED, NOT PASSED: %v", err)
	}
	if err != nil {
		tb.Fatal(err)
	}
	c.tb = tb
	tb.Cleanup(func() {
		if err := c.Close(); err != nil {
			tb.Errorf("closing the server on %s: %v", c.Addr(), err)
		}
	})
	return c
}

// LaunchWithClock is [Launch] for a server with a clock of its own, which Shift
// and RunAt move. Where there can be none the error matches [ErrNoClock].
func LaunchWithClock(args ...string) (*Clock, error) {
	gcc, err := exec.LookPath("gcc")
	if runtime.GOOS != "linux" || err != nil {
		return nil, ErrNoClock
	}
	c := &Clock{}
	c.Server, err = launch("", args, func(dir string) ([]string, error) {
		source, library := filepath.Join(dir, "clock.c"), filepath.Join(dir, "clock.so")
		c.control = filepath.Join(dir, "clock")
		if err := os.WriteFile(source, clockSource, 0o600); err != nil {
			return nil, err
		}
		if out, err := exec.Command(gcc, "-shared", "-fPIC", "-O1", "-o", library, source).CombinedOutput(); err != nil {
			return nil, fmt.Errorf("redistest: %w\n%s", err, out)
		}
		for range 2 { // both states
			if err := c.set(clockState{}); err != nil {
				return nil, err
			}
		}
		return []string{"LD_PRELOAD=" + library, "REDISTEST_CLOCK=" + c.control}, nil
	})
	if err != nil {
		return nil, err
	}
	return c, nil
}

// Shift sets the clock forward by d, or back by -d.
func (c *Clock) Shift(d time.Duration) error {
	s := c.state
	s.offset += int64(d)
	return c.set(s)
}

// Jump is Shift for a test.
func (c *Clock) Jump(d time.Duration) {
	c.tb.Helper()
	if err := c.Shift(d); err != nil {
		c.tb.Fatal(err)
	}
}

// RunAt lets the clock run at factor times the rate of the real one from now on,
// from what it shows now.
func (c *Clock) RunAt(factor float64) error {
	now := time.Now().UnixNano()
	s := c.state
	s.offset += int64(float64(now-s.anchor) * float64(s.ppm) / 1e6)
	return c.set(clockState{offset: s.offset, anchor: now, ppm: int64((factor - 1) * 1e6)})
}

// Rate is RunAt for a test.
func (c *Clock) Rate(factor float64) {
	c.tb.Helper()
	if err := c.RunAt(factor); err != nil {
		c.tb.Fatal(err)
	}
}

// set switches to s, in one step: see clock.c.
func (c *Clock) set(s clockState) error {
	control, err := os.OpenFile(c.control, os.O_CREATE|os.O_WRONLY, 0o600)
	if err != nil {
		return err
	}
	defer control.Close()
	const word = 8
	next := 1 - c.current
	state := make([]byte, 0, 3*word)
	for _, n := range []int64{s.offset, s.anchor, s.ppm} {
		state = endian.NativeEndian.AppendUint64(state, uint64(n)) //nolint:gosec // the same bits
	}
	if _, err := control.WriteAt(state, word+next*int64(len(state))); err != nil {
		return err
	}
	if _, err := control.WriteAt(endian.NativeEndian.AppendUint64(nil, uint64(next)), 0); err != nil { //nolint:gosec // 0 or 1
		return err
	}
	c.current, c.state = next, s
	return nil
}
