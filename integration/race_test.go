//go:build race

package integration

// raceDetector says whether the tests are built with it.
const raceDetector = true
