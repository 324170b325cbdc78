package main

import (
	"context"
	"errors"
	"fmt"
	"net"
)

// listen on the address that the flag names.
func listen(ctx context.Context, flag, address string) (net.Listener, error) {
	if err := checkAddress(ctx, address); err != nil {
		return nil, fmt.Errorf("%s is %q: %w: write it like 127.0.0.1:8080, or :8080 to accept connections from other machines", flag, address, err)
	}
	listener, err := (&net.ListenConfig{}).Listen(ctx, "tcp", address)
	if err != nil {
		return nil, fmt.Errorf("%s %s: %w", flag, address, err)
	}
	return listener, nil
}

// checkAddress checks that the address has a host and a port. Without a port, Listen would choose one.
func checkAddress(ctx context.Context, address string) error {
	_, port, err := net.SplitHostPort(address)
	if err == nil && port == "" {
		err = errors.New("missing port in address")
	}
	if wrong := (*net.AddrError)(nil); errors.As(err, &wrong) {
		err = errors.New(wrong.Err)
	}
	if err == nil {
		if _, err = net.DefaultResolver.LookupPort(ctx, "tcp", port); err != nil {
			err = errors.New("invalid port")
		}
	}
	return err
}
