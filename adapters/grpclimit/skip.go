package grpclimit

import (
	"context"
	"strings"
)

// Methods is a [Config].Skip for these methods, "package.Service/Method", or all methods of a
// service, "package.Service". Methods("grpc.health.v1.Health") lets health checks pass.
func Methods(names ...string) func(context.Context, Call) bool {
	named := make(map[string]bool, len(names))
	for _, name := range names {
		named[strings.Trim(name, "/")] = true
	}
	return func(_ context.Context, call Call) bool {
		method := strings.TrimPrefix(call.Method, "/")
		service, _, _ := strings.Cut(method, "/")
		return named[method] || named[service]
	}
}
