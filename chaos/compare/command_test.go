package compare

import (
	"bytes"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/quorumlock/redlock/chaos/internal/cli"
	"github.com/quorumlock/redlock/internal/redistest"
)

// pages runs the command, and returns the pages that it wrote.
func pages(t *testing.T, args ...string) (html, md string) {
	t.Helper()
	dir := t.TempDir()
	names := []string{filepath.Join(dir, "page.html"), filepath.Join(dir, "page.md")}
	var stdout, stderr bytes.Buffer
	code := Main(t.Context(), append([]string{"-html", names[0], "-md", names[1], "-bench", dir}, args...), &stdout, &stderr)
	require.Zero(t, code, stderr.String())
	var texts []string
	for _, name := range names {
		text, err := os.ReadFile(name)
		require.NoError(t, err)
		require.Contains(t, stdout.String(), name)
		texts = append(texts, string(text))
	}
	return texts[0], texts[1]
}

// has is require.Contains for pages, which nobody wants to read in a log.
func has(t *testing.T, page, want string) {
	t.Helper()
	require.True(t, strings.Contains(page, want), "the page has no %q", want)
}

// rowOf returns the cells of a row of the first table in which it is.
func rowOf(t *testing.T, md, title string) []string {
	t.Helper()
	for line := range strings.Lines(md) {
		if strings.HasPrefix(line, "| **"+title+"**") {
			cells := strings.Split(strings.Trim(strings.TrimSpace(line), "|"), "|")
			for i := range cells {
				cells[i] = strings.TrimSpace(cells[i])
			}
			return cells[1:]
		}
	}
	require.Fail(t, "no such row", title)
	return nil
}

// checkPages checks what every run's pages have.
func checkPages(t *testing.T, html, md string, variants int) {
	t.Helper()
	for _, away := range []string{"http://", "https://", "<script", "src=", "@import", "url(", "<link"} {
		require.False(t, strings.Contains(html, away), "a page on its own has no %s", away)
	}
	lead, _, _ := strings.Cut(md, "\n")
	require.Contains(t, lead, "While one server failed in each of the ways below, one Redis gave out no lock for up to ")
	has(t, html, `<p class="lead">`+lead)
	require.Equal(t, variants, strings.Count(html, "second by second\""), "figures")
	for _, page := range []string{html, md} {
		for _, want := range []string{"Quorum of three", "go run ./chaos compare -html ", "eed 3", "redsync, three: the bench module"} {
			has(t, page, want)
		}
	}
	for _, title := range []string{"Stale writes with fencing", "Tokens out of order"} {
		cells := rowOf(t, md, title)
		require.Len(t, cells, variants)
		for _, c := range cells {
			require.Equal(t, "0", c, title)
		}
	}
	// On a machine that is busy enough an instance that shares this process may miss
	// every time-out; not all of them in all variants.
	require.Regexp(t, `[1-9]\d*(\.\d)? %`, strings.Join(rowOf(t, md, "Availability through all faults"), " "), "there were locks")
}

// The whole command, on servers; a bench module that can't be built is left out.
func TestTheComparisonIsWritten(t *testing.T) {
	redistest.Need(t)
	html, md := pages(t, "-quick", "-seed", "3")
	checkPages(t, html, md, 4)
	for _, title := range []string{"Commands per lock", "Servers' CPU per lock"} {
		for _, c := range rowOf(t, md, title) {
			require.NotEqual(t, none, c, title)
		}
	}
	failover := rowOf(t, md, "Failover loses the last writes")
	require.Contains(t, failover[0], "no replica")
	require.Contains(t, failover[1], "%")
	has(t, html, "one server&#39;s clock jumps.") // left out
	has(t, html, `<rect class="quarantine"`)
}

