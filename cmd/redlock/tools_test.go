package main

import (
	"context"
	"encoding/json"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/quorumlock/redlock"
	"github.com/quorumlock/redlock/internal/redistest"
)

const longest = 20 * time.Second // for what must come

func eventually(t *testing.T, condition func() bool) {
	t.Helper()
	require.Eventually(t, condition, longest, 5*time.Millisecond)
}

// call runs the program in this process.
func call(t *testing.T, args ...string) (code int, stdout, stderr string) {
	t.Helper()
	var out, errs terminal
	code = run(t.Context(), args, &out, &errs)
	return code, out.String(), errs.String()
}

// at returns args with a flag for each of the endpoints.
func at(endpoints []string, args ...string) []string {
	for _, e := range endpoints {
		args = append(args, "-e", e)
	}
	return args
}

// requireGolden compares what a command printed, changing parts made equal, with a
// file.
func requireGolden(t *testing.T, name, got string, changing ...string) {
	t.Helper()
	for i := 0; i < len(changing); i += 2 {
		got = regexp.MustCompile(changing[i]).ReplaceAllString(got, changing[i+1])
	}
	golden := filepath.Join("testdata", name)
	if *update {
		require.NoError(t, os.WriteFile(golden, []byte(got), 0o644))
	}
	want, err := os.ReadFile(golden)
	require.NoError(t, err)
	require.Equal(t, string(want), got)
}

func TestCheckExitsByTheWorstFinding(t *testing.T) {
	t.Parallel()
	safe := []string{"--appendonly", "yes", "--appendfsync", "always", "--no-appendfsync-on-rewrite", "no"}
	for _, test := range []struct {
		name, says, quarantine string
		servers                []string
		code                   int
	}{
		{"fit", "\nFit for locks.\n", "0", safe, exitOK},
		{"warnings", "\nFit for locks, with warnings.\n", "1ms", nil, exitWarnings},
		{"unsafe", "\nUnsafe: not fit for locks.\n", "0", append(safe, "--maxmemory", "100mb", "--maxmemory-policy", "allkeys-lru"), exitUnsafe},
	} {
		t.Run(test.name, func(t *testing.T) {
			t.Parallel()
			servers := redistest.StartN(t, 3, test.servers...)
			for _, s := range servers { // its uptime is in whole seconds
				eventually(t, func() bool {
					info, _ := s.MustDo(t, "INFO", "server").(string)
					return !strings.Contains(info, "uptime_in_seconds:0")
				})
			}
			code, stdout, stderr := call(t, at(urls(servers), "check", "--quarantine", test.quarantine)...)
			require.Empty(t, stderr)
			require.True(t, strings.HasSuffix(stdout, test.says), stdout)
			require.Equal(t, test.code, code)
			requireGolden(t, "check-"+test.name+".txt", stdout,
				`127\.0\.0\.1:\d{5}`, "127.0.0.1:#####",
				` \d\.\d\.\d+ +master +\S+ +\S+ +[+-]\S+ `, " VERSION  master  UPTIME  LATENCY  CLOCK ",
				`(?m)^(INSTANCE +GRANTS +)VERSION +ROLE +UPTIME +LATENCY +CLOCK +`, "${1}VERSION  ROLE    UPTIME  LATENCY  CLOCK  ",
				// Of a server that is not the one that the tests usually run on.
				`(?m)^info: version, (?s:.*?)\n\n`, "", `, 1 info\n`, "\n", `  1 info\n`, "  -\n")

			code, stdout, stderr = call(t, at(urls(servers), "check", "--json", "--quarantine", test.quarantine)...)
			require.Empty(t, stderr)
			require.Equal(t, test.code, code)
			var report redlock.Report
			require.NoError(t, json.Unmarshal([]byte(stdout), &report))
			require.Equal(t, 2, report.Quorum)
			require.Len(t, report.Instances, 3)
			require.Equal(t, servers[0].Addr(), report.Instances[0].Instance)
			require.Equal(t, test.code, int(report.Worst()), "0 fit, 1 warnings, 2 unsafe")
		})
	}
}

