package redlock

import "time"

// A caller that has sent its operation to the only instance reads the answer itself.
// Where that is near, the answer comes sooner than a goroutine is put to sleep and woken
// again: so the caller looks for it first, and sleeps only if it does not come. That
// takes less of the processor than to sleep and be woken, too, as long as it lets others
// run between two looks.

const (
	// lookTime is how long a caller looks: about twice what sleeping and waking takes.
	lookTime = 200 * time.Microsecond
	// Below this distance an answer may well come within lookTime.
	near = 100 * time.Microsecond
	// maxDull bounds how many callers do not look, after some have looked for too long.
	maxDull = 1023
	// attention is how long a caller reads for itself, about: after that it listens to its
	// context again, and the worker to the instance.
	attention = time.Millisecond
)

// attend reads the answer to the operation that the caller has just sent to the only
// instance, and passes the turn on. It returns within a few milliseconds, answered
// or not.
func (in *instance) attend() {
	in.mu.Lock()
	w := in.wire // it stays while the caller has the turn
	real := time.Now()
	if left := in.readUntil.Sub(real); left < attention || left > 3*attention {
		in.readUntilLocked(real.Add(3 * attention))
	}
	out := in.broken == nil && len(in.flights) > 0
	in.mu.Unlock()
	looks := out && in.looks()
	for out {
		var some bool
		var err error
		if looks {
			some, err = in.look(w, real.Add(lookTime))
			looks = some
		}
		if !some && err == nil {
			err = w.fill()
		}
		in.receive(w, err)
		in.mu.Lock()
		out = err == nil && in.broken == nil && len(in.flights) > 0
		in.mu.Unlock()
	}
	in.requeue()
	in.mu.Lock()
	defer in.mu.Unlock()
	in.turn = nobodys
	if in.signalled || in.broken != nil || len(in.queue) > 0 || len(in.flights) > 0 {
		in.turn = workers
		in.knock()
	}
}

// looks reports whether who has the turn looks for the answer before it waits.
func (in *instance) looks() bool {
	switch {
	case in.wire.looker == nil, !in.single, in.distance >= near:
		return false
	case in.blind > 0:
		in.blind--
		return false
	}
	return true
}

// look looks for an answer until then, and reports whether some of it has come. Who
// takes longer than that, also if the answer is there at last, is followed by 15 that do
// not look, the next one by four times as many: where the processors are busy with other
// things, letting others run takes as long as they like, which is milliseconds. Who is
// in time is followed by half as many as it was.
func (in *instance) look(w *wire, until time.Time) (some bool, err error) {
	for {
		some, err = w.look()
		late := time.Now().After(until)
		switch {
		case late:
			in.dull = min(4*in.dull+15, maxDull)
		case some:
			in.dull /= 2
		}
		if late || some || err != nil {
			in.blind = in.dull
			return some, err
		}
		letOthersRun()
	}
}
