//go:build !linux

package wire

import "time"

// SleepPrecisely does nothing: here sleeps are as precise as Go's timers.
func SleepPrecisely() (undo func()) { return func() {} }

// Nanosleep sleeps that long.
func Nanosleep(d time.Duration) { time.Sleep(d) }
