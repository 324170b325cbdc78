//go:build !linux

package bench

import "time"

// sleepPrecisely does nothing: here sleeps are as precise as Go's timers.
func sleepPrecisely() (undo func()) { return func() {} }

func nanosleep(d time.Duration) { time.Sleep(d) }
