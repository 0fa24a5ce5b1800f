//go:build !race

package redlock

// mostThin is the share of thin holds that clocks 20 ms apart may leave.
const mostThin = 0.01

// manyHandOvers is how many of them have to be in order.
const manyHandOvers = 10_000
