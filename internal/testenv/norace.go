//go:build !race

package testenv

// raceDetector reports whether this program was built with the race detector.
const raceDetector = false
