//go:build !linux

package wire

func newPause() pause { return newTimerPause() }
