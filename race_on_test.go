//go:build race

package redlock

import "time"

// The race detector makes a client so slow between the reading of its clock and the
// sending of the seed that rounds overtake each other there, with equal clocks just
// as often as with clocks 20 ms apart: that is not what the test is about.
const mostThin = 0.03

// manyHandOvers is how many of them have to be in order.
const manyHandOvers = 2000

// atOnce is a time that no pause of a waiter is in, also on a busy machine: tests
// that use it set WithRetryDelay to minutes.
const atOnce = time.Second
