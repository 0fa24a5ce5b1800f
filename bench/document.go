package main

import (
	"fmt"
	"os"
	"regexp"
	"strings"
)

// quotation is a place in a document that quotes a part of a report, between two comments that no reader sees.
var quotation = regexp.MustCompile(`(?s)(<!-- bench ([a-z]+) -->\n).*?(<!-- /bench -->)`)

// quote replaces what the document quotes by parts. All that it quotes must be of one run: a document with figures of
// several is refused.
func quote(document string, parts []part) (string, error) {
	texts := make(map[string]string)
	for _, p := range parts {
		texts[p.name] = p.text
	}
	var missing []string
	quoted := quotation.ReplaceAllStringFunc(document, func(place string) string {
		m := quotation.FindStringSubmatch(place)
		text, ok := texts[m[2]]
		if !ok {
			missing = append(missing, m[2])
		}
		return m[1] + "\n" + text + "\n" + m[3]
	})
	if len(missing) > 0 {
		return "", fmt.Errorf("the document quotes what this run did not measure: %s", strings.Join(missing, ", "))
	}
	return quoted, nil
}

// quoteIn does it to a file; an empty name is none.
func quoteIn(file string, parts []part) error {
	if file == "" {
		return nil
	}
	text, err := os.ReadFile(file)
	if err != nil {
		return err
	}
	quoted, err := quote(string(text), parts)
	if err != nil {
		return fmt.Errorf("%s: %w", file, err)
	}
	return os.WriteFile(file, []byte(quoted), 0o644)
}