// Without redis-server on the machine it is on embedded instances, and says what
// these can't show.
func TestWithoutServersTheComparisonIsOnEmbeddedInstances(t *testing.T) {
	t.Setenv("PATH", t.TempDir())
	t.Setenv("REDLOCK_REDIS_SERVER", "")
	html, md := pages(t, "-quick", "-seed", "3", "-variants", "one,failover,three,redsync-three")
	checkPages(t, html, md, 2)
	for _, page := range []string{html, md} {
		has(t, page, "as there is no redis-server on PATH")
		has(t, page, "One Redis with failover: an embedded instance has no replica.")
		has(t, page, "ailover loses the last writes: an embedded instance can")
	}
	require.Equal(t, []string{none, none}, rowOf(t, md, "Servers' CPU per lock"))
}

func TestAMistakeIsOneClearLine(t *testing.T) {
	dir := t.TempDir()
	plain := filepath.Join(dir, "plain.md")
	require.NoError(t, os.WriteFile(plain, []byte("no markers"), 0o600))
	for _, c := range []struct {
		name, want string
		args       []string
		server     string
	}{
		{name: "an unknown variant", args: []string{"-variants", "one,six"}, want: `chaos compare: there is no variant "six", but one, failover, three, five, redsync-failover, redsync-three`},
		{name: "an unknown flag", args: []string{"-fast"}, want: "chaos compare: flag provided but not defined: -fast; -h lists the flags"},
		{name: "a seed that is none", args: []string{"-seed", "x"}, want: `chaos compare: invalid value "x" for flag -seed: parse error; -h lists the flags`},
		{name: "an argument", args: []string{"three"}, want: `chaos compare: there are no arguments beside flags: ["three"]`},
		{name: "a directory that is not there", args: []string{"-html", filepath.Join(dir, "no", "page.html")}, want: "chaos compare: can't write " + filepath.Join(dir, "no", "page.html")},
		{name: "a directory for a file", args: []string{"-md", dir}, want: "chaos compare: " + dir + " is a directory"},
		{name: "a document that is not there", args: []string{"-doc", filepath.Join(dir, "no.md")}, want: "chaos compare: open " + filepath.Join(dir, "no.md")},
		{name: "a document with no place", args: []string{"-doc", plain}, want: "chaos compare: " + plain + " has no <!-- compare -->"},
		{name: "a server that is not there", args: nil, server: "no-such-server", want: "chaos compare: REDLOCK_REDIS_SERVER: "},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Setenv("REDLOCK_REDIS_SERVER", c.server)
			var stdout, stderr bytes.Buffer
			defaults := []string{"-html", filepath.Join(dir, "page.html"), "-md", filepath.Join(dir, "page.md")}
			require.Equal(t, cli.Usage, Main(t.Context(), append(defaults, c.args...), &stdout, &stderr))
			require.True(t, strings.HasPrefix(stderr.String(), c.want), stderr.String())
			require.Equal(t, 1, strings.Count(stderr.String(), "\n"), stderr.String())
			require.Empty(t, stdout.String())
		})
	}
	files, err := os.ReadDir(dir)
	require.NoError(t, err)
	require.Len(t, files, 1, "nothing was written")
}

func TestHelpListsTheFlags(t *testing.T) {
	var stdout, stderr bytes.Buffer
	require.Zero(t, Main(t.Context(), []string{"-h"}, &stdout, &stderr))
	for _, want := range []string{"Usage: go run ./chaos compare", "-seed", "-quick", "-variants"} {
		require.Contains(t, stderr.String(), want)
	}
}

func TestADocumentQuotesTheResult(t *testing.T) {
	name := filepath.Join(t.TempDir(), "doc.md")
	require.NoError(t, os.WriteFile(name, []byte("before\n<!-- compare -->\nold $1\n<!-- /compare -->\nafter\n"), 0o600))
	text, err := quoted(name, "new $1")
	require.NoError(t, err)
	require.Equal(t, "before\n<!-- compare -->\n\nnew $1\n\n<!-- /compare -->\nafter\n", string(text))
}
