package fence_test

import (
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// What docs/fencing.md shows is part of an example, which compiles and runs.
func TestTheCodeInTheDocsIsThatOfTheExamples(t *testing.T) {
	page, err := os.ReadFile("../docs/fencing.md")
	require.NoError(t, err)
	files, err := filepath.Glob("*/*_test.go")
	require.NoError(t, err)
	var examples strings.Builder
	for _, file := range append(files, "example_test.go") {
		text, err := os.ReadFile(file)
		require.NoError(t, err)
		examples.WriteString(flat(string(text)))
	}
	blocks := regexp.MustCompile("(?s)```go\n(.*?)```").FindAllStringSubmatch(string(page), -1)
	require.NotEmpty(t, blocks)
	for _, block := range blocks {
		require.Contains(t, examples.String(), flat(block[1]))
	}
}

// flat returns text without its indentation.
func flat(text string) string {
	lines := strings.Split(text, "\n")
	for i, line := range lines {
		lines[i] = strings.TrimSpace(line)
	}
	return strings.Join(lines, "\n")
}
