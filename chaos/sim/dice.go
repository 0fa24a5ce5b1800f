package sim

import "time"

// A dice is a random number that belongs to one question, such as how long the third
// message of a connection takes: whoever asks, and in whatever order, gets the same.
type dice uint64

// of returns the dice of a question within the one of d.
func (d dice) of(keys ...uint64) dice {
	for _, k := range keys {
		d = dice(mix(uint64(d) ^ mix(k)))
	}
	return d
}

// mix is the finalizer of SplitMix64.
func mix(x uint64) uint64 {
	x += 0x9e3779b97f4a7c15
	x = (x ^ x>>30) * 0xbf58476d1ce4e5b9
	x = (x ^ x>>27) * 0x94d049bb133111eb
	return x ^ x>>31
}

// share returns a number from 0 to less than 1.
func (d dice) share() float64 { return float64(mix(uint64(d))>>11) / (1 << 53) }

func (d dice) chance(p float64) bool { return d.share() < p }

// between returns a duration from least to less than most.
func (d dice) between(least, most time.Duration) time.Duration {
	return least + time.Duration(d.share()*float64(most-least))
}

// What the questions are about.
const (
	aboutSchedule uint64 = iota
	aboutMessage
	aboutDial
	aboutJitter
	aboutWorker
	aboutDeadline
	aboutTail
	aboutFault
	aboutClock
)
