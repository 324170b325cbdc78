// Package skew knows that clocks of two machines do not run at the same speed.
package skew

import "time"

// AtLeast is how much time passes on another machine's clock while so much passes on this
// one's, or the other way round: they may run apart by up to 0.05 % while one of them is
// being adjusted.
func AtLeast(d time.Duration) time.Duration { return d - d/1024 }
