//go:build !race

package redlock

// mostThin is the share of thin holds that clocks 20 ms apart may leave.
const mostThin = 0.01
