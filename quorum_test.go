package redlock

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/stretchr/testify/require"
)

// A ballot is the votes of all instances, by instance.
type ballot []vote

func (b ballot) tally() tally {
	t := tally{n: len(b)}
	for _, v := range b {
		t.add(v)
	}
	return t
}

// count returns how many votes of b are v: the oracle's way to count.
func (b ballot) count(v vote) int {
	n := 0
	for _, w := range b {
		if w == v {
			n++
		}
	}
	return n
}

// ballots calls f with every vector of n votes. f must not keep it.
func ballots(n int, f func(ballot)) {
	b := make(ballot, n)
	var fill func(int)
	fill = func(i int) {
		if i == n {
			f(b)
			return
		}
		for v := pending; v <= failed; v++ {
			b[i] = v
			fill(i + 1)
		}
	}
	fill(0)
}

// completions calls f with every ballot that b can become once all instances
// have voted.
func (b ballot) completions(f func(ballot)) {
	full := slices.Clone(b)
	var fill func(int)
	fill = func(i int) {
		switch {
		case i == len(b):
			f(full)
		case b[i] != pending:
			fill(i + 1)
		default:
			for v := granted; v <= failed; v++ {
				full[i] = v
				fill(i + 1)
			}
		}
	}
	fill(0)
}

// ends returns what the completions of b amount to, each once.
func (b ballot) ends(what func(full ballot) string) []string {
	var ends []string
	b.completions(func(full ballot) {
		if end := what(full); !slices.Contains(ends, end) {
			ends = append(ends, end)
		}
	})
	return ends
}

// everyBallot runs f on each ballot of up to six instances, and on some of more.
func everyBallot(t *testing.T, f func(b ballot, t tally)) {
	t.Helper()
	for n := 1; n <= 6; n++ {
		ballots(n, func(b ballot) { f(b, b.tally()) })
	}
	for n := 7; n <= 9; n++ {
		for range 200 {
			b := make(ballot, n)
			for i := range b {
				b[i] = vote(rand.N(4))
			}
			f(b, b.tally())
		}
	}
}

// The oracle's own arithmetic: a majority is more than half.

func majority(some, all int) bool { return 2*some > all }

// outcomeOf is how a full ballot ends.
func outcomeOf(full ballot) string {
	if majority(full.count(granted), len(full)) {
		return "won"
	}
	return "lost"
}

// whyOf is how a full ballot on an acquire ends, and why: a lost one is taken when a
// majority answered.
func whyOf(full ballot) string {
	switch {
	case outcomeOf(full) == "won":
		return "won"
	case majority(full.count(granted)+full.count(refused), len(full)):
		return "taken"
	}
	return "unreachable"
}

// goneOf tells whether a full ballot leaves a chance that a majority is ours: whoever
// failed may still have it.
func goneOf(full ballot) string {
	if majority(len(full)-full.count(refused), len(full)) {
		return "possible"
	}
	return "gone"
}

// extendOf is what an extend tells its caller: done, lost for good, or unknown.
func extendOf(full ballot) string {
	switch {
	case outcomeOf(full) == "won":
		return "won"
	case goneOf(full) == "gone":
		return "gone"
	}
	return "unknown"
}

// releaseOf is what a release tells its caller: too late, done, or unknown.
func releaseOf(full ballot) string {
	switch {
	case goneOf(full) == "gone":
		return "gone"
	case majority(full.count(granted)+full.count(refused), len(full)):
		return "released"
	}
	return "unknown"
}

func TestTwoQuorumsAlwaysShareAnInstance(t *testing.T) {
	for n := 1; n <= maxInstances; n++ {
		q := quorumOf(n)
		require.Greater(t, 2*q, n, "two quorums of %d", n)
		require.LessOrEqual(t, 2*(q-1), n, "one less than the quorum of %d would do, too", n)
		require.LessOrEqual(t, q, n)
	}
	for n := 1; n <= 7; n++ {
		var sets []uint
		for set := range uint(1) << n {
			if members(set) == quorumOf(n) {
				sets = append(sets, set)
			}
		}
		for _, a := range sets {
			for _, b := range sets {
				require.NotZero(t, a&b, "%b and %b of %d", a, b, n)
			}
		}
	}
}

func members(set uint) int {
	n := 0
	for ; set > 0; set &= set - 1 {
		n++
	}
	return n
}

func TestTallyCountsEachVoteOnce(t *testing.T) {
	everyBallot(t, func(b ballot, got tally) {
		want := tally{n: len(b), granted: b.count(granted), refused: b.count(refused), failed: b.count(failed)}
		require.Equal(t, want, got)
		require.Equal(t, b.count(pending), got.pending())
		require.Equal(t, len(b)-b.count(pending), got.answered())
	})
}

func TestOutcomeIsFinalAsSoonAsItIsKnown(t *testing.T) {
	everyBallot(t, func(b ballot, tally tally) {
		want := "undecided"
		if ends := b.ends(outcomeOf); len(ends) == 1 {
			want = ends[0]
		}
		require.Equal(t, want, tally.outcome().String(), "%v", b)
		require.Equal(t, want != "undecided", decided(tally), "%v", b)
	})
}

