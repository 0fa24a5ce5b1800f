//go:build race

package redlock

// RaceDetector reports whether the race detector is on.
const RaceDetector = true
