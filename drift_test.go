package redlock

import (
	"math"
	"math/big"
	"math/rand/v2"
	"testing"
	"time"
	"unsafe"

	"github.com/stretchr/testify/require"
)

// epoch is an instant on both clocks, and clocks returns the one at which each of
// them has moved on by so much. No API of package time makes an instant whose two
// clocks disagree, as those of a machine that slept or whose clock was set do;
// so this writes its fields.
var epoch = time.Now()

func clocks(wall, mono time.Duration) time.Time {
	moved := epoch.Add(wall)
	t := epoch.Add(mono)
	type instant struct { // as time.Time in Go 1.26: a flag, 33 bits of seconds and 30 of nanoseconds; the monotonic clock
		wall uint64
		ext  int64
		loc  *time.Location
	}
	(*instant)(unsafe.Pointer(&t)).wall = (*instant)(unsafe.Pointer(&moved)).wall
	return t
}

func TestClocksOfTheTestsDiverge(t *testing.T) {
	for _, wall := range []time.Duration{-8 * time.Second, 0, 1, time.Hour} {
		for _, mono := range []time.Duration{-time.Second, 0, 1, time.Minute} {
			at := clocks(wall, mono)
			require.Equal(t, mono, at.Sub(epoch))
			require.Equal(t, wall, at.Round(0).Sub(epoch.Round(0)))
		}
	}
}

func TestServerTTLIsRoundedUp(t *testing.T) {
	for _, c := range []struct {
		ttl  time.Duration
		want int64
	}{
		{1, 1},
		{tick - 1, 1},
		{tick, 1},
		{tick + 1, 2},
		{minTTL, 10},
		{minTTL + 1, 11},
		{10*time.Millisecond - time.Nanosecond, 10},
		{time.Second, 1000},
		{maxTTL, 365 * 24 * 3600 * 1000},
		{never, 9_223_372_036_855},
	} {
		require.Equal(t, c.want, serverTTL(c.ttl), "%v", c.ttl)
	}
}

func TestServersNeverExpireBeforeTheTTL(t *testing.T) {
	for range 5_000 {
		ttl := rand.N(maxTTL) + 1
		ms := serverTTL(ttl)
		require.GreaterOrEqual(t, ms, int64(1))
		require.GreaterOrEqual(t, time.Duration(ms)*time.Millisecond, ttl)
		require.Less(t, time.Duration(ms-1)*time.Millisecond, ttl, "rounded up by more than needed")
	}
}

func TestValidityIsTheTTLRoundedDownLessTheDrift(t *testing.T) {
	const ms = time.Millisecond
	for _, c := range []struct {
		ttl    time.Duration
		factor float64
		base   time.Duration
		want   time.Duration
	}{
		{10 * ms, 0.01, 2 * ms, 7900 * time.Microsecond},
		{10*ms + 999_999, 0.01, 2 * ms, 7900 * time.Microsecond},
		{10 * time.Second, 0.01, 2 * ms, 9898 * ms},
		{time.Second, 0, 0, time.Second},
		{time.Second, 0.5, 0, 500 * ms},
		{time.Second, 0, time.Second, 0},
		{time.Second, 0.5, time.Second, -500 * ms},
		{time.Second, 0, never, time.Second - never},
		{maxTTL, 0, 0, maxTTL},
		{maxTTL, 0.99, never, maxTTL - time.Duration(0.99*float64(maxTTL)) - never},
		{ms - 1, 0, 0, 0},
		{0, 0.01, 2 * ms, -2 * ms},
	} {
		require.Equal(t, c.want, validity(c.ttl, c.factor, c.base), "%v %v %v", c.ttl, c.factor, c.base)
	}
}

// checkValidity compares validity with exact arithmetic: validity and drift
// together are no more than the ttl, to the nanosecond, and a lease is never
// relied on for longer than the servers keep it.
func checkValidity(t *testing.T, ttl time.Duration, factor float64, base time.Duration) {
	t.Helper()
	got := validity(ttl, factor, base)

	f := new(big.Rat)
	require.NotNil(t, f.SetFloat64(factor))
	want := new(big.Rat).SetInt64(int64(ttl / tick * tick))
	drift := new(big.Rat).Mul(want, f)
	drift.Add(drift, new(big.Rat).SetInt64(int64(base)))
	want.Sub(want, drift)
	excess, _ := want.Sub(new(big.Rat).SetInt64(int64(got)), want).Float64()

	// A float64 has 53 bits: beyond 104 days, not every nanosecond.
	slack := 1 + math.Ldexp(float64(ttl), -51)
	require.Less(t, math.Abs(excess), slack, "validity(%d, %v, %d) = %d", ttl, factor, base, got)
	require.LessOrEqual(t, got, ttl, "overflow")
	require.LessOrEqual(t, got, time.Duration(serverTTL(ttl))*time.Millisecond, "longer than the server's expiry")
	if factor > 0 && got > 0 {
		require.LessOrEqual(t, got, ttl-base)
	}
}