// explained: no later vote changes why the round ended as it did.
func TestExplainedExactlyWhenNoVoteChangesWhy(t *testing.T) {
	everyBallot(t, func(b ballot, tally tally) {
		require.Equal(t, len(b.ends(whyOf)) == 1, explained(tally), "%v", b)
	})
}

// A lost round is known to be taken, or unreachable, or neither yet; never both.
func TestTakenAndUnreachablePartitionLostBallots(t *testing.T) {
	everyBallot(t, func(b ballot, tally tally) {
		if tally.outcome() != lost {
			return
		}
		ends := b.ends(whyOf)
		require.Equal(t, slices.Equal(ends, []string{"taken"}), tally.taken(), "%v", b)
		require.Equal(t, slices.Equal(ends, []string{"unreachable"}), tally.unreachable(), "%v", b)
		if tally.pending() == 0 {
			require.NotEqual(t, tally.taken(), tally.unreachable(), "%v", b)
		}
	})
}

func TestGoneExactlyWhenNoMajorityCanBeOurs(t *testing.T) {
	everyBallot(t, func(b ballot, tally tally) {
		require.Equal(t, slices.Equal(b.ends(goneOf), []string{"gone"}), tally.gone(), "%v", b)
		require.False(t, tally.gone() && tally.outcome() == won, "%v", b)
	})
}

// settled: no later vote changes what an extend tells its caller. One that can
// still be won is not: with one of three instances down, the first of the other
// two to confirm must not end it.
//
// Without a check for a lost vote, every extend failed with one instance down.
func TestSettledExactlyWhenNoVoteChangesAnExtend(t *testing.T) {
	everyBallot(t, func(b ballot, tally tally) {
		require.Equal(t, len(b.ends(extendOf)) == 1, settled(tally), "%v", b)
	})
}

// confirmed: no later vote changes what a release tells its caller. It is no
// exact limit: where too few instances are left to confirm, a release asks them
// all the same.
func TestConfirmedOnlyWhenNoVoteChangesARelease(t *testing.T) {
	everyBallot(t, func(b ballot, tally tally) {
		if confirmed(tally) {
			require.Len(t, b.ends(releaseOf), 1, "%v", b)
		}
		want := outcomeOf(b) == "won" || tally.gone() || b.count(pending) == 0
		require.Equal(t, want, confirmed(tally), "%v", b)
	})
}

// A goal that is reached stays reached: a caller that is woken late finds it so.
func TestGoalsStayReached(t *testing.T) {
	goals := map[string]func(tally) bool{"decided": decided, "explained": explained, "settled": settled, "confirmed": confirmed}
	everyBallot(t, func(b ballot, before tally) {
		if before.pending() == 0 {
			for name, goal := range goals {
				require.True(t, goal(before), "%s: all have voted: %v", name, b)
			}
			return
		}
		for _, v := range []vote{granted, refused, failed} {
			after := before
			after.add(v)
			for name, goal := range goals {
				require.False(t, goal(before) && !goal(after), "%s: %v, then %v", name, b, v)
			}
		}
	})
}

func TestAnyOrderOfVotesGivesTheSameTally(t *testing.T) {
	everyBallot(t, func(b ballot, want tally) {
		other := slices.Clone(b)
		slices.Sort(other)
		require.Equal(t, want, other.tally(), "%v", b)
		for range 3 {
			rand.Shuffle(len(other), func(i, j int) { other[i], other[j] = other[j], other[i] })
			require.Equal(t, want, other.tally(), "%v", b)
		}
	})
}

// topOf is top, by counting in a map.
func topOf(votes []vote, fences []uint64) (value uint64, count int) {
	counts := map[uint64]int{}
	for i, v := range votes {
		if v == granted {
			counts[fences[i]]++
		}
	}
	for fence, n := range counts {
		if count == 0 || fence > value {
			value, count = fence, n
		}
	}
	return value, count
}

func TestTopIsTheLargestGrantAndItsCount(t *testing.T) {
	values := []uint64{0, 1, 2, maxToken - 1}
	for n := 1; n <= 4; n++ {
		fences := make([]uint64, n)
		ballots(n, func(votes ballot) {
			for code := range 1 << (2 * n) { // two bits for each fence
				for i := range fences {
					fences[i] = values[code>>(2*i)&3]
				}
				value, count := top(votes, fences)
				wantValue, wantCount := topOf(votes, fences)
				if value != wantValue || count != wantCount {
					require.Fail(t, "top", "%v %v: %d times %d, not %d times %d", votes, fences, count, value, wantCount, wantValue)
				}
			}
		})
	}
	for range 20_000 {
		votes, fences := make(ballot, 7), make([]uint64, 7)
		for i := range votes {
			votes[i], fences[i] = vote(rand.N(4)), rand.Uint64N(4)
		}
		value, count := top(votes, fences)
		wantValue, wantCount := topOf(votes, fences)
		require.Equal(t, wantValue, value)
		require.Equal(t, wantCount, count)
	}
}

func TestVotesAndOutcomesHaveNames(t *testing.T) {
	require.Equal(t, "pending granted refused failed", fmt.Sprint(pending, granted, refused, failed))
	require.Equal(t, "undecided won lost", fmt.Sprint(undecided, won, lost))
}
