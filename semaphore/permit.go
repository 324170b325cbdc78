package semaphore

import (
	"context"
	"errors"
	"math/rand/v2"
	"sync"
	"time"
)

// Permit is a place, or several, from Acquire until Release. It is safe for concurrent use.
type Permit struct {
	Key    string
	Weight int64 // how many places it takes

	// Token is larger than the Token of every earlier permit of this key: it is the database's time in nanoseconds, or
	// one more than the last token. Use it for fencing: see the package documentation.
	Token int64

	semaphore *Semaphore
	holder    string
	ctx       context.Context //nolint:containedctx // it lives as long as the permit
	cancel    context.CancelCauseFunc

	mu      sync.Mutex
	until   time.Time   // by this process's monotonic clock: it is lost then
	expiry  *time.Timer // calls lose
	renewal *time.Timer // calls renew
	end     error       // ErrLost or ErrReleased

	releasing sync.Mutex // one Release at a time
	released  bool       // Postgres has answered
}

// newPermit makes a permit that was requested at the time sent.
func (s *Semaphore) newPermit(ctx context.Context, key string, weight, token int64, holder string, sent time.Time) *Permit {
	p := &Permit{Key: key, Weight: weight, Token: token, semaphore: s, holder: holder, until: sent.Add(s.config.lifetime())}
	p.ctx, p.cancel = context.WithCancelCause(ctx)
	s.held.Add(1)
	s.acquired.Add(1)
	p.mu.Lock() // the timers may be faster
	defer p.mu.Unlock()
	p.expiry = time.AfterFunc(time.Until(p.until), p.expire)
	p.renewal = time.AfterFunc(time.Until(sent.Add(s.config.TTL/3)), p.renew)
	return p
}

// lifetime is how long a permit is certainly held, from before it was requested. One percent is subtracted, because the
// clocks of this machine and of the database may run at different speeds.
func (c Config) lifetime() time.Duration { return c.TTL - c.TTL/100 }

// Context is derived from that of Acquire. It also ends when the permit is released or lost; its cause is then
// ErrReleased or ErrLost. Run work that needs the permit under it.
func (p *Permit) Context() context.Context { return p.ctx }

// Err returns nil while the permit is held, else ErrReleased or ErrLost. It checks the clock, so it is right even if
// the process was frozen until now. It does not call Postgres.
func (p *Permit) Err() error {
	p.expire()
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.end
}

// expire marks the permit as lost if its time is over.
func (p *Permit) expire() {
	p.mu.Lock()
	defer p.mu.Unlock()
	if !time.Now().Before(p.until) {
		p.finish(ErrLost)
	}
}

// finish ends the permit. p.mu is locked.
func (p *Permit) finish(why error) {
	if p.end != nil {
		return
	}
	p.end = why
	p.expiry.Stop()
	p.renewal.Stop()
	p.cancel(why)
	p.semaphore.held.Add(-1)
	if errors.Is(why, ErrLost) {
		p.semaphore.lost.Add(1)
	}
}

// renew extends the permit, counted from before the call. After an error it soon tries again.
func (p *Permit) renew() {
	p.mu.Lock()
	until := p.until
	p.mu.Unlock()
	sent := time.Now()
	ctx, cancel := p.semaphore.limited(p.ctx)
	defer cancel()
	ctx, stop := context.WithDeadline(ctx, until)
	defer stop()
	var held bool
	ttl := p.semaphore.config.TTL
	err := p.semaphore.row(ctx, renewSQL, []any{p.semaphore.config.Name, p.Key, p.holder, ttl.Microseconds()}, &held)
	p.mu.Lock()
	defer p.mu.Unlock()
	switch {
	case p.end != nil:
	case err != nil:
		p.renewal.Reset(ttl/20 + rand.N(ttl/20)) //nolint:gosec // jitter
	case !held:
		p.finish(ErrLost)
	default:
		p.until = sent.Add(p.semaphore.config.lifetime())
		p.expiry.Reset(time.Until(p.until))
		p.renewal.Reset(time.Until(sent.Add(ttl / 3)))
	}
}

// Release frees the place and ends Context, even if ctx has ended: it takes at most Config.Timeout, and uses only the
// values of ctx.
//
// It returns nil if the permit was held until now, and ErrLost if it was lost before; repeated calls return the same.
// Another error means that Postgres did not answer: call it again, or leave it to the TTL, after which the place is
// free.
func (p *Permit) Release(ctx context.Context) error {
	p.expire()
	p.mu.Lock()
	p.finish(ErrReleased)
	p.mu.Unlock()

	p.releasing.Lock()
	defer p.releasing.Unlock()
	if !p.released {
		ctx, cancel := p.semaphore.limited(ctx)
		defer cancel()
		held, err := p.semaphore.release(ctx, p.Key, p.holder)
		if err != nil {
			return err
		}
		p.released = true
		p.semaphore.wake(p.Key)
		p.mu.Lock()
		defer p.mu.Unlock()
		if !held && errors.Is(p.end, ErrReleased) { // the database's clock has stepped forward
			p.end = ErrLost
			p.semaphore.lost.Add(1)
		}
	}
	if errors.Is(p.end, ErrLost) {
		return ErrLost
	}
	return nil
}
