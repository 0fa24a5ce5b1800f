package redlockotel_test

import (
	"bytes"
	"io"
	"maps"
	"net/http"
	"net/http/httptest"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promhttp"
	dto "github.com/prometheus/client_model/go"
	"github.com/prometheus/common/expfmt"
	"github.com/prometheus/common/model"
	"github.com/stretchr/testify/require"
	exporter "go.opentelemetry.io/otel/exporters/prometheus"
	sdkmetric "go.opentelemetry.io/otel/sdk/metric"
	"go.uber.org/goleak"

	"github.com/quorumlock/redlock/redlockotel"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

const (
	soon = 20 * time.Second // by then, what must happen has happened, also on a busy machine
	long = time.Minute      // a ttl that no test waits for
)

func becomes(t testing.TB, condition func() bool, what string) {
	t.Helper()
	require.Eventually(t, condition, soon, 5*time.Millisecond, what)
}

// A page is what Prometheus would scrape: over HTTP, from an exporter.
type page struct {
	t   testing.TB
	url string
}

// newTelemetry returns a Telemetry that reports to a page.
func newTelemetry(t testing.TB, opts ...redlockotel.Option) (*redlockotel.Telemetry, page) {
	t.Helper()
	registry := prometheus.NewPedanticRegistry()
	e, err := exporter.New(exporter.WithRegisterer(registry), exporter.WithoutScopeInfo(), exporter.WithoutTargetInfo())
	require.NoError(t, err)
	tel, err := redlockotel.New(append(opts, redlockotel.WithMeterProvider(sdkmetric.NewMeterProvider(sdkmetric.WithReader(e))))...)
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, tel.Close()) })
	server := httptest.NewServer(promhttp.HandlerFor(registry, promhttp.HandlerOpts{}))
	t.Cleanup(server.Close)
	return tel, page{t, server.URL}
}

func (p page) text() string {
	p.t.Helper()
	r, err := http.Get(p.url) //nolint:noctx // a test's own server
	require.NoError(p.t, err)
	defer r.Body.Close()
	body, err := io.ReadAll(r.Body)
	require.NoError(p.t, err)
	require.Equal(p.t, http.StatusOK, r.StatusCode, string(body))
	return string(body)
}

type families map[string]*dto.MetricFamily

func (p page) scrape() families {
	p.t.Helper()
	parser := expfmt.NewTextParser(model.UTF8Validation)
	f, err := parser.TextToMetricFamilies(bytes.NewReader([]byte(p.text())))
	require.NoError(p.t, err)
	return f
}

type labels map[string]string

// series returns the metrics of a family that have these labels.
func (f families) series(name string, want labels) []*dto.Metric {
	var found []*dto.Metric
	for _, m := range f[name].GetMetric() {
		has := labels{}
		for _, l := range m.GetLabel() {
			if _, ok := want[l.GetName()]; ok {
				has[l.GetName()] = l.GetValue()
			}
		}
		if maps.Equal(has, want) {
			found = append(found, m)
		}
	}
	return found
}

// value returns the sum of counters and gauges, or of the counts of histograms.
func (f families) value(name string, want labels) float64 {
	sum := 0.0
	for _, m := range f.series(name, want) {
		sum += m.GetCounter().GetValue() + m.GetGauge().GetValue() + float64(m.GetHistogram().GetSampleCount())
	}
	return sum
}

// mean returns that of a histogram.
func (f families) mean(name string, want labels) float64 {
	sum, n := 0.0, 0.0
	for _, m := range f.series(name, want) {
		sum += m.GetHistogram().GetSampleSum()
		n += float64(m.GetHistogram().GetSampleCount())
	}
	return sum / n
}
