package main

import (
	"context"
	"fmt"
	"net"
)

// listen on the address that the flag names. It must have a port: otherwise Listen would choose one.
func listen(ctx context.Context, flag, address string) (net.Listener, error) {
	_, port, err := net.SplitHostPort(address)
	if err == nil && port == "" {
		err = &net.AddrError{Err: "missing port", Addr: address}
	}
	var listener net.Listener
	if err == nil {
		listener, err = (&net.ListenConfig{}).Listen(ctx, "tcp", address)
	}
	if err != nil {
		return nil, fmt.Errorf("%s: %w (write it like 127.0.0.1:8080, or :8080 to accept connections from other machines)",
			flag, err)
	}
	return listener, nil
}
