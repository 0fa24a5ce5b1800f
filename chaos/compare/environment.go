package compare

import (
	"bufio"
	"cmp"
	"os"
	"os/exec"
	"regexp"
	"runtime"
	"runtime/debug"
	"strings"
	"time"
)

// env is where and how a run was made.
type env struct {
	Command  string
	Seed     uint64
	Date     string
	CPU      string
	Cores    int
	Load     string
	Go       string
	Redis    string
	Versions []string
	Embedded string // why, if the instances are
}

func environment(c *command) env {
	words := []string{"go run ./chaos compare"}
	for _, a := range c.args {
		words = append(words, cmp.Or(a, "''"))
	}
	e := env{
		Command:  strings.Join(words, " "),
		Seed:     c.seed,
		Date:     time.Now().UTC().Format(time.DateOnly),
		CPU:      cpuModel(),
		Cores:    runtime.NumCPU(),
		Load:     loadAverage(),
		Go:       runtime.Version() + " " + runtime.GOOS + "/" + runtime.GOARCH,
		Redis:    redisVersion(),
		Embedded: c.whyEmbedded,
	}
	if build, ok := debug.ReadBuildInfo(); ok {
		for _, m := range build.Deps {
			if strings.HasSuffix(m.Path, "go-redis/v9") || c.embedded && strings.Contains(m.Path, "miniredis") {
				e.Versions = append(e.Versions, m.Path+" "+m.Version)
			}
		}
	}
	return e
}

func cpuModel() string {
	f, err := os.Open("/proc/cpuinfo")
	if err != nil {
		return runtime.GOARCH
	}
	defer f.Close()
	for lines := bufio.NewScanner(f); lines.Scan(); {
		if name, value, _ := strings.Cut(lines.Text(), ":"); strings.TrimSpace(name) == "model name" {
			return strings.TrimSpace(value)
		}
	}
	return runtime.GOARCH
}

// loadAverage says how busy the machine is with other things.
func loadAverage() string {
	text, err := os.ReadFile("/proc/loadavg")
	fields := strings.Fields(string(text))
	if err != nil || len(fields) == 0 {
		return "unknown"
	}
	return fields[0]
}

var versionWord = regexp.MustCompile(`v=(\S+)`)

func redisVersion() string {
	out, err := exec.Command(cmp.Or(os.Getenv("REDLOCK_REDIS_SERVER"), "redis-server"), "--version").Output()
	m := versionWord.FindSubmatch(out)
	if err != nil || m == nil {
		return "unknown"
	}
	return string(m[1])
}
