//go:build race

package redlocktest_test

const raceDetector = true
