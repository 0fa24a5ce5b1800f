package doctest

import (
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// A recorder keeps what a test is told.
type recorder struct {
	testing.TB
	said []string
}

func (r *recorder) Errorf(format string, args ...any) {
	r.said = append(r.said, fmt.Sprintf(format, args...))
}

func (r *recorder) Fatalf(format string, args ...any) {
	r.Errorf(format, args...)
	runtime.Goexit()
}

// said returns what Check says about a page of these blocks.
func said(t *testing.T, page string) string {
	t.Helper()
	dir := t.TempDir()
	require.NoError(t, os.WriteFile(filepath.Join(dir, "page.md"), []byte(strings.ReplaceAll(page, "~~~", "```")), 0o600))
	r := &recorder{TB: t}
	done := make(chan struct{})
	go func() {
		defer close(done)
		Check(r, dir, ".")
	}()
	<-done
	return strings.Join(r.said, "\n")
}

func TestCodeThatCompilesIsLeftAlone(t *testing.T) {
	for _, page := range []string{
		"~~~go\nlock, err := locker.TryAcquire(ctx, \"r\", time.Second)\n~~~",
		"~~~go\nif err != nil {\n\treturn err\n}\n~~~",
		"~~~go\nfunc f(l *redlock.Locker) error { return l.Close() }\n~~~",
		"~~~go\npackage main\n\nimport \"fmt\"\n\nfunc main() { fmt.Println() }\n~~~",
		"<!-- given: func work(context.Context) error -->\n~~~go\nerr := work(ctx)\n~~~",
	} {
		require.Empty(t, said(t, page), page)
	}
}

func TestCodeThatDoesNotCompileIsFound(t *testing.T) {
	for page, want := range map[string]string{
		"text\n\n~~~go\nlock, err := locker.TryAcquire(ctx, \"r\")\n~~~":           "page.md:4: ",
		"~~~go\nlock.Unlock()\n~~~":                                                "lock.Unlock undefined",
		"~~~go\nwork(ctx)\n~~~":                                                    "undefined: work",
		"~~~go\nif err != nil {\n~~~":                                              "expected",
		"~~~go\nredlock.WithRetries(3)\n~~~":                                       "undefined: redlock.WithRetries",
		"~~~go\nvar n int = \"\"\n~~~":                                             "cannot use",
		"~~~go\nlock.Release(ctx)\n~~~\n\n~~~go\nm := redsync.New()\n~~~":          "nobody compiles it",
		"~~~go\npackage main\n\nimport \"fmt\"\n\nfunc main() { fmt.Print( }\n~~~": "expected",
		"no code": "no Go code",
	} {
		require.Contains(t, said(t, page), want, page)
	}
}
