package redlockotel_test

import (
	"context"
	"fmt"
	"log"
	"strings"
	"time"

	"github.com/alicebob/miniredis/v2"
	sdkmetric "go.opentelemetry.io/otel/sdk/metric"
	"go.opentelemetry.io/otel/sdk/metric/metricdata"

	"github.com/quorumlock/redlock"
	"github.com/quorumlock/redlock/redlockotel"
)

// The metrics of a Locker, read as an exporter would read them. A program that has set up
// the SDK needs neither the reader nor the provider: it calls New without them.
func ExampleNew() {
	server := miniredis.NewMiniRedis() // stands for a Redis master
	if err := server.Start(); err != nil {
		log.Fatal(err)
	}
	defer server.Close()

	reader := sdkmetric.NewManualReader()
	telemetry, err := redlockotel.New(
		redlockotel.WithMeterProvider(sdkmetric.NewMeterProvider(sdkmetric.WithReader(reader))),
		redlockotel.WithClass(func(resource string) string { c, _, _ := strings.Cut(resource, ":"); return c }),
	)
	if err != nil {
		log.Fatal(err)
	}
	defer telemetry.Close()
	locker, err := redlock.Open([]string{server.Addr()}, redlock.WithObserver(telemetry.Observer()))
	if err != nil {
		log.Fatal(err)
	}

	ctx := context.Background()
	err = locker.Do(ctx, "invoice:42", 10*time.Second, func(context.Context, *redlock.Lock) error { return nil })
	if err != nil {
		log.Fatal(err)
	}
	locker.Close() // the last events are told

	var all metricdata.ResourceMetrics
	if err := reader.Collect(ctx, &all); err != nil {
		log.Fatal(err)
	}
	for _, m := range all.ScopeMetrics[0].Metrics {
		if h, ok := m.Data.(metricdata.Histogram[float64]); ok && m.Name == "redlock.hold.duration" {
			class, _ := h.DataPoints[0].Attributes.Value("redlock.class")
			outcome, _ := h.DataPoints[0].Attributes.Value("redlock.outcome")
			fmt.Println(m.Name, m.Unit, h.DataPoints[0].Count, class.AsString(), outcome.AsString())
		}
	}
	// Output: redlock.hold.duration s 1 invoice released
}
