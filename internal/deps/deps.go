// Package deps holds modules in go.mod until their users are written.
package deps

import (
	_ "github.com/HdrHistogram/hdrhistogram-go"
	_ "github.com/go-co-op/gocron/v2"
	_ "github.com/jackc/pgx/v5/stdlib"
	_ "github.com/jedib0t/go-pretty/v6/table"
	_ "github.com/pressly/goose/v3"
	_ "github.com/schollz/progressbar/v3"
	_ "github.com/spf13/cobra"
	_ "github.com/testcontainers/testcontainers-go"
	_ "github.com/testcontainers/testcontainers-go/modules/postgres"
	_ "go.uber.org/goleak"
	_ "golang.org/x/sync/errgroup"
	_ "golang.org/x/term"
	_ "pgregory.net/rapid"
)
