package pglimit

import "time"

// Name is the name of the limiter, of [Config].
func (l *Limiter) Name() string { return l.config.Name }

// Timeout is the time limit of one decision, of [Config]: a second if that leaves it out, and
// NoTimeout if there is none.
func (l *Limiter) Timeout() time.Duration { return l.timeout }

// MaxWaiting is how many callers may wait for an answer at once, of [Config].
func (l *Limiter) MaxWaiting() int { return orDefault(l.config.MaxWaiting, defaultMaxWaiting) }

// Strategy is what decides for the limiter.
func (l *Limiter) Strategy() Strategy { return l.strategy }