func FuzzValidity(f *testing.F) {
	for _, ttl := range []time.Duration{0, 1, tick - 1, tick, minTTL, minTTL + 1, time.Second, maxTTL - 1, maxTTL} {
		for _, factor := range []float64{0, math.SmallestNonzeroFloat64, 1e-9, 0.01, 0.5, math.Nextafter(1, 0)} {
			for _, base := range []time.Duration{0, 1, 2 * time.Millisecond, time.Hour, never} {
				f.Add(int64(ttl), factor, int64(base))
			}
		}
	}
	f.Fuzz(func(t *testing.T, ttl int64, factor float64, base int64) {
		if ttl < 0 || ttl > int64(maxTTL) || !(factor >= 0 && factor < 1) || base < 0 {
			t.Skip("refused before it gets there")
		}
		checkValidity(t, time.Duration(ttl), factor, time.Duration(base))
	})
}

func TestElapsedIsWhatTheClockThatWentFurtherSays(t *testing.T) {
	steps := []time.Duration{-never / 64, -time.Hour, -time.Second, -1, 0, 1, time.Second, time.Hour, never / 64}
	for _, wall := range steps {
		for _, mono := range steps {
			want := max(wall, mono, 0)
			require.Equal(t, want, elapsed(epoch, clocks(wall, mono)), "wall %v, monotonic %v", wall, mono)
			// The start may be the one that was moved, too.
			require.Equal(t, max(-wall, -mono, 0), elapsed(clocks(wall, mono), epoch), "wall %v, monotonic %v", wall, mono)
		}
	}
}

// An instant that was stored or sent has no monotonic reading: then the wall clock
// alone decides.
func TestElapsedWithoutMonotonicReading(t *testing.T) {
	for _, wall := range []time.Duration{-time.Hour, 0, time.Hour} {
		now := clocks(wall, time.Minute)
		want := max(wall, 0)
		require.Equal(t, want, elapsed(epoch.Round(0), now))
		require.Equal(t, want, elapsed(epoch, now.Round(0)))
		require.Equal(t, want, elapsed(epoch.Round(0), now.Round(0)))
		require.Equal(t, want, elapsed(epoch.UTC().Round(0), now), "another time zone is no other time")
	}
}

func TestElapsedNeverOverflows(t *testing.T) {
	require.Equal(t, never, elapsed(time.Time{}, epoch))
	require.Zero(t, elapsed(epoch, time.Time{}))
}

func TestAWindowEndsOnWhicheverClockIsFirst(t *testing.T) {
	w := window{epoch, 10 * time.Second}
	for _, c := range []struct {
		name       string
		wall, mono time.Duration
		want       time.Duration
	}{
		{"at once", 0, 0, 10 * time.Second},
		{"both go on", 3 * time.Second, 3 * time.Second, 7 * time.Second},
		{"to the end", 10 * time.Second, 10 * time.Second, 0},
		{"beyond it", 11 * time.Second, 11 * time.Second, -time.Second},
		{"the machine slept: the monotonic clock stood still", 12 * time.Second, 3 * time.Second, -2 * time.Second},
		{"the clock was set forward", time.Hour, 3 * time.Second, 10*time.Second - time.Hour},
		{"the clock was set back", -time.Hour, 3 * time.Second, 7 * time.Second},
		{"the clock was set back, and the window is over", -time.Hour, 10*time.Second + 1, -1},
		{"the clocks went back behind the start", -1, -1, 10 * time.Second},
	} {
		require.Equal(t, c.want, w.remaining(clocks(c.wall, c.mono)), c.name)
	}
}

func TestRemainingNeverGrowsWithTime(t *testing.T) {
	w := window{epoch, time.Minute}
	for range 5_000 {
		wall, mono := rand.N(2*time.Minute), rand.N(2*time.Minute)
		before := w.remaining(clocks(wall, mono))
		after := w.remaining(clocks(wall+rand.N(time.Minute), mono+rand.N(time.Minute)))
		require.LessOrEqual(t, after, before)
		require.LessOrEqual(t, before, w.length)
	}
}

// A window that is over stays over, however far a clock jumps.
func TestRemainingNeverOverflows(t *testing.T) {
	for _, length := range []time.Duration{0, 1, time.Second, maxTTL} {
		w := window{epoch, length}
		require.LessOrEqual(t, w.remaining(epoch.Round(0).AddDate(2000, 0, 0)), time.Duration(0))
		require.Equal(t, length, w.remaining(time.Time{}))
	}
}

