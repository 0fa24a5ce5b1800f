package redlockotel_test

import (
	"encoding/json"
	"os"
	"regexp"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	"go.yaml.in/yaml/v3"
)

var metricName = regexp.MustCompile(`\bredlock_\w+`)

// requireExported requires that each metric of a query is exported: a query of one that
// is not shows nothing for ever. Attributes are in braces or behind by.
func requireExported(t *testing.T, f families, query string) {
	t.Helper()
	bare := regexp.MustCompile(`\{[^}]*\}|by \([^)]*\)`).ReplaceAllString(query, "")
	names := metricName.FindAllString(bare, -1)
	require.NotEmpty(t, names, query)
	for _, name := range names {
		base := regexp.MustCompile(`_(bucket|sum|count)$`).ReplaceAllString(name, "")
		if f[name] == nil {
			require.NotNil(t, f[base].GetMetric(), "%s in %s", name, query)
			require.NotNil(t, f[base].GetMetric()[0].GetHistogram(), "%s in %s", name, query)
		}
	}
	attributes := map[string]bool{"le": true}
	for _, family := range f {
		for _, m := range family.GetMetric() {
			for _, l := range m.GetLabel() {
				attributes[l.GetName()] = true
			}
		}
	}
	for _, m := range regexp.MustCompile(`(redlock_\w+)\s*(=|!=|=~|!~)`).FindAllStringSubmatch(query, -1) {
		require.True(t, attributes[m[1]], "%s in %s", m[1], query)
	}
	for _, m := range regexp.MustCompile(`by \(([^)]*)\)`).FindAllStringSubmatch(query, -1) {
		for name := range strings.SplitSeq(m[1], ", ") {
			require.True(t, attributes[name] || name == "job" || name == "instance", "%s in %s", name, query)
		}
	}
}

type panels struct {
	Panels []struct {
		Title   string
		Targets []struct{ Expr string }
	}
}

func dashboard(t *testing.T) panels {
	t.Helper()
	text, err := os.ReadFile("../docs/dashboard.json")
	require.NoError(t, err)
	var d panels
	require.NoError(t, json.Unmarshal(text, &d))
	require.NotEmpty(t, d.Panels)
	return d
}

func TestDashboardAsksForWhatIsExported(t *testing.T) {
	f := exported(t)
	asked := ""
	for _, p := range dashboard(t).Panels {
		require.NotEmpty(t, p.Targets, p.Title)
		for _, target := range p.Targets {
			requireExported(t, f, target.Expr)
			asked += target.Expr
		}
	}
	for name := range f {
		if name != "redlock_fence_accepted_total" { // of use only beside others of the application
			require.Contains(t, asked, name, "no panel shows it")
		}
	}
}

func TestAlertsAskForWhatIsExported(t *testing.T) {
	text, err := os.ReadFile("../docs/alerts.yml")
	require.NoError(t, err)
	var rules struct {
		Groups []struct {
			Rules []struct {
				Alert, Expr string
				Labels      map[string]string
				Annotations map[string]string
			}
		}
	}
	require.NoError(t, yaml.Unmarshal(text, &rules))
	f := exported(t)
	page, err := os.ReadFile("../docs/operations.md")
	require.NoError(t, err)
	for _, g := range rules.Groups {
		require.NotEmpty(t, g.Rules)
		for _, r := range g.Rules {
			requireExported(t, f, r.Expr)
			require.NotEmpty(t, r.Labels["severity"], r.Alert)
			require.NotEmpty(t, r.Annotations["summary"], r.Alert)
			require.Contains(t, string(page), "`"+r.Alert+"`", "what to do is told there")
		}
	}
}

func TestPictureShowsThePanelsOfTheDashboard(t *testing.T) {
	picture, err := os.ReadFile("../docs/dashboard.svg")
	require.NoError(t, err)
	for _, p := range dashboard(t).Panels {
		require.Contains(t, string(picture), ">"+p.Title+"<")
	}
}
