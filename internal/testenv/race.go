//go:build race

package testenv

// raceDetector: this program was built with it.
const raceDetector = true
