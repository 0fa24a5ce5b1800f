// Command picture draws docs/dashboard.svg: what the panels of docs/dashboard.json show of
// a real run with faults in it.
//
//	go run ./internal/picture -o ../docs/dashboard.svg
//
// It starts three redis-servers, a program that locks, and Prometheus, which scrapes it
// each second and then evaluates the panels' own queries. It takes about 100 s, and
// needs redis-server and prometheus (-prometheus says where).
package main

import (
	"context"
	"encoding/json"
	"flag"
	"fmt"
	"net"
	"net/http"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"github.com/prometheus/client_golang/prometheus/promhttp"
	exporter "go.opentelemetry.io/otel/exporters/prometheus"
	sdkmetric "go.opentelemetry.io/otel/sdk/metric"

	"github.com/quorumlock/redlock/redlockotel"
)

const (
	step = time.Second
	rate = "6s" // of the panels' $__rate_interval
)

func main() {
	binary := flag.String("prometheus", "prometheus", "the Prometheus server")
	dashboard := flag.String("dashboard", "../docs/dashboard.json", "the panels")
	out := flag.String("o", "dashboard.svg", "the picture")
	flag.Parse()
	if err := run(*binary, *dashboard, *out); err != nil {
		fmt.Fprintln(os.Stderr, "picture:", err)
		os.Exit(1)
	}
}

func run(binary, dashboard, out string) error {
	panels, err := readPanels(dashboard)
	if err != nil {
		return err
	}
	e, err := exporter.New()
	if err != nil {
		return err
	}
	tel, err := redlockotel.New(redlockotel.WithMeterProvider(sdkmetric.NewMeterProvider(sdkmetric.WithReader(e))),
		redlockotel.WithClass(func(resource string) string { c, _, _ := strings.Cut(resource, ":"); return c }))
	if err != nil {
		return err
	}
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return err
	}
	server := &http.Server{Handler: promhttp.Handler(), ReadHeaderTimeout: time.Second}
	go func() { _ = server.Serve(l) }()
	defer server.Close()
	p, err := startPrometheus(binary, l.Addr().String())
	if err != nil {
		return err
	}
	defer p.stop()

	start := time.Now()
	marks, err := workload(context.Background(), tel)
	if err != nil {
		return err
	}
	end := time.Now()
	for i := range panels {
		if err := panels[i].query(p.url, start, end); err != nil {
			return err
		}
	}
	f, err := os.Create(out)
	if err != nil {
		return err
	}
	if err := draw(f, panels, marks, start, end); err != nil {
		return err
	}
	return f.Close()
}

// A prom is a Prometheus server.
type prom struct {
	url string
	cmd *exec.Cmd
	dir string
}

func startPrometheus(binary, target string) (*prom, error) {
	dir, err := os.MkdirTemp("", "picture")
	if err != nil {
		return nil, err
	}
	config := filepath.Join(dir, "prometheus.yml")
	text := fmt.Sprintf("scrape_configs: [{job_name: demo, scrape_interval: 1s, static_configs: [{targets: [%q]}]}]\n", target)
	if err := os.WriteFile(config, []byte(text), 0o600); err != nil {
		return nil, err
	}
	free, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return nil, err
	}
	addr := free.Addr().String()
	_ = free.Close()
	p := &prom{
		url: "http://" + addr, dir: dir,
		cmd: exec.Command(binary, "--config.file="+config, "--storage.tsdb.path="+dir, "--web.listen-address="+addr, "--log.level=warn"), //nolint:gosec // it is ours to run
	}
	p.cmd.Stderr = os.Stderr
	return p, p.cmd.Start()
}

func (p *prom) stop() {
	_ = p.cmd.Process.Kill()
	_ = p.cmd.Wait()
	_ = os.RemoveAll(p.dir)
}

// A panel is one of the dashboard, with what its queries returned.
type panel struct {
	Title       string
	FieldConfig struct{ Defaults struct{ Unit string } }
	Targets     []struct{ Expr, LegendFormat string }

	lines []line
}

type line struct {
	name   string
	points []point
}

type point struct{ x, y float64 }

func readPanels(name string) ([]panel, error) {
	text, err := os.ReadFile(name)
	if err != nil {
		return nil, err
	}
	var d struct{ Panels []panel }
	return d.Panels, json.Unmarshal(text, &d)
}

// query has Prometheus evaluate the panel over the run.
func (p *panel) query(base string, start, end time.Time) error {
	for _, t := range p.Targets {
		q := url.Values{
			"query": {strings.NewReplacer("$__rate_interval", rate, "$job", ".*").Replace(t.Expr)},
			"start": {strconv.FormatInt(start.Unix(), 10)},
			"end":   {strconv.FormatInt(end.Unix(), 10)},
			"step":  {step.String()},
		}
		r, err := http.Get(base + "/api/v1/query_range?" + q.Encode()) //nolint:noctx // it is on this machine
		if err != nil {
			return err
		}
		var answer struct {
			Error string
			Data  struct {
				Result []struct {
					Metric map[string]string
					Values [][2]any
				}
			}
		}
		err = json.NewDecoder(r.Body).Decode(&answer)
		_ = r.Body.Close()
		if err != nil || answer.Error != "" {
			return fmt.Errorf("%s: %s %w", t.Expr, answer.Error, err)
		}
		for _, s := range answer.Data.Result {
			l := line{name: t.LegendFormat}
			for k, v := range s.Metric {
				l.name = strings.ReplaceAll(l.name, "{{"+k+"}}", v)
			}
			for _, v := range s.Values {
				at, _ := v[0].(float64)
				text, _ := v[1].(string)
				if y, err := strconv.ParseFloat(text, 64); err == nil {
					l.points = append(l.points, point{at - float64(start.UnixMilli())/1000, y})
				}
			}
			p.lines = append(p.lines, l)
		}
	}
	return nil
}
