package redistest

import (
	"errors"
	"os"
	"strconv"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// ahead returns how far a server's clock is ahead.
func ahead(t *testing.T, c *Clock) time.Duration {
	t.Helper()
	reply, _ := c.MustDo(t, "TIME").([]any)
	require.Len(t, reply, 2)
	var n [2]int64
	for i, text := range reply {
		s, _ := text.(string)
		var err error
		n[i], err = strconv.ParseInt(s, 10, 64)
		require.NoError(t, err)
	}
	return time.Until(time.Unix(n[0], n[1]*1000))
}

// near requires a duration that a slow machine, too, measures as want.
func near(t *testing.T, want, got time.Duration) {
	t.Helper()
	require.InDelta(t, want.Seconds(), got.Seconds(), 0.5)
}

func TestAClockJumps(t *testing.T) {
	c := StartWithClock(t)
	near(t, 0, ahead(t, c))
	c.MustDo(t, "SET", "k", "v", "PX", "10000")
	c.Jump(8 * time.Second)
	near(t, 8*time.Second, ahead(t, c))
	c.Jump(-20 * time.Second)
	near(t, -12*time.Second, ahead(t, c))
	c.Jump(23 * time.Second)
	require.Nil(t, c.MustDo(t, "GET", "k"), "eleven seconds later, by its clock")

	require.NoError(t, c.Restart())
	near(t, 11*time.Second, ahead(t, c))
}

func TestAClockRunsAtARate(t *testing.T) {
	c := StartWithClock(t)
	c.Jump(-100 * time.Second)
	start := time.Now()
	c.Rate(100)
	require.Eventually(t, func() bool { return ahead(t, c) > -50*time.Second }, 10*time.Second, 5*time.Millisecond)
	require.Greater(t, time.Since(start), 490*time.Millisecond) // 50 s of 99 s a second

	c.Rate(1) // goes on from there
	now := ahead(t, c)
	require.Greater(t, now, -51*time.Second)
	c.MustDo(t, "SET", "k", "v", "PX", "30")
	require.Eventually(t, func() bool { return c.MustDo(t, "GET", "k") == nil }, 10*time.Second, 5*time.Millisecond)
	near(t, now, ahead(t, c))
}

func TestAClockThatCanNotStartLeavesNothing(t *testing.T) {
	t.Setenv("TMPDIR", t.TempDir())
	t.Setenv("REDLOCK_REDIS_SERVER", "/no/such/server")
	_, err := LaunchWithClock()
	if errors.Is(err, ErrNoClock) {
		t.Skipf("SKIPPED, NOT PASSED: %v", err)
	}
	require.ErrorContains(t, err, "/no/such/server")
	left, err := os.ReadDir(os.TempDir())
	require.NoError(t, err)
	require.Empty(t, left)
}
