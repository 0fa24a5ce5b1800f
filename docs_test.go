package redlock_test

import (
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/quorumlock/redlock/internal/doctest"
	"github.com/quorumlock/redlock/internal/redistest"
)

// eachFile calls f for the files of the repository whose names end in suffix.
func eachFile(t *testing.T, suffix string, f func(path, text string)) {
	t.Helper()
	require.NoError(t, filepath.WalkDir(".", func(path string, d fs.DirEntry, err error) error {
		switch {
		case err != nil:
			return err
		case d.IsDir() && (strings.HasPrefix(d.Name(), ".") && path != "." || d.Name() == "node_modules"):
			return filepath.SkipDir
		case d.IsDir() || !strings.HasSuffix(path, suffix):
			return nil
		}
		text, err := os.ReadFile(path)
		f(path, string(text))
		return err
	}))
}

// A safety claim names the test that shows it: then that test exists.
func TestTestsThatTheDocsNameExist(t *testing.T) {
	tests := map[string]bool{}
	eachFile(t, "_test.go", func(_, text string) {
		for _, m := range regexp.MustCompile(`(?m)^func (Test\w+|Example\w*|Fuzz\w+)\(`).FindAllStringSubmatch(text, -1) {
			tests[m[1]] = true
		}
	})
	named := 0
	eachFile(t, ".md", func(path, text string) {
		for _, m := range regexp.MustCompile("`(Test[A-Z]\\w+)`").FindAllStringSubmatch(text, -1) {
			named++
			require.True(t, tests[m[1]], "%s names %s, which does not exist", path, m[1])
		}
	})
	require.Positive(t, named)
}

// Mermaid takes a semicolon for the end of a line, and a # for the beginning of a
// character's code: a diagram with either in a text is an error message on the page.
func TestDiagramsHaveNothingThatEndsALine(t *testing.T) {
	diagrams := 0
	eachFile(t, ".md", func(path, text string) {
		for _, m := range regexp.MustCompile("(?s)```mermaid\n(.*?)```").FindAllStringSubmatch(text, -1) {
			diagrams++
			require.NotRegexp(t, "[;#]", m[1], path)
		}
	})
	require.Positive(t, diagrams)
}

// The code on the pages compiles; here that of the root module's packages. What
// docs/fencing.md shows is part of examples, says a test in fence.
func TestTheCodeOnThePagesCompiles(t *testing.T) {
	t.Parallel()
	doctest.Check(t, ".", ".", "docs/fencing.md")
}

// quickStart returns the program of the README.
func quickStart(t *testing.T) string {
	t.Helper()
	text, err := os.ReadFile("README.md")
	require.NoError(t, err)
	m := regexp.MustCompile("(?s)```go\n(package main\n.*?)```").FindSubmatch(text)
	require.NotNil(t, m)
	return string(m[1])
}

// What a newcomer copies from the README works, with one server dead, and with
// two; with three it says why not.
func TestTheQuickStartDoesWhatTheReadmeSays(t *testing.T) {
	servers := redistest.StartN(t, 5)
	program := quickStart(t)
	for i, s := range servers {
		address := fmt.Sprint("127.0.0.1:", 7001+i)
		require.Contains(t, program, address)
		program = strings.ReplaceAll(program, address, s.Addr())
	}
	source, binary := filepath.Join(t.TempDir(), "main.go"), filepath.Join(t.TempDir(), "quickstart")
	require.NoError(t, os.WriteFile(source, []byte(program), 0o600))
	out, err := exec.Command("go", "build", "-o", binary, source).CombinedOutput()
	require.NoError(t, err, string(out))

	t.Parallel() // from here on: the compiler takes every processor for half a minute
	for dead := range 4 {
		if dead > 0 {
			require.NoError(t, servers[dead-1].Kill())
		}
		out, err := exec.Command(binary).CombinedOutput() // the first one waits for the quarantine
		if dead <= 2 {
			require.NoError(t, err, string(out))
			require.Contains(t, string(out), "held for 9.")
			continue
		}
		require.Error(t, err)
		require.Contains(t, string(out), "context deadline exceeded; before that: no quorum: acquire \"invoice-42\": 2 of 5 granted, 0 refused, 3 needed:")
		require.Equal(t, 3, strings.Count(string(out), "connection refused"))
	}
}

// docs/configuration.md lists the options that there are, and no others.
func TestEveryOptionIsOnThePage(t *testing.T) {
	page, err := os.ReadFile("docs/configuration.md")
	require.NoError(t, err)
	ofLocker, ofAcquire, found := strings.Cut(string(page), "## Of one acquire")
	require.True(t, found)
	ofAcquire, _, _ = strings.Cut(ofAcquire, "## Arguments")
	names := func(pattern, text string) (names []string) {
		for _, m := range regexp.MustCompile(pattern).FindAllStringSubmatch(text, -1) {
			names = append(names, m[1])
		}
		return names
	}
	var code strings.Builder
	eachFile(t, ".go", func(path, text string) {
		if !strings.Contains(path, "/") && !strings.HasSuffix(path, "_test.go") {
			code.WriteString(text)
		}
	})
	for kind, part := range map[string]string{"Option": ofLocker, "AcquireOption": ofAcquire} {
		exported := names(`(?m)^func (With\w+)\(.*\) `+kind+` \{`, code.String())
		require.NotEmpty(t, exported)
		require.ElementsMatch(t, exported, names("(?m)^\\| `(With\\w+)\\(", part), kind)
	}
}

// The README is what a newcomer reads first: short, and the way to every page.
func TestTheReadmeIsShortAndLeadsToEveryPage(t *testing.T) {
	text, err := os.ReadFile("README.md")
	require.NoError(t, err)
	require.LessOrEqual(t, strings.Count(string(text), "\n"), 250)
	pages, err := filepath.Glob("docs/*.md")
	require.NoError(t, err)
	require.NotEmpty(t, pages)
	for _, page := range pages {
		require.True(t, strings.Contains(string(text), "("+page), "the README has no link to %s", page)
	}
}
