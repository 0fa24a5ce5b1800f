// Package doctest exists so that the Go code in the documentation compiles. Each
// module of the repository checks the blocks whose packages it can import.
//
// A block is a file, if it begins with a package clause; declarations, if it begins
// with func, type or import; and otherwise what stands in a function that returns an
// error. It finds ctx, locker, lock and err; a comment in front of it may give it
// more:
//
//	<!-- given: var db *sql.DB -->
//
// A page's reader does not see that. Variables that are not used are no error: what
// is shown ends somewhere.
package doctest

import (
	"bytes"
	"fmt"
	"go/ast"
	"go/importer"
	"go/parser"
	"go/token"
	"go/types"
	"io"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
)

// packages are what blocks may use without an import, by name.
var packages = map[string]string{
	"context": "context", "errors": "errors", "fmt": "fmt", "http": "net/http", "log": "log", "os": "os", "slog": "log/slog", "sql": "database/sql",
	"synctest": "testing/synctest", "testing": "testing", "time": "time", "tls": "crypto/tls",

	"redis":       "github.com/redis/go-redis/v9",
	"redlock":     "github.com/quorumlock/redlock",
	"redlocktest": "github.com/quorumlock/redlock/redlocktest",
	"fence":       "github.com/quorumlock/redlock/fence",
	"httpfence":   "github.com/quorumlock/redlock/fence/httpfence",
	"redisfence":  "github.com/quorumlock/redlock/fence/redisfence",
	"source":      "github.com/quorumlock/redlock/fence/source",
	"sqlfence":    "github.com/quorumlock/redlock/fence/sqlfence",
}

// nested are those that the root module can't import, and the directory of the module
// that can, and has to check the blocks that use them.
var nested = map[string]struct{ path, module string }{
	"gocron":       {"github.com/go-co-op/gocron/v2", "interop"},
	"redislock":    {"github.com/bsm/redislock", "interop"},
	"redsync":      {"github.com/go-redsync/redsync/v4", "interop"},
	"redsyncredis": {"github.com/go-redsync/redsync/v4/redis", "interop"},
	"rueidis":      {"github.com/redis/rueidis", "interop"},
	"rueidislock":  {"github.com/redis/rueidis/rueidislock", "interop"},

	"redlockotel": {"github.com/quorumlock/redlock/redlockotel", "redlockotel"},
}

// A block is one piece of Go code of a page.
type block struct {
	page  string // and line
	given string
	code  string
}

// uses returns the names of packages that the block uses, of those in the tables.
func (b *block) uses() (names []string) {
	for _, m := range regexp.MustCompile(`\b([a-z]\w*)\.[A-Z]`).FindAllStringSubmatch(b.given+b.code, -1) {
		if !slices.Contains(names, m[1]) && (packages[m[1]] != "" || nested[m[1]].path != "") {
			names = append(names, m[1])
		}
	}
	return names
}

// module returns the directory of the module that checks the block.
func (b *block) module() string {
	for _, name := range b.uses() {
		if n, ok := nested[name]; ok {
			return n.module
		}
	}
	return "."
}

// blocks returns the Go code of all pages of the repository at root.
func blocks(tb testing.TB, root string) (all []block) {
	tb.Helper()
	fence := regexp.MustCompile("(?s)(?:<!-- given: (.*?) -->\n)?```go\n(.*?)```")
	err := filepath.WalkDir(root, func(path string, d fs.DirEntry, err error) error {
		switch {
		case err != nil:
			return err
		case d.IsDir() && path != root && (strings.HasPrefix(d.Name(), ".") || d.Name() == "node_modules"):
			return filepath.SkipDir
		case filepath.Ext(path) != ".md":
			return nil
		}
		text, err := os.ReadFile(path)
		if err != nil {
			return err
		}
		page, err := filepath.Rel(root, path)
		for _, m := range fence.FindAllSubmatchIndex(text, -1) {
			b := block{page: fmt.Sprintf("%s:%d", page, 1+bytes.Count(text[:m[4]], []byte("\n"))), code: string(text[m[4]:m[5]])}
			if m[2] >= 0 {
				b.given = string(text[m[2]:m[3]])
			}
			all = append(all, b)
		}
		return err
	})
	if err != nil {
		tb.Fatal(err)
	}
	return all
}

