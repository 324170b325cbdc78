package wire

import (
	"runtime"
	"syscall"
	"time"
)

// SleepPrecisely prepares the goroutine for [Nanosleep], and returns what undoes that.
// Linux wakes threads up to 50 µs late to save power, unless the thread asks for better.
// The setting is the thread's, so the goroutine keeps its thread to itself and gives it
// back as it was.
func SleepPrecisely() (undo func()) {
	const setTimerSlack = 29 // PR_SET_TIMERSLACK: in nanoseconds; 0 restores the default
	runtime.LockOSThread()
	syscall.RawSyscall(syscall.SYS_PRCTL, setTimerSlack, 1, 0) //nolint:errcheck // where it is refused, sleeps are as long as ever
	return func() {
		syscall.RawSyscall(syscall.SYS_PRCTL, setTimerSlack, 0, 0) //nolint:errcheck // as above
		runtime.UnlockOSThread()
	}
}

// Nanosleep sleeps that long, or less if a signal arrives.
func Nanosleep(d time.Duration) {
	t := syscall.NsecToTimespec(int64(d))
	_ = syscall.Nanosleep(&t, nil) // the caller looks at the clock
}