func TestCheckOfInstancesThatAreDownIsUnsafe(t *testing.T) {
	t.Parallel()
	servers := redistest.StartN(t, 3)
	for _, s := range servers[:2] {
		require.NoError(t, s.Kill())
	}
	code, stdout, _ := call(t, at(urls(servers), "check")...)
	require.Equal(t, exitUnsafe, code)
	require.Contains(t, stdout, "unsafe: quorum, all")
}

func TestCheckJudgesRestartsAsRunDoes(t *testing.T) {
	t.Parallel()
	code, stdout, _ := call(t, at(urls(redistest.StartN(t, 1)), "check")...)
	require.Equal(t, exitWarnings, code)
	require.Contains(t, stdout, "until it has been up for 32s")
}

func TestCheckEndsWhenInterrupted(t *testing.T) {
	t.Parallel()
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	var stdout, stderr terminal
	code := run(ctx, at([]string{redistest.Mute(t)}, "check", "--json"), &stdout, &stderr)
	require.Equal(t, exitInterrupted, code)
	require.Empty(t, stdout.String())
	require.Contains(t, stderr.String(), "context canceled")
}

func locker(t *testing.T, servers []*redistest.Server, opts ...redlock.Option) *redlock.Locker {
	t.Helper()
	l, err := redlock.Open(urls(servers), append(opts, redlock.WithQuarantine(0))...)
	require.NoError(t, err)
	t.Cleanup(func() { _ = l.Close() })
	return l
}

// inspected returns what inspect says of a lock, both ways.
func inspected(t *testing.T, servers []*redistest.Server, args ...string) (i inspection, table string, code int) {
	t.Helper()
	args = at(urls(servers), append([]string{"inspect"}, args...)...)
	code, table, stderr := call(t, args...)
	require.Empty(t, stderr)
	again, text, stderr := call(t, append(args, "--json")...)
	require.Empty(t, stderr)
	require.Equal(t, code, again)
	require.NoError(t, json.Unmarshal([]byte(text), &i))
	return i, table, code
}

func TestInspectFindsTheHolder(t *testing.T) {
	t.Parallel()
	for _, test := range []struct{ prefix, name string }{
		{"", "job"},
		{"app:", "job"},
		{"", "user:{42}:job"},
		{"app:", "{42}"},
		{"", "{}job"},
		{"", "}{"},
		{"", "a{b"},
		{"", "two words\n"},
	} {
		t.Run(test.prefix+test.name, func(t *testing.T) {
			t.Parallel()
			servers := redistest.StartN(t, 3)
			lock, err := locker(t, servers, redlock.WithKeyPrefix(test.prefix)).TryAcquire(t.Context(), test.name, time.Minute)
			require.NoError(t, err)
			eventually(t, func() bool { return servers[2].MustDo(t, "EXISTS", test.prefix+test.name) == int64(1) })
			eventually(t, func() bool { return servers[1].MustDo(t, "EXISTS", test.prefix+test.name) == int64(1) })
			eventually(t, func() bool { return servers[0].MustDo(t, "EXISTS", test.prefix+test.name) == int64(1) })
			i, table, code := inspected(t, servers, "--prefix", test.prefix, test.name)
			require.Equal(t, exitOK, code)
			require.Equal(t, "held", i.Verdict)
			require.Equal(t, test.name, i.Name)
			require.Equal(t, 2, i.Quorum)
			require.Equal(t, redlock.OwnerDigest(lock.Owner()), i.Owner)
			require.Equal(t, lock.FencingToken(), i.Token)
			require.InDelta(t, time.Minute.Milliseconds(), i.LeftMS, 20_000)
			for n, h := range i.Instances {
				require.Equal(t, servers[n].Addr(), h.Instance)
				require.Equal(t, "held", h.State)
				require.Equal(t, i.Owner, h.Owner)
				require.Equal(t, i.Token, h.Fence)
			}
			require.Regexp(t, `\nHeld by `+i.Owner+`, on 3 of 3 instances, for [45]\d\.\d+s more unless it is renewed, with fencing token \d{16}\.\n$`, table)
			require.NotContains(t, table, lock.Owner())
		})
	}
}

