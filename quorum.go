package redlock

// This file counts votes and does nothing else: no context, no time, no Redis.

// A vote is what one instance has said in one round.
type vote uint8

const (
	pending vote = iota // no answer yet
	granted             // it is ours: acquired, extended, raised or deleted
	refused             // it is not ours: held by somebody else, or gone
	failed              // unknown: no answer in time, or an error
)

func (v vote) String() string {
	return [...]string{"pending", "granted", "refused", "failed"}[v]
}

// An outcome is what a set of votes amounts to. It is final as soon as it is
// not undecided: later votes can't change it.
type outcome uint8

const (
	undecided outcome = iota
	won
	lost
)

func (o outcome) String() string {
	return [...]string{"undecided", "won", "lost"}[o]
}

// quorumOf returns the smallest number of n instances of which any two sets
// share one instance: n/2+1, also for an even n.
func quorumOf(n int) int { return n/2 + 1 }

// A tally counts the votes of n instances, at most one each.
type tally struct {
	n                        int
	granted, refused, failed int
}

func (t *tally) add(v vote) {
	switch v {
	case granted:
		t.granted++
	case refused:
		t.refused++
	case failed:
		t.failed++
	}
}

func (t tally) quorum() int   { return quorumOf(t.n) }
func (t tally) answered() int { return t.granted + t.refused + t.failed }
func (t tally) pending() int  { return t.n - t.answered() }

// outcome reports whether the vote is won, lost, or still open.
func (t tally) outcome() outcome {
	switch {
	case t.granted >= t.quorum():
		return won
	case t.granted+t.pending() < t.quorum():
		return lost
	}
	return undecided
}

// taken reports whether a lost vote was lost to somebody else: a quorum
// answered, and one of them refused.
func (t tally) taken() bool {
	return t.refused > 0 && t.granted+t.refused >= t.quorum()
}

// unreachable reports that a quorum can no longer answer.
func (t tally) unreachable() bool { return t.failed > t.n-t.quorum() }

// gone reports whether a majority can no longer be ours: so many instances
// said that the lock is not ours that the others are no quorum.
func (t tally) gone() bool { return t.refused > t.n-t.quorum() }

// The four goals of a round: what its caller waits for.

// decided: the vote is won or lost.
func decided(t tally) bool { return t.outcome() != undecided }

// explained: the vote is won, or lost and later votes can't change why. A vote
// can be lost before it is known to whom: of three instances, one refusal and
// one failure lose it, and the third answer tells whether the lock was taken or
// the quorum could not be reached.
func explained(t tally) bool {
	switch t.outcome() {
	case won:
		return true
	case lost:
		return t.taken() || t.unreachable()
	}
	return false
}

// settled: the vote is won, or the lock is gone, or the vote is lost and no vote
// that is still open can show that the lock is gone.
func settled(t tally) bool {
	switch t.outcome() {
	case won:
		return true
	case lost:
		return t.gone() || t.refused+t.pending() <= t.n-t.quorum()
	}
	return false
}

// freed: a majority said that the lock is not ours any more, or nobody is left to
// ask.
func freed(t tally) bool {
	return t.granted+t.refused >= t.quorum() || t.pending() == 0
}

// confirmed: a majority deleted the lock, or the lock is gone, or nobody is
// left to ask.
func confirmed(t tally) bool {
	return t.outcome() == won || t.gone() || t.pending() == 0
}

// top returns the largest fence value among the granted votes and how many
// instances answered exactly that. votes and fences are indexed by instance.
func top(votes []vote, fences []uint64) (value uint64, count int) {
	for i, v := range votes {
		switch {
		case v != granted:
		case fences[i] > value || count == 0:
			value, count = fences[i], 1
		case fences[i] == value:
			count++
		}
	}
	return value, count
}
