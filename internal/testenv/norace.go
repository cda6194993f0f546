//go:build !race

package testenv

// raceDetector: this program was built without it.
const raceDetector = false