func TestInspectOnlyReads(t *testing.T) {
	t.Parallel()
	servers := redistest.StartN(t, 1)
	servers[0].MustDo(t, "CONFIG", "RESETSTAT")
	_, _, _ = inspected(t, servers, "job")
	info, _ := servers[0].MustDo(t, "INFO", "commandstats").(string)
	for _, m := range regexp.MustCompile(`(?m)^cmdstat_([^:]+):`).FindAllStringSubmatch(info, -1) {
		require.Contains(t, []string{"get", "pttl", "hello", "client|setinfo", "select", "config|resetstat", "info"}, m[1])
	}
	require.Contains(t, info, "cmdstat_pttl")
	require.Zero(t, servers[0].MustDo(t, "DBSIZE"))
}

func TestInspectTellsTheStatesApart(t *testing.T) {
	t.Parallel()
	for _, test := range []struct {
		name    string
		owners  string // of each instance: a letter, - for none, ! for one that is down, # for what is no lock
		verdict string
		code    int
		says    string
	}{
		{"free", "-----", "free", exitOK, "Free."},
		{"held", "aaaaa", "held", exitOK, "on 5 of 5 instances"},
		{"held by a bare majority", "aaab-", "held", exitOK, "on 3 of 5 instances"},
		{"held, two down", "aaa!!", "held", exitOK, "on 3 of 5 instances"},
		{"left over", "a---b", "free", exitOK, "Free: 2 of 5 instances have an owner, which is no majority."},
		{"free, two down", "---!!", "free", exitOK, "Free."},
		{"split", "aabb-", "split", exitOK, "Split: nobody has the 3 of 5 instances that hold it."},
		{"split between owners and nobody", "aa--b", "split", exitOK, "Split:"},
		{"one down, held or not", "aabb!", "unknown", exitUnavailable, "Unknown: 4 of 5 instances answer, which is too few to tell."},
		{"three down", "aa!!!", "unknown", exitUnavailable, "Unknown: 2 of 5 instances answer"},
		{"all down", "!!!", "unknown", exitUnavailable, "Unknown: 0 of 3"},
		{"one down, in any case split", "abc!-", "split", exitOK, "Split:"},
		{"a list in its place", "aa#", "held", exitOK, "on 2 of 3 instances"},
		{"one instance", "a", "held", exitOK, "on 1 of 1 instances"},
	} {
		t.Run(test.name, func(t *testing.T) {
			t.Parallel()
			servers := redistest.StartN(t, len(test.owners))
			for n, owner := range test.owners {
				switch owner {
				case '-':
				case '!':
					require.NoError(t, servers[n].Kill())
				case '#':
					servers[n].MustDo(t, "LPUSH", "job", "x")
				default:
					servers[n].MustDo(t, "SET", "job", "owner "+string(owner), "PX", "60000")
				}
			}
			i, table, code := inspected(t, servers, "job")
			require.Equal(t, test.verdict, i.Verdict)
			require.Equal(t, test.code, code)
			require.Contains(t, table, test.says)
			require.NotContains(t, table, "owner ")
			for n, owner := range test.owners {
				h := i.Instances[n]
				switch owner {
				case '-':
					require.Equal(t, "free", h.State)
				case '!', '#':
					require.Equal(t, "failed", h.State)
					require.NotEmpty(t, h.Error)
				default:
					require.Equal(t, redlock.OwnerDigest("owner "+string(owner)), h.Owner)
				}
			}
		})
	}
}

