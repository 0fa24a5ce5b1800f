package redlock

import "strings"

// parseInfo reads an answer to INFO: lines of name:value.
func parseInfo(text string) map[string]string {
	fields := map[string]string{}
	for line := range strings.Lines(text) {
		name, value, found := strings.Cut(strings.TrimRight(line, "\r\n"), ":")
		if found && !strings.HasPrefix(name, "#") {
			fields[name] = value
		}
	}
	return fields
}
