package compare

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

func TestASeedIsATimetable(t *testing.T) {
	a, b, other := newPlan(7, false, false, true), newPlan(7, false, false, true), newPlan(8, false, false, true)
	differ := false
	require.Len(t, a.slots, 9, "every fault")
	for i, s := range a.slots {
		require.Equal(t, s.from, b.slots[i].from)
		require.Equal(t, s.who, b.slots[i].who)
		differ = differ || s.who != other.slots[i].who && s.from != other.slots[i].from
		for _, n := range []int{1, 3, 5} {
			require.Less(t, s.victim(n), n)
		}
	}
	require.True(t, differ)
}

// With fewer faults, those that are left have the same victims.
func TestALeftOutFaultChangesNoOther(t *testing.T) {
	all, few := newPlan(7, false, false, true), newPlan(7, false, true, true)
	who := map[string]float64{}
	for _, s := range all.slots {
		who[s.name] = s.who
	}
	require.Less(t, len(few.slots), len(all.slots))
	require.Len(t, few.leftOut, len(all.slots)-len(few.slots))
	for _, s := range few.slots {
		require.InDelta(t, who[s.name], s.who, 0)
	}
}

func TestFaultsFollowEachOtherWithTimeToRecover(t *testing.T) {
	for _, quick := range []bool{false, true} {
		p := newPlan(3, quick, false, true)
		at := p.healthy
		for _, s := range p.slots {
			require.GreaterOrEqual(t, s.from, at, s.name)
			require.Equal(t, s.length, s.heal-s.from)
			require.Greater(t, s.until, s.heal)
			at = s.until
		}
		require.Equal(t, at, p.total)
		if quick {
			require.LessOrEqual(t, p.total, 10*time.Second)
		} else {
			require.GreaterOrEqual(t, p.total, 60*time.Second)
			require.LessOrEqual(t, p.total, 90*time.Second)
		}
	}
}