// The majority ends with the one of it that ends first.
func TestInspectSaysHowLongTheMajorityLasts(t *testing.T) {
	t.Parallel()
	servers := redistest.StartN(t, 3)
	for i, ms := range []string{"10000", "", "60000"} {
		args := []string{"SET", "job", "a", "PX", ms}
		if ms == "" {
			args = args[:3]
		}
		servers[i].MustDo(t, args...)
	}
	i, table, _ := inspected(t, servers, "job")
	require.InDelta(t, 60_000, i.LeftMS, 20_000)
	require.Equal(t, int64(-1), i.Instances[1].LeftMS)
	require.Contains(t, table, "no end")

	servers[2].MustDo(t, "PERSIST", "job")
	i, table, _ = inspected(t, servers, "job")
	require.Equal(t, int64(-1), i.LeftMS)
	require.Contains(t, table, "on 3 of 3 instances, for no end.")
}

func TestBenchLeavesNothing(t *testing.T) {
	t.Parallel()
	servers := redistest.StartN(t, 3)
	code, stdout, stderr := call(t, at(urls(servers), "bench", "--time", "50ms", "--json")...)
	require.Empty(t, stderr)
	require.Equal(t, exitOK, code)
	var r struct {
		Instances int      `json:"instances"`
		Quorum    int      `json:"quorum"`
		Results   []result `json:"results"`
	}
	require.NoError(t, json.Unmarshal([]byte(stdout), &r))
	require.Equal(t, 3, r.Instances)
	require.Equal(t, 2, r.Quorum)
	require.Len(t, r.Results, len(benchGoroutines))
	for i, m := range r.Results {
		require.Equal(t, benchGoroutines[i], m.Goroutines)
		require.Positive(t, m.P50)
		require.GreaterOrEqual(t, m.P99, m.P50)
		require.Positive(t, m.PerSecond)
		require.GreaterOrEqual(t, m.Locks, 1)
	}
	for _, s := range servers {
		info, _ := s.MustDo(t, "INFO", "commandstats").(string)
		require.Contains(t, info, "cmdstat_evalsha", "it has locked")
		require.Zero(t, s.MustDo(t, "DBSIZE"))
	}

	code, stdout, _ = call(t, at(urls(servers), "bench", "--time", "20ms")...)
	require.Equal(t, exitOK, code)
	require.Regexp(t, `^3 instances, a quorum is 2; .*\n\n +GOROUTINES +LOCKS/S +P50 +P99 +FAILED\n( +\d+ +\d+ +\d+\.\d\dms +\d+\.\d\dms +\d+\n){4}$`, stdout)
}

func TestBenchNeedsAQuorum(t *testing.T) {
	t.Parallel()
	servers := redistest.StartN(t, 3)
	for _, s := range servers[1:] {
		require.NoError(t, s.Kill())
	}
	code, stdout, stderr := call(t, at(urls(servers), "bench")...)
	require.Equal(t, exitUnavailable, code)
	require.Empty(t, stdout)
	require.Contains(t, stderr, "no quorum")
	require.Zero(t, servers[0].MustDo(t, "DBSIZE"))
}

func TestBenchCleansUpWhenInterrupted(t *testing.T) {
	t.Parallel()
	servers := redistest.StartN(t, 3)
	ctx, cancel := context.WithCancel(t.Context())
	go func() {
		for servers[0].PID() != 0 {
			if n, _ := servers[0].Do("DBSIZE"); n != int64(0) {
				break
			}
		}
		cancel()
	}()
	var stdout, stderr terminal
	code := run(ctx, at(urls(servers), "bench", "--time", "1h"), &stdout, &stderr)
	require.Equal(t, exitInterrupted, code)
	for _, s := range servers {
		require.Zero(t, s.MustDo(t, "DBSIZE"))
	}
}

