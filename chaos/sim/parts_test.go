package sim

import (
	"context"
	"io"
	"os"
	"slices"
	"strings"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
)

func TestASeedIsASchedule(t *testing.T) {
	require.LessOrEqual(t, watchLanes+mostCallers*mostWatches, lanes)
	kinds := map[Kind]bool{}
	for seed := range uint64(500) {
		s := NewSchedule(seed)
		require.Equal(t, s, NewSchedule(seed))
		require.NotEqual(t, s, NewSchedule(seed+1))
		require.NotEmpty(t, s.Faults)
		require.LessOrEqual(t, s.Instances, mostInstances, "each has its lanes")
		require.LessOrEqual(t, slices.Max(s.Workers), mostCallers)
		for _, f := range s.Faults {
			kinds[f.Kind] = true
			require.Less(t, f.From, f.To, "%v", f)
			require.LessOrEqual(t, f.To, s.Active, "%v", f)
			require.Less(t, f.Instance, s.Instances)
			require.Less(t, f.Client, len(s.Workers))
		}
	}
	require.Len(t, kinds, len(allKinds()))
}

func allKinds() map[Kind]bool {
	all := map[Kind]bool{}
	for _, k := range kinds {
		all[k] = true
	}
	return all
}

// A part that is taken out changes nothing of what is left.
func TestPartsAreTakenOut(t *testing.T) {
	s := NewSchedule(3)
	for _, part := range s.Parts() {
		less, err := s.Without(part)
		require.NoError(t, err)
		require.NotEqual(t, s, less)
		require.NotContains(t, strings.Split(less.String(), "\n"), "  "+part+":")
		require.Equal(t, s, NewSchedule(3), "the whole is as it was")
	}
	for _, part := range []string{"", "fault", "fault99", "fault-1", "client1x", "thing0"} {
		_, err := s.Without(part)
		require.Error(t, err, "%q", part)
	}
}

// What is left is needed: without any of it, nothing fails.
func TestShrinkingLeavesWhatIsNeeded(t *testing.T) {
	s := NewSchedule(1)
	for len(s.Faults) < 5 || len(s.Workers) < 3 || s.Workers[2] < 2 {
		s = NewSchedule(s.Seed + 1)
	}
	runs := 0
	fails := func(s *Schedule) bool {
		runs++
		return s.Faults[1].Kind != "" && s.Faults[4].Kind != "" && s.Workers[2] > 0
	}
	small, without := Shrink(s, fails)
	require.ElementsMatch(t, []string{"client2", "fault1", "fault4"}, small.Parts())
	again, err := s.Without(without...)
	require.NoError(t, err)
	require.Equal(t, small, again)
	require.Less(t, runs, 100)
}

func TestTheExcerptIsAboutTheViolation(t *testing.T) {
	lines := []string{"a", "b", "c", "1  CHECK  x", "d", "e", "f"}
	require.Equal(t, []string{"c", "1  CHECK  x", "d", "e"}, Excerpt(lines, 1))
	require.Equal(t, []string{"b", "c"}, Excerpt(lines[:3], 2))
}

// A wired world is one client, one instance with the model, and faults.
func wired(t *testing.T, f func(w *world), faults ...Fault) {
	t.Helper()
	if raceDetector {
		t.Skip("SKIPPED, NOT PASSED: see onOneProcessor")
	}
	synctest.Test(t, func(*testing.T) {
		s := &Schedule{Instances: 1, Workers: []int{1}, Rates: []float64{1}, Delay: time.Millisecond, Faults: faults, Offsets: []time.Duration{0}}
		w := &world{network: network{Schedule: s, begin: time.Now(), hits: map[Kind]int{}}}
		w.servers = []*server{newServer(&w.network, 0, nil)}
		w.servers[0].engine = newModel(w.servers[0].publish)
		w.links = [][]*link{{{}}}
		w.begins()
		defer w.ends()
		w.plan()
		f(w)
		time.Sleep(time.Minute) // whatever is on its way has arrived
	})
}

var ask = []byte("*1\r\n$4\r\nTIME\r\n")

// reply reads what has come by d.
func reply(t *testing.T, c interface {
	io.Reader
	SetReadDeadline(time.Time) error
}, d time.Duration,
) (string, error) {
	t.Helper()
	require.NoError(t, c.SetReadDeadline(time.Now().Add(d)))
	p := make([]byte, 1000)
	n, err := c.Read(p)
	return string(p[:n]), err
}

