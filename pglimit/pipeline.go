package pglimit

import "context"

// take decides requests and answers in their order.
type take func(ctx context.Context, requests []Request) ([]Decision, error)

// pipeline is the way of a request, first to last. Each stage wraps the next and
// has a file of its own; one that is switched off is not there at all.
func pipeline(db DB, strategy Strategy, config Config) take {
	decide := take(func(ctx context.Context, requests []Request) ([]Decision, error) {
		return strategy.Take(ctx, db, requests)
	})
	if config.Timeout > 0 {
		decide = withTimeout(config.Timeout, decide)
	}
	if config.OnError != nil {
		decide = withFallback(config.OnError, decide)
	}
	return withValidation(strategy, decide)
}

// withValidation turns away what no bucket could answer, before anything is sent
// and before a fallback could let it pass.
func withValidation(strategy Strategy, next take) take {
	return func(ctx context.Context, requests []Request) ([]Decision, error) {
		for i := range requests {
			if err := requests[i].Validate(); err != nil {
				return nil, err
			}
			if err := strategy.Check(requests[i].Limit); err != nil {
				return nil, err
			}
		}
		return next(ctx, requests)
	}
}