func TestEndpointsOfAFile(t *testing.T) {
	t.Parallel()
	servers := redistest.StartN(t, 3)
	file := filepath.Join(t.TempDir(), "endpoints")
	text := "# the masters\n\n  " + strings.Join(urls(servers), "  \n") + "\n"
	require.NoError(t, os.WriteFile(file, []byte(text), 0o600))
	for _, command := range []string{"check", "inspect job", "bench --time 1ms", "demo"} {
		code, stdout, stderr := call(t, append(strings.Fields(command), "--endpoints", file)...)
		require.Contains(t, []int{exitOK, exitWarnings}, code, command)
		require.Empty(t, stderr)
		for _, s := range servers {
			require.True(t, strings.Contains(stdout, s.Addr()) || strings.HasPrefix(command, "bench"), command)
		}
	}
}

// A command that works on instances says what is wrong with what it was given, and
// never shows it.
func TestMisuseOfEndpointsIsNamedWithoutAPassword(t *testing.T) {
	with := "redis://user:" + secret + "@127.0.0.1:7001"
	dir := t.TempDir()
	bad, empty := filepath.Join(dir, "bad"), filepath.Join(dir, "empty")
	require.NoError(t, os.WriteFile(bad, []byte("redis://ok:1\n"+with+"9999\n"), 0o600))
	require.NoError(t, os.WriteFile(empty, []byte("# none\n"), 0o600))
	for _, command := range []string{"run", "check", "inspect", "bench"} {
		for _, test := range []struct {
			args []string
			says string
		}{
			{nil, "there are no endpoints: set REDLOCK_ENDPOINTS, or use --endpoints or -e"},
			{[]string{"-e", with + "9999"}, "endpoint 1 has no valid port number"},
			{[]string{"-e", with, "-e", with}, "endpoint 2 (127.0.0.1:7001) is the same as endpoint 1"},
			{[]string{"-e", with, "--endpoints", bad}, "-e and --endpoints exclude each other"},
			{[]string{"--endpoints", with}, "the file of --endpoints: no such file or directory"},
			{[]string{"--endpoints", dir}, "the file of --endpoints can't be read"},
			{[]string{"--endpoints", bad}, "endpoint 2 has no valid port number"},
			{[]string{"--endpoints", empty}, "the file of --endpoints has no endpoint"},
		} {
			args := append([]string{command}, test.args...)
			switch command {
			case "run":
				args = append(args, "job", "--", "true")
			case "inspect":
				args = append(args, "job")
			}
			code, stdout, stderr := call(t, args...)
			require.Equal(t, exitUsage, code, args)
			require.Empty(t, stdout)
			require.Contains(t, stderr, test.says)
			require.NotContains(t, stderr, secret)
			require.Equal(t, 1, strings.Count(stderr, "\n"), stderr)
		}
	}
}

