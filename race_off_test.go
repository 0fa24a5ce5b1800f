//go:build !race

package redlock

import "time"

// mostThin is the share of thin holds that clocks 20 ms apart may leave.
const mostThin = 0.01

// manyHandOvers is how many of them have to be in order.
const manyHandOvers = 10_000

// atOnce is a time that no pause of a waiter is in, also on a busy machine: tests
// that use it set WithRetryDelay to minutes.
const atOnce = 500 * time.Millisecond
