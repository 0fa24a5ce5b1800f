package control

import (
	"os"
	"path/filepath"

	"github.com/quorumlock/redlock/internal/redistest"
)

// A server appends every write to its file before it answers, and the last bytes
// are torn off: by a disk that confirms what it has not written, or by a repair. It
// starts as if nothing was, from what is whole.
//
// The control is the library without its quarantine.
var tornAOF = Scenario{
	Name:    "torn-aof",
	Shows:   "the tail of a server's append-only file is torn",
	Source:  "https://redis.io/docs/latest/operate/oss_and_stack/management/persistence/",
	Off:     "the quarantine",
	Break:   tear,
	Protect: []Protection{Fencing, Quarantine},
}

func tear(x *Stage) {
	servers := x.Servers(3, "--appendonly", "yes", "--appendfsync", "always")
	first := x.BareMajority(servers)
	x.Fault(func() {
		b := servers[1]
		x.must(b.Kill())
		file := appendOnlyFile(x, b)
		x.must(os.Truncate(file, size(x, file)-1))
		x.must(b.Restart())
	})
	x.Second(servers, first)
}

// appendOnlyFile returns the file to which a server appends.
func appendOnlyFile(x *Stage, s *redistest.Server) string {
	files, err := filepath.Glob(filepath.Join(s.Dir(), "appendonlydir", "*.incr.aof"))
	x.must(err)
	if len(files) != 1 {
		x.Fatalf("not one append-only file: %v", files)
	}
	return files[0]
}

func size(x *Stage, file string) int64 {
	stat, err := os.Stat(file)
	x.must(err)
	return stat.Size()
}