// The end that a window shows is a wall instant: one that is compared with
// time.Now() of a machine that slept must not go by its monotonic clock.
func TestAWindowShowsItsEndOnTheWallClock(t *testing.T) {
	w := window{clocks(time.Hour, time.Second), 10 * time.Second}
	require.Equal(t, epoch.Round(0).Add(time.Hour+10*time.Second), w.end())
	require.Equal(t, w.end(), w.end().Round(0), "it has a monotonic reading")

	// On clocks that agree, it shows what remaining says.
	w = window{epoch, 10 * time.Second}
	now := clocks(3*time.Second, 3*time.Second)
	require.Equal(t, w.remaining(now), w.end().Sub(now))
}

// w.endsBefore(v) is asked of a w that begins later than v.
func TestEndsBeforeComparesTheEnds(t *testing.T) {
	starts := []time.Duration{-time.Second, 0, 1, time.Second}
	lengths := []time.Duration{-time.Second, 0, 1, time.Second, maxTTL}
	for _, s1 := range starts {
		for _, s2 := range starts {
			if s1 < s2 {
				continue
			}
			for _, l1 := range lengths {
				for _, l2 := range lengths {
					v, w := window{clocks(s1, s1), l1}, window{clocks(s2, s2), l2}
					require.Equal(t, s1+l1 < s2+l2, v.endsBefore(w), "%v+%v, %v+%v", s1, l1, s2, l2)
				}
			}
		}
	}
}

// A window that ends before another one gives no instant more time than that: an
// extend that asks for less shortens the window before anybody confirmed it.
// Compared on the monotonic clock alone it would make it longer, where the
// machine has slept since the old one began.
func TestAWindowThatEndsBeforeGivesNoMoreTime(t *testing.T) {
	old := window{epoch, 10 * time.Second}
	for _, wall := range []time.Duration{-time.Hour, 0, time.Second, 6 * time.Second, 9 * time.Second, time.Hour} {
		for _, mono := range []time.Duration{0, time.Second, 6 * time.Second, 9 * time.Second} {
			for length := time.Second; length <= 12*time.Second; length += time.Second {
				shorter := window{clocks(wall, mono), length}
				ends := shorter.endsBefore(old)
				require.Equal(t, length < old.remaining(shorter.start), ends, "%v, asked for at wall %v, monotonic %v", length, wall, mono)
				for later := time.Duration(0); ends && later < 12*time.Second; later += time.Second {
					at := clocks(wall+later, mono+later)
					require.LessOrEqual(t, shorter.remaining(at), old.remaining(at), "%v, asked for at wall %v, monotonic %v", length, wall, mono)
				}
			}
		}
	}
}

func TestMillisecondsNeverOverflow(t *testing.T) {
	for _, ms := range []int64{0, 1, 1000, maxTTL.Milliseconds(), 9_000_000_000_000} {
		require.Equal(t, time.Duration(ms)*time.Millisecond, milliseconds(ms))
	}
	for _, ms := range []int64{9_223_372_036_854, 9_223_372_036_855, math.MaxInt64 - 1, math.MaxInt64} {
		require.Greater(t, milliseconds(ms), 292*365*24*time.Hour, "%d", ms)
		require.Positive(t, milliseconds(ms)+time.Millisecond, "%d", ms)
	}
}

// What a server's clock read is compared with ours in the middle between question
// and answer.
func TestClockOffsetIsFromTheMiddle(t *testing.T) {
	for _, ahead := range []time.Duration{-time.Hour, -time.Second, 0, 1, time.Hour} {
		for _, took := range []time.Duration{0, 2, time.Second} {
			server := epoch.Round(0).Add(took/2 + ahead)
			require.Equal(t, ahead, clockOffset(server, epoch, clocks(took, took)))
			// A clock that is set meanwhile changes nothing of how long it took.
			require.Equal(t, ahead, clockOffset(server, epoch, clocks(time.Hour, took)))
		}
	}
}

// An instance is refused for what is certain: if its clock may be near enough, as
// the answer took long, it is.
func TestAClockIsRefusedBeyondHalfTheRetention(t *testing.T) {
	for _, retention := range []time.Duration{time.Second, 10 * time.Minute, maxTTL} {
		half := retention / 2
		for _, took := range []time.Duration{0, 2 * time.Millisecond, time.Second} {
			for _, sign := range []time.Duration{-1, 1} {
				require.NoError(t, checkClock(0, took, retention))
				require.NoError(t, checkClock(sign*half, took, retention))
				require.NoError(t, checkClock(sign*(half+took/2), took, retention))
				err := checkClock(sign*(half+took/2+1), took, retention)
				require.Error(t, err)
				require.NotContains(t, err.Error(), "\n")
			}
		}
		for _, offset := range []time.Duration{math.MinInt64, never} { // as far as a Duration goes
			require.Error(t, checkClock(offset, 0, retention))
		}
	}
}