func TestMisuseOfRunIsNamedWithoutAPassword(t *testing.T) {
	with := "redis://user:" + secret + "@127.0.0.1:7001"
	for _, test := range []struct{ args, says string }{
		{"run", "it takes one NAME and, behind a --, a command"},
		{"run job", "there is no command: it stands behind a --"},
		{"run job --", "there is no command"},
		{"run job true", "it takes one NAME and"},
		{"run -- true", "it takes one NAME and"},
		{"run " + with + " job -- true", "it takes one NAME and"},
		{"run " + with + " -- true", "the NAME is an endpoint"},
		{"inspect " + with, "the NAME is an endpoint"},
		{"inspect", "it takes one NAME besides flags"},
		{"run --ttl 10s --grace 5001ms job -- true", "--grace is 5.001s, more than half of the ttl, 10s"},
		{"run --grace -1s job -- true", "the value of --grace is wrong: it is negative"},
		{"run --grace " + with + " job -- true", "the value of --grace is wrong: it is a duration like 10s or 1m30s"},
		{"run --wait " + with + " job -- true", "the value of --wait is wrong: it is forever, 0, or a duration like 10s"},
		{"run --wait -1s job -- true", "the value of --wait is wrong"},
		{"run --wait 10 job -- true", "the value of --wait is wrong"},
		{"run --ttl " + with + " job -- true", "the value of --ttl is wrong"},
		{"run --ttl 1ms job -- true", "a ttl of 1ms is below 10ms"},
		{"run --ttl -5s job -- true", "--ttl is -5s, which is not positive"},
		{"run --ttl 10 job -- true", "the value of --ttl is wrong: it is a duration like 10s or 1m30s"},
		{"inspect x{}:waiting", "has the shape of a key of those that wait"},
		{"inspect --prefix a{b x", "has a brace"},
		{"bench --time 1", "the value of --time is wrong: it is a duration like 10s or 1m30s"},
		{"run -E 256 job -- true", "the value of -E is wrong: it is a number from 0 to 255"},
		{"run -E x job -- true", "the value of -E is wrong"},
		{"run --quarantine -1s job -- true", "WithQuarantine: -1s is not between 0"},
		{"run --prefix a{b job -- true", "has a brace"},
		{"run -n=" + with + " job -- true", ""},
		{"bench --time 0s", "--time is not positive"},
		{"bench " + with, "it takes flags only"},
		{"check --json=" + with, "the value of --json is wrong"},
		{"completion", "it takes one SHELL"},
		{"completion " + with, "the SHELL is bash, zsh or fish"},
	} {
		args := strings.Fields(test.args)
		if !strings.HasPrefix(test.args, "completion") {
			args = append(args[:1:1], append([]string{"-e", "127.0.0.1:1"}, args[1:]...)...)
		}
		code, stdout, stderr := call(t, args...)
		require.NotContains(t, stderr, secret)
		if test.says == "" {
			continue
		}
		require.Equal(t, exitUsage, code, test.args)
		require.Empty(t, stdout, test.args)
		require.Contains(t, stderr, test.says)
		require.Equal(t, 1, strings.Count(stderr, "\n"), stderr)
	}
}

// What can't be locked is not free.
func TestTheEmptyNameIsNotFree(t *testing.T) {
	code, stdout, stderr := call(t, "inspect", "-e", "127.0.0.1:1", "")
	require.Equal(t, exitUsage, code)
	require.Empty(t, stdout)
	require.Equal(t, "redlock inspect: the resource is empty\n", stderr)
}

func TestHelpShowsExamples(t *testing.T) {
	for _, c := range commands() {
		code, stdout, stderr := call(t, "help", c.name)
		require.Equal(t, exitOK, code)
		require.Empty(t, stderr)
		if c.name == "version" {
			continue
		}
		require.Contains(t, stdout, "\nExamples:\n\n  ")
		require.Contains(t, stdout[strings.Index(stdout, "Examples:"):], "redlock "+c.name)
		for line := range strings.Lines(stdout) {
			require.LessOrEqual(t, len(line), 110, line)
		}
	}
	_, stdout, _ := call(t, "help")
	require.Contains(t, stdout, "redlock run nightly-backup -- ./backup.sh")
}

// offers returns what a shell prints that is started with args.
func offers(t *testing.T, shell string, args ...string) string {
	t.Helper()
	path, err := exec.LookPath(shell)
	if err != nil {
		t.Skipf("SKIPPED, NOT PASSED: %v", err)
	}
	cmd := exec.Command(path, args...)
	out, err := cmd.CombinedOutput()
	require.NoError(t, err, string(out))
	return string(out)
}

// scriptOf returns a file with the script for a shell.
func scriptOf(t *testing.T, shell string) string {
	t.Helper()
	_, script, _ := call(t, "completion", shell)
	path := filepath.Join(t.TempDir(), "_redlock")
	require.NoError(t, os.WriteFile(path, []byte(script), 0o600))
	return path
}

