package main

import (
	"context"
	"errors"
	"fmt"
	"net"
)

// listen on the address that the flag names.
func listen(ctx context.Context, flag, address string) (net.Listener, error) {
	listener, err := (&net.ListenConfig{}).Listen(ctx, "tcp", address)
	if wrong := (*net.AddrError)(nil); errors.As(err, &wrong) {
		return nil, fmt.Errorf("%s is %q: %s: write it like 127.0.0.1:8080, or :8080 for everybody who reaches this machine", flag, address, wrong.Err)
	}
	if err != nil {
		return nil, fmt.Errorf("%s %s: %w", flag, address, err)
	}
	return listener, nil
}
