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

// A ClockServer is a server with a wall clock of its own, which starts out right. Its
// monotonic clock, by which it times its own chores, stays that of the machine.
type ClockServer struct {
	*Server
	dir     string   // of the shim and the control file
	control *os.File // see clock.c
	current int64
	state   clockState
}

// A Clock is a [ClockServer] of a test, which fails if its clock can't be set.
type Clock struct {
	*ClockServer
	tb testing.TB
}

// A clockState says how a clock differs: offset in nanoseconds at the real time
// anchor, and from then on parts per million.
type clockState struct{ offset, anchor, ppm int64 }

// CanSetClocks returns why no server here can have a clock of its own, or nil: it
// needs Linux and gcc.
func CanSetClocks() error {
	if runtime.GOOS != "linux" {
		return fmt.Errorf("a server with a clock of its own needs Linux, not %s", runtime.GOOS)
	}
	if _, err := exec.LookPath("gcc"); err != nil {
		return fmt.Errorf("a server with a clock of its own needs gcc: %w", err)
	}
	return nil
}

// StartWithClock is [Start] for a server with a clock of its own. It skips the test,
// loudly, where there can be none.
func StartWithClock(tb testing.TB, args ...string) *Clock {
	tb.Helper()
	Need(tb)
	if err := CanSetClocks(); err != nil {
		tb.Skipf("SKIPPED, NOT PASSED: %v", err)
	}
	c, err := LaunchWithClock(args...)
	if err != nil {
		tb.Fatal(err)
	}
	tb.Cleanup(func() {
		if err := c.Close(); err != nil {
			tb.Errorf("closing the server on %s: %v", c.Addr(), err)
		}
	})
	return &Clock{c, tb}
}

// LaunchWithClock is [Launch] for a server with a clock of its own.
func LaunchWithClock(args ...string) (c *ClockServer, err error) {
	if err := CanSetClocks(); err != nil {
		return nil, err
	}
	c = &ClockServer{}
	if c.dir, err = os.MkdirTemp("", "redistest-clock-"); err != nil {
		return nil, err
	}
	defer func() {
		if err != nil {
			err = errors.Join(err, c.closeClock())
			c = nil
		}
	}()
	source, library, control := filepath.Join(c.dir, "clock.c"), filepath.Join(c.dir, "clock.so"), filepath.Join(c.dir, "control")
	if err := os.WriteFile(source, clockSource, 0o600); err != nil {
		return c, err
	}
	if out, err := exec.Command("gcc", "-shared", "-fPIC", "-O1", "-o", library, source).CombinedOutput(); err != nil {
		return c, fmt.Errorf("redistest: gcc: %w\n%s", err, out)
	}
	if c.control, err = os.Create(control); err != nil {
		return c, err
	}
	// Both states.
	if err := errors.Join(c.set(clockState{}), c.set(clockState{})); err != nil {
		return c, err
	}
	c.Server, err = launch("", []string{"LD_PRELOAD=" + library, "REDISTEST_CLOCK=" + control}, args)
	return c, err
}

// Close is that of the server.
func (c *ClockServer) Close() error { return errors.Join(c.Server.Close(), c.closeClock()) }

func (c *ClockServer) closeClock() error {
	if c.control != nil {
		_ = c.control.Close()
	}
	return os.RemoveAll(c.dir)
}

// Jump sets the clock forward by d, or back by -d.
func (c *ClockServer) Jump(d time.Duration) error {
	s := c.state
	s.offset += int64(d)
	return c.set(s)
}

// Rate lets the clock run at factor times the rate of the real one from now on,
// from what it shows now.
func (c *ClockServer) Rate(factor float64) error {
	now := time.Now().UnixNano()
	s := c.state
	s.offset += int64(float64(now-s.anchor) * float64(s.ppm) / 1e6)
	return c.set(clockState{offset: s.offset, anchor: now, ppm: int64((factor - 1) * 1e6)})
}

// Jump is that of the [ClockServer].
func (c *Clock) Jump(d time.Duration) {
	c.tb.Helper()
	if err := c.ClockServer.Jump(d); err != nil {
		c.tb.Fatal(err)
	}
}

// Rate is that of the [ClockServer].
func (c *Clock) Rate(factor float64) {
	c.tb.Helper()
	if err := c.ClockServer.Rate(factor); err != nil {
		c.tb.Fatal(err)
	}
}

// set switches to s, in one step: see clock.c.
func (c *ClockServer) set(s clockState) error {
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
		return err
	}
	c.current, c.state = next, s
	return nil
}
