package redlockotel_test

import (
	"fmt"
	"slices"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	sdkmetric "go.opentelemetry.io/otel/sdk/metric"
	"go.opentelemetry.io/otel/sdk/trace"
	"go.opentelemetry.io/otel/sdk/trace/tracetest"

	"github.com/quorumlock/redlock"
	"github.com/quorumlock/redlock/internal/redistest"
	"github.com/quorumlock/redlock/redlockotel"
)

// What the telemetry costs: a Locker with it beside one without, in alternating order, on
// the same three servers. An iteration is one turn of each. Both figures are ratios, of
// medians: of the time that passed, and of the processor time of this process, in which
// other processes have no part.
func BenchmarkOverhead(b *testing.B) {
	servers := redistest.StartN(b, 3)
	for _, spans := range []bool{false, true} {
		for _, callers := range []int{1, 64} {
			b.Run(fmt.Sprintf("spans=%t/callers=%d", spans, callers), func(b *testing.B) {
				var tracers []trace.TracerProviderOption
				if spans {
					tracers = append(tracers, trace.WithBatcher(tracetest.NewNoopExporter()))
				} else {
					tracers = append(tracers, trace.WithSampler(trace.NeverSample()))
				}
				provider := trace.NewTracerProvider(tracers...)
				defer func() { _ = provider.Shutdown(b.Context()) }()
				tel, err := redlockotel.New(redlockotel.WithTracerProvider(provider),
					redlockotel.WithMeterProvider(sdkmetric.NewMeterProvider(sdkmetric.WithReader(sdkmetric.NewManualReader()))))
				require.NoError(b, err)
				defer tel.Close()
				var lockers [2]*redlock.Locker
				for i, o := range []redlock.Observer{{}, tel.Observer()} {
					lockers[i], err = redlock.Open(redistest.Addrs(servers), redlock.WithObserver(o), redlock.WithQuarantine(0),
						redlock.WithInstanceTimeout(10*time.Second))
					require.NoError(b, err)
					defer lockers[i].Close()
					turn(b, lockers[i], callers) // connects
				}
				var wall, cpu [2][]time.Duration
				for n := 0; b.Loop(); n++ {
					for i := range lockers {
						i = (i + n) % 2
						w, c := turn(b, lockers[i], callers)
						wall[i], cpu[i] = append(wall[i], w), append(cpu[i], c)
					}
				}
				b.ReportMetric(ratio(wall), "time-ratio")
				b.ReportMetric(ratio(cpu), "cpu-ratio")
				b.ReportMetric(0, "ns/op")
			})
		}
	}
}

func ratio(of [2][]time.Duration) float64 {
	var medians [2]float64
	for i, all := range of {
		slices.Sort(all)
		medians[i] = float64(all[len(all)/2])
	}
	return medians[1] / medians[0]
}

// turn acquires and releases 3200 locks, and waits until what is left of that is done.
func turn(b *testing.B, l *redlock.Locker, callers int) (wall, cpu time.Duration) {
	const locks = 3200
	start, used := time.Now(), processorTime(b)
	var all sync.WaitGroup
	for i := range callers {
		all.Go(func() {
			for range locks / callers {
				k, err := l.TryAcquire(b.Context(), fmt.Sprint(i), time.Minute)
				if err == nil {
					err = k.Release(b.Context())
				}
				if err != nil {
					b.Errorf("%v", err)
					return
				}
			}
		})
	}
	all.Wait()
	wall = time.Since(start)
	time.Sleep(20 * time.Millisecond) // the observer's goroutine is a moment behind
	return wall, processorTime(b) - used
}

func processorTime(b *testing.B) time.Duration {
	var u syscall.Rusage
	require.NoError(b, syscall.Getrusage(syscall.RUSAGE_SELF, &u))
	return time.Duration(u.Utime.Nano() + u.Stime.Nano())
}
