package mutants

import (
	"encoding/json"
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"os"
	"path/filepath"
	"strings"
)

// The compiler and the linker take ten times as long as the tests that find a mutant.
// So all mutants go into one binary: each function that one of them changes gets its
// changed body in front of its own, behind a switch, which is set by the environment
// when the binary is run. (Untch, Offutt and Harrold, Mutation analysis using mutant
// schemata, 1993.)

const (
	switchEnv  = "REDLOCK_MUTANT" // the name of the mutant; empty: none
	switchFile = "mutant_switch.go"
)

const switchText = `package %s

import "os"

var activeMutant = os.Getenv(%q)
`

// Where the library keeps its script, and the same with a switch.
const (
	scriptOwner = "scripts.go"
	scriptVar   = "var batchText []byte"
	scriptFork  = "var embeddedText []byte\n\nvar batchText = mutatedScript(embeddedText)"
)

// schemata writes the files that mutants change, and what tells the go command of them,
// into dir, and returns the path of the latter.
func schemata(root, dir string, mutants []Mutant) (overlay string, err error) {
	changed := map[string]string{} // by file
	scripts := map[string]string{} // by mutant
	packages := map[string]bool{}
	for _, m := range mutants {
		mutated, original, at, err := m.apply(root)
		if err != nil {
			return "", err
		}
		packages[m.Package()] = true
		if m.scripted() {
			scripts[m.Name] = mutated
			continue
		}
		begin, end, void, err := function(m.File, original, at, len(m.Old))
		if err != nil {
			return "", fmt.Errorf("%s: %w", m.Name, err)
		}
		body := mutated[begin : end+len(mutated)-len(original)]
		if void {
			body += "\nreturn"
		}
		if changed[m.File] == "" {
			changed[m.File] = original
		}
		// Before the function's own body, which other mutants may have moved.
		head := original[strings.LastIndex(original[:begin], "\nfunc "):begin]
		changed[m.File] = strings.Replace(changed[m.File], head, fmt.Sprintf("%s\nif activeMutant == %q {%s\n}\n", head, m.Name, body), 1)
	}

	replace := map[string]string{}
	write := func(file, text string) error {
		path := filepath.Join(dir, strings.ReplaceAll(file, "/", "-"))
		replace[filepath.Join(root, filepath.FromSlash(file))] = path
		return os.WriteFile(path, []byte(text), 0o600)
	}
	for p := range packages {
		file, name, more := switchFile, "redlock", scriptSwitch(scripts)
		if p != "." {
			file, name, more = p+"/"+switchFile, filepath.Base(p), ""
		}
		if err := write(file, fmt.Sprintf(switchText, name, switchEnv)+more); err != nil {
			return "", err
		}
	}
	if len(scripts) > 0 {
		text := changed[scriptOwner]
		if text == "" {
			b, err := os.ReadFile(filepath.Join(root, scriptOwner))
			if err != nil {
				return "", err
			}
			text = string(b)
		}
		if strings.Count(text, scriptVar) != 1 {
			return "", fmt.Errorf("%s has no %q", scriptOwner, scriptVar)
		}
		changed[scriptOwner] = strings.Replace(text, scriptVar, scriptFork, 1)
	}
	for file, text := range changed {
		if err := write(file, text); err != nil {
			return "", err
		}
	}
	list, err := json.Marshal(map[string]any{"Replace": replace})
	if err != nil {
		return "", err
	}
	overlay = filepath.Join(dir, "overlay.json")
	return overlay, os.WriteFile(overlay, list, 0o600)
}

// scriptSwitch is the Go text that chooses a script.
func scriptSwitch(scripts map[string]string) string {
	if len(scripts) == 0 {
		return ""
	}
	var b strings.Builder
	b.WriteString("\nfunc mutatedScript(original []byte) []byte {\n\tswitch activeMutant {\n")
	for name, text := range scripts {
		fmt.Fprintf(&b, "\tcase %q:\n\t\treturn []byte(%q)\n", name, text)
	}
	b.WriteString("\t}\n\treturn original\n}\n")
	return b.String()
}

// function returns where the body of the function in which text[at:at+n] is begins and
// ends, between its braces, and whether it returns nothing.
func function(name, text string, at, n int) (begin, end int, void bool, err error) {
	files := token.NewFileSet()
	f, err := parser.ParseFile(files, name, text, parser.SkipObjectResolution)
	if err != nil {
		return 0, 0, false, err
	}
	for _, d := range f.Decls {
		d, ok := d.(*ast.FuncDecl)
		if !ok || d.Body == nil {
			continue
		}
		begin, end = files.Position(d.Body.Lbrace).Offset+1, files.Position(d.Body.Rbrace).Offset
		if begin <= at && at+n <= end {
			return begin, end, d.Type.Results == nil, nil
		}
	}
	return 0, 0, false, fmt.Errorf("the old text is not inside a function of %s", name)
}