func TestAMessageTakesItsTimeAndTheSameEachTime(t *testing.T) {
	var took []time.Duration
	for range 2 {
		wired(t, func(w *world) {
			c, err := w.dial(context.Background(), 0, 0)
			require.NoError(t, err)
			begin := w.now()
			_, err = c.Write(ask)
			require.NoError(t, err)
			text, err := reply(t, c, time.Second)
			require.NoError(t, err)
			require.Contains(t, text, "*2\r\n$10\r\n")
			took = append(took, begin, w.now()-begin)
			require.NoError(t, c.Close())
			_, err = c.Write(ask)
			require.Error(t, err)
		})
	}
	require.Equal(t, took[:2], took[2:])
	require.Greater(t, took[1], time.Millisecond)
}

func TestADeadlineEndsARead(t *testing.T) {
	wired(t, func(w *world) {
		c, err := w.dial(context.Background(), 0, 0)
		require.NoError(t, err)
		begin := w.now()
		_, err = reply(t, c, 10*time.Millisecond)
		require.ErrorIs(t, err, os.ErrDeadlineExceeded)
		require.InDelta(t, 10*time.Millisecond, w.now()-begin, float64(25*time.Microsecond))
	})
}

// What was sent while an instance hangs runs when it goes on, also if nobody waits
// for it any more.
func TestAHungInstanceRunsLaterWhatItWasSent(t *testing.T) {
	wired(t, func(w *world) {
		ran := time.Duration(0)
		w.servers[0].watch = func(*session, time.Duration, bool, *batch, string) { ran = w.now() }
		c, err := w.dial(context.Background(), 0, 0)
		require.NoError(t, err)
		time.Sleep(100*time.Millisecond - w.now())
		_, err = c.Write([]byte("*7\r\n$4\r\nEVAL\r\n$1\r\nx\r\n$1\r\n0\r\n$1\r\n0\r\n$0\r\n\r\n$1\r\n1\r\n$8\r\nSOMEBODY\r\n"))
		require.NoError(t, err)
		require.NoError(t, c.Close())
		time.Sleep(time.Second)
		require.Equal(t, 500*time.Millisecond, ran)
	}, Fault{Kind: Hang, Client: all, From: 50 * time.Millisecond, To: 500 * time.Millisecond})
}

func TestARestartBreaksConnectionsAndRefusesNewOnes(t *testing.T) {
	wired(t, func(w *world) {
		c, err := w.dial(context.Background(), 0, 0)
		require.NoError(t, err)
		time.Sleep(60*time.Millisecond - w.now())
		_, err = reply(t, c, time.Second)
		require.ErrorIs(t, err, syscall.ECONNRESET)
		_, err = w.dial(context.Background(), 0, 0)
		require.ErrorIs(t, err, syscall.ECONNREFUSED)
		time.Sleep(100*time.Millisecond - w.now())
		_, err = w.dial(context.Background(), 0, 0)
		require.NoError(t, err)
		require.Equal(t, 1, w.servers[0].starts)
	}, Fault{Kind: Restart, Client: all, From: 50 * time.Millisecond, To: 80 * time.Millisecond})
}

func TestACutIsOneWay(t *testing.T) {
	cut := Fault{Kind: CutReplies, Client: all, From: 50 * time.Millisecond, To: 400 * time.Millisecond}
	wired(t, func(w *world) {
		c, err := w.dial(context.Background(), 0, 0)
		require.NoError(t, err)
		time.Sleep(60*time.Millisecond - w.now())
		_, err = c.Write(ask)
		require.NoError(t, err)
		_, err = reply(t, c, 200*time.Millisecond)
		require.ErrorIs(t, err, os.ErrDeadlineExceeded)
		require.Equal(t, 1, w.hits[CutReplies], "the question got there")
	}, cut)
}

// An instance's clock jumps, and runs fast; what is left of an expiry follows it.
func TestAnInstancesClockIsItsOwn(t *testing.T) {
	wired(t, func(w *world) {
		s := w.servers[0]
		require.Equal(t, firstDay.Add(time.Second), s.clock(time.Second))
		s.setClock(time.Second, time.Minute, 2)
		require.Equal(t, firstDay.Add(time.Minute+5*time.Second), s.clock(3*time.Second))
		require.Equal(t, time.Second, s.left(3*time.Second, firstDay.Add(time.Minute+7*time.Second)))
	})
}

// A client's wall clock is wrong, and its monotonic one is not.
func TestAClientsClockIsItsOwn(t *testing.T) {
	early, late := instant(0, 0), instant(-time.Hour, time.Second)
	require.Equal(t, time.Second, late.Sub(early))
	require.Equal(t, -time.Hour, late.Round(0).Sub(early.Round(0)))
	require.Equal(t, firstDay.UnixMicro(), early.UnixMicro())
}
