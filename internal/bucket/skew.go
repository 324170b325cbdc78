package bucket

import "time"

// Two clocks may run apart by up to 0.05 % while one of them is being adjusted.

// AtLeast is the least time that passes on one machine's clock while d passes on another's.
func AtLeast(d time.Duration) time.Duration { return d - d/1024 }

// AtMost is the most time that passes on one machine's clock while d passes on another's: wait so
// long, and d has passed there.
func AtMost(d time.Duration) time.Duration { return d + d/1023 + min(d, 1) }
