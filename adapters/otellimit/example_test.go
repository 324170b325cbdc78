package otellimit_test

import (
	"context"
	"fmt"

	"go.opentelemetry.io/otel/attribute"
	sdk "go.opentelemetry.io/otel/sdk/metric"
	"go.opentelemetry.io/otel/sdk/metric/metricdata"

	"github.com/pglimit/ratelimit/adapters/otellimit"
	"github.com/pglimit/ratelimit/pglimit"
	"github.com/pglimit/ratelimit/pglimit/pglimittest"
)

func Example() {
	ctx := context.Background()
	strategy := pglimittest.Memory() // strategies.TokenBucket{}, say
	pool := strategy.Pool()          // your *pgxpool.Pool

	reader := sdk.NewManualReader() // or a PeriodicReader with your exporter
	provider := sdk.NewMeterProvider(sdk.WithReader(reader))
	meter := provider.Meter("github.com/pglimit/ratelimit")

	limiter, err := pglimit.New(pool, strategy, pglimit.Config{
		Name:  "api",
		Limit: pglimit.PerSecond(10).WithBurst(20),
	})
	if err != nil {
		fmt.Println(err)
		return
	}
	if _, err := otellimit.Register(meter, limiter); err != nil {
		fmt.Println(err)
		return
	}

	for _, key := range []string{"user:1", "user:2", "user:3"} {
		_, _ = limiter.Allow(ctx, key)
	}

	var collected metricdata.ResourceMetrics
	if err := reader.Collect(ctx, &collected); err != nil {
		fmt.Println(err)
		return
	}
	for _, m := range collected.ScopeMetrics[0].Metrics {
		switch data := m.Data.(type) {
		case metricdata.Sum[int64]:
			for _, point := range data.DataPoints {
				if point.Value > 0 {
					fmt.Println(m.Name, point.Attributes.Encoded(attribute.DefaultEncoder()), point.Value)
				}
			}
		case metricdata.Histogram[float64]:
			fmt.Println(m.Name, data.DataPoints[0].Count)
		}
	}
	// Unordered output:
	// pglimit.allowed limiter=api,source=database,strategy=memory 3
	// pglimit.granted_tokens limiter=api,strategy=memory 3
	// pglimit.requests_sent limiter=api,strategy=memory 3
	// pglimit.round_trip.duration 3
	// pglimit.round_trips limiter=api,strategy=memory 3
}
