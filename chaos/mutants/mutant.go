package mutants

import (
	"fmt"
	"os"
	"path"
	"path/filepath"
	"strings"
)

// A Mutant is one fault of the library.
type Mutant struct {
	Name     string
	Danger   string   // what it does to whom
	File     string   // from the root of the module, with slashes: of Go, or the script
	Old, New string   // Old occurs in File exactly once; in one of Go, in a function
	Tests    []string // that fail with it, in the package of File, or in the root for the script
	Unseen   string   // why the simulation does not find it; empty: it does
}

// Package is the directory of m's tests, from the root of the module.
func (m *Mutant) Package() string {
	if m.scripted() {
		return "."
	}
	return path.Dir(m.File)
}

// pattern selects the tests of m.
func (m *Mutant) pattern() string { return "^(" + strings.Join(m.Tests, "|") + ")$" }

// scripted reports whether m is in the script, which only the whole stack runs.
func (m *Mutant) scripted() bool { return m.File == script }

// apply returns the text of m's file under root, with the fault in it and without, and
// where the fault begins.
func (m *Mutant) apply(root string) (mutated, original string, at int, err error) {
	text, err := os.ReadFile(filepath.Join(root, filepath.FromSlash(m.File)))
	if err != nil {
		return "", "", 0, fmt.Errorf("%s: %w", m.Name, err)
	}
	original = string(text)
	if n := strings.Count(original, m.Old); n != 1 {
		return "", "", 0, fmt.Errorf("%s: the old text occurs %d times in %s, and not once", m.Name, n, m.File)
	}
	return strings.Replace(original, m.Old, m.New, 1), original, strings.Index(original, m.Old), nil
}