// Check compiles the blocks that are for this module to check; root is where the
// repository is, and module the directory of the module in it. skip names pages whose
// code another test compares with that of examples.
func Check(tb testing.TB, root, module string, skip ...string) {
	tb.Helper()
	var mine []block
	for _, b := range blocks(tb, root) {
		page, _, _ := strings.Cut(b.page, ":")
		if slices.Contains(skip, page) {
			continue
		}
		if m := b.module(); m != module {
			if module == "." && !checks(filepath.Join(root, m)) {
				tb.Errorf("%s: nobody compiles it: no test of the module %s calls doctest.Check", b.page, m)
			}
			continue
		}
		mine = append(mine, b)
	}
	if len(mine) == 0 {
		tb.Fatalf("doctest: no Go code for the module %s to compile", module)
	}
	imports := exports(tb, mine)
	for _, b := range mine {
		if err := b.check(imports); err != nil {
			tb.Errorf("%s: %v", b.page, err)
		}
	}
}

// checks reports whether a test in dir calls Check.
func checks(dir string) bool {
	files, _ := filepath.Glob(filepath.Join(dir, "*_test.go"))
	return slices.ContainsFunc(files, func(file string) bool {
		text, err := os.ReadFile(file)
		return err == nil && bytes.Contains(text, []byte("doctest.Check("))
	})
}

// source returns the block as a file.
func (b *block) source() string {
	switch first, _, _ := strings.Cut(strings.TrimSpace(b.code), " "); first {
	case "package":
		return b.code
	case "import":
		return "package docs\n" + b.code
	case "func", "type":
		return b.header() + b.code
	}
	return b.header() + "func _() error {\n" + b.code + "\nreturn nil\n}\n"
}

// header returns the imports, and what the block finds. It is one line, so that the
// lines of an error are those of the block, and one more.
func (b *block) header() string {
	s := `package docs; import ("context"; "github.com/quorumlock/redlock"; `
	for _, name := range b.uses() {
		if name != "context" && name != "redlock" {
			s += fmt.Sprintf("%s %q; ", name, packages[name]+nested[name].path)
		}
	}
	s += "); var (ctx context.Context; locker *redlock.Locker; lock *redlock.Lock; err error); "
	return s + strings.ReplaceAll(b.given, "\n", "; ") + "\n"
}

// check compiles the block, but for what is not used in it.
func (b *block) check(imports types.Importer) error {
	fset := token.NewFileSet()
	file, err := parser.ParseFile(fset, "block", b.source(), 0)
	if err != nil {
		return err
	}
	var first error
	config := types.Config{Importer: imports, Error: func(err error) {
		if e, ok := err.(types.Error); first == nil && (!ok || !e.Soft) { //nolint:errorlint // it is documented to be one
			first = err
		}
	}}
	_, _ = config.Check("docs", fset, []*ast.File{file}, nil) // Error has its errors
	return first
}

// exports returns an importer of what the blocks use, and of all that this needs, as
// the compiler has it.
func exports(tb testing.TB, blocks []block) types.Importer {
	tb.Helper()
	args := []string{"list", "-export", "-deps", "-f", `{{if .Export}}{{.ImportPath}} {{.Export}}{{end}}`, packages["redlock"], "context", "net/http/httptest", "sync"}
	for _, b := range blocks {
		for _, name := range b.uses() {
			args = append(args, packages[name]+nested[name].path)
		}
	}
	out, err := exec.Command("go", args...).Output()
	if err != nil {
		tb.Fatalf("go list: %v", err)
	}
	files := map[string]string{}
	for line := range strings.Lines(string(out)) {
		path, file, _ := strings.Cut(strings.TrimSpace(line), " ")
		files[path] = file
	}
	return importer.ForCompiler(token.NewFileSet(), "gc", func(path string) (io.ReadCloser, error) {
		if files[path] == "" {
			return nil, fmt.Errorf("doctest knows no package %s", path)
		}
		return os.Open(files[path])
	})
}
