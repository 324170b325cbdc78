package main

import (
	"context"
	"errors"
	"fmt"
	"net"
)

// listen on the address that the flag names. It must have a port: otherwise Listen would choose one.
func listen(ctx context.Context, flag, address string) (net.Listener, error) {
	_, port, err := net.SplitHostPort(address)
	if wrong := (*net.AddrError)(nil); errors.As(err, &wrong) {
		err = errors.New(wrong.Err)
	} else if _, unknown := net.DefaultResolver.LookupPort(ctx, "tcp", port); port == "" || unknown != nil {
		err = errors.New("invalid port")
	}
	if err != nil {
		return nil, fmt.Errorf("%s is %q: %w: write it like 127.0.0.1:8080, or :8080 to accept connections from "+
			"other machines",
			flag, address, err)
	}
	listener, err := (&net.ListenConfig{}).Listen(ctx, "tcp", address)
	if err != nil {
		return nil, fmt.Errorf("%s %s: %w", flag, address, err)
	}
	return listener, nil
}