// zshOffers is a program for zsh that starts another one in a terminal, has it complete
// a line, and prints all that is handed to compadd then.
const zshOffers = `
zmodload zsh/zpty
zpty z zsh -f -i
zpty -w z "autoload -Uz compinit && compinit -D -u; source ${(q)1}"
zpty -w z 'compadd() {
  typeset -a offered
  if [[ ${@[1,(i)(-|--)]} != *-(O|A|D)\ * ]]; then
    builtin compadd -A offered "$@"
    print -r -- "OFFER ${(j: :)offered}"
  fi
  builtin compadd "$@"
}'
zpty -w z 'bindkey "^I" complete-word; PROMPT=REA""DY'
zpty -r z before '*READY*' # the prompt: from here on it takes keys, and not lines
zpty -n -w z "$2"$'\t'$'\C-u'"print DO\"\"NE"$'\n'
while zpty -r z line; do print -r -- "$line"; [[ $line == *DONE* ]] && break; done
zpty -d z
`

func TestTheShellsComplete(t *testing.T) {
	shells := map[string]func(t *testing.T) (offered func(line string) []string){
		"bash": func(t *testing.T) func(line string) []string {
			script := scriptOf(t, "bash")
			return func(line string) []string {
				const program = `source "$0"; COMP_WORDS=("$@"); COMP_CWORD=$(($# - 1)); _redlock; printf '%s\n' "${COMPREPLY[@]}"`
				return strings.Fields(offers(t, "bash", append([]string{"--norc", "-c", program, script}, strings.Split(line, " ")...)...))
			}
		},
		"fish": func(t *testing.T) func(line string) []string {
			script := scriptOf(t, "fish")
			return func(line string) []string {
				var words []string
				for offer := range strings.Lines(offers(t, "fish", "--no-config", "-c", "source $argv[1]; complete -C $argv[2]", "--", script, line)) {
					word, _, _ := strings.Cut(strings.TrimSpace(offer), "\t")
					words = append(words, word)
				}
				return words
			}
		},
		"zsh": func(t *testing.T) func(line string) []string {
			script := scriptOf(t, "zsh")
			return func(line string) []string {
				var words []string
				for out := range strings.Lines(offers(t, "zsh", "-f", "-c", zshOffers, "zsh", script, line)) {
					if _, offered, found := strings.Cut(out, "OFFER "); found {
						words = append(words, strings.Fields(offered)...)
					}
				}
				return words
			}
		},
	}
	for shell, begin := range shells {
		t.Run(shell, func(t *testing.T) {
			t.Parallel()
			offered := begin(t)
			require.ElementsMatch(t, []string{"run", "check", "inspect", "bench", "demo", "completion", "version", "help"}, offered("redlock "))
			require.Equal(t, []string{"check"}, offered("redlock ch"))
			require.ElementsMatch(t, []string{"-E", "-e", "--endpoints", "--grace", "-n", "--prefix", "--quarantine", "--ttl", "--wait"}, offered("redlock run -"))
			require.Equal(t, []string{"--json"}, offered("redlock inspect --j"))
			require.Empty(t, offered("redlock run --wait "), "a value of one's own")
			require.ElementsMatch(t, []string{"bash", "zsh", "fish"}, offered("redlock completion "))
			require.Equal(t, []string{"bench"}, offered("redlock help b"))
			require.Equal(t, "testdata", strings.TrimSuffix(offered("redlock check --endpoints testd")[0], "/"))
			require.Contains(t, offered("redlock run --ttl 3s job -- dat"), "date", "the command that it runs")
		})
	}
}

func TestTheCompletionsAreScripts(t *testing.T) {
	for _, shell := range []string{"bash", "zsh", "fish"} {
		t.Run(shell, func(t *testing.T) {
			_, script, _ := call(t, "completion", shell)
			require.Contains(t, script, "inspect")
			path, err := exec.LookPath(shell)
			if err != nil {
				t.Skipf("SKIPPED, NOT PASSED: %v", err)
			}
			cmd := exec.Command(path, "-n")
			cmd.Stdin = strings.NewReader(script)
			out, err := cmd.CombinedOutput()
			require.NoError(t, err, string(out))
		})
	}
}
