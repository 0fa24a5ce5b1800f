package redlock

import (
	"strconv"
	"strings"
	"time"
)

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

// A serverInfo is what a server tells of itself.
type serverInfo struct {
	runID   string // a new one for each start; empty where it does not tell
	started time.Time
	tells   bool // started is known
}

// newServerInfo reads an answer to INFO server that came at now. The start is the
// beginning of the second in which it lies, as the server counts its uptime in
// whole seconds, on our clock. A negative uptime is that of a server whose clock
// was set back: it has started, at the latest, now.
func newServerInfo(fields map[string]string, now time.Time) serverInfo {
	s := serverInfo{runID: fields["run_id"]}
	seconds, err := strconv.ParseInt(fields["uptime_in_seconds"], 10, 32)
	if err != nil {
		return s
	}
	s.started, s.tells = now, true
	if seconds < 0 {
		return s
	}
	uptime := time.Duration(seconds) * time.Second
	if micros, err := strconv.ParseUint(fields["server_time_usec"], 10, 63); err == nil {
		uptime += time.Duration(micros%1e6) * time.Microsecond //nolint:gosec // below a second
	}
	s.started = now.Add(-uptime)
	return s
}
