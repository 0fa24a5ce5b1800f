//go:build race

package redlock

// The race detector makes a client so slow between the reading of its clock and the
// sending of the seed that rounds overtake each other there, with equal clocks just
// as often as with clocks 20 ms apart: that is not what the test is about.
const mostThin = 0.03

// manyHandOvers is how many of them have to be in order.
const manyHandOvers = 2000
