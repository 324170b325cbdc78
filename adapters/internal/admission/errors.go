package admission

import (
	"errors"
	"fmt"

	"github.com/pglimit/ratelimit/pglimit"
	"github.com/pglimit/ratelimit/pglimit/rate"
)

// Errors that the adapters export.
var (
	ErrNoKey      = errors.New("pglimit: the request has no key")
	ErrBadRequest = errors.New("pglimit: the request cannot be counted")
	ErrFallback   = errors.New("pglimit: no decision is known, and Config.OnError of the limiter denied the request")
)

// ConfigError is an error caused by a field of an adapter's Config.
type ConfigError struct {
	Field string
	Err   error
}

func (e *ConfigError) Error() string { return "Config." + e.Field + ": " + e.Err.Error() }
func (e *ConfigError) Unwrap() error { return e.Err }

// Key checks what the key function returned.
func Key(key string, err error) (string, error) {
	if err == nil {
		err = checkKey(key)
	}
	if err != nil {
		return "", &ConfigError{"Key", err}
	}
	return key, nil
}

// checkKey checks a key. An empty key is a fault of the server. Any other fault came from the client, because a
// constant key would always have it. The client sees the text, and may not know the key, which can hold more than what
// it sent.
func checkKey(key string) error {
	switch {
	case key == "":
		return errors.New("the key is empty: name whom the request is counted for, or return an error")
	case rate.CheckKey(key) == nil:
		return nil
	case len(key) > rate.MaxKeyBytes:
		return fmt.Errorf("%w: the key of this request has %d bytes: at most %d are allowed",
			ErrBadRequest, len(key), rate.MaxKeyBytes)
	}
	return fmt.Errorf("%w: the key of this request is not valid UTF-8, or has a NUL byte", ErrBadRequest)
}

// Cost checks what the cost function returned.
func Cost(cost int64) (int64, error) {
	if cost < 1 {
		return 0, &ConfigError{"Cost",
			fmt.Errorf("is %d: it must be at least 1; what costs nothing is for Config.Skip", cost)}
	}
	return cost, nil
}

// Fault says whose fault it is that no decision is known.
type Fault int

// Faults.
const (
	OfPostgres Fault = iota // or of the way to it
	OfClient                // the request cannot be counted, or costs more than the burst
	OfConfig                // the server is not set up properly
)

// FaultOf an error.
func FaultOf(err error) Fault {
	var request *pglimit.RequestError
	switch {
	case errors.Is(err, ErrBadRequest):
		return OfClient
	case errors.As(err, new(*ConfigError)):
		return OfConfig
	case errors.As(err, &request) && request.Field == "Tokens":
		return OfClient
	case request != nil, errors.As(err, new(*pglimit.RuleError)), errors.As(err, new(*pglimit.LimitError)),
		errors.Is(err, errors.ErrUnsupported):
		return OfConfig
	}
	return OfPostgres
}
