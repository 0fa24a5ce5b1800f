package main

import (
	"bytes"
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"encoding/pem"
	"flag"
	"fmt"
	"io"
	"math/big"
	"net"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"regexp"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"
	"unicode/utf8"

	"github.com/redis/go-redis/v9/logging"
	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"

	"github.com/quorumlock/redlock/internal/redistest"
)

var update = flag.Bool("update", false, "write what the demo prints to testdata")

// programEnv makes the test binary the program itself.
const programEnv = "REDLOCK_TEST_PROGRAM"

func TestMain(m *testing.M) {
	if os.Getenv(programEnv) != "" {
		main()
	}
	_ = os.Unsetenv(endpointsVariable)
	for _, s := range []os.Signal{syscall.SIGHUP, syscall.SIGINT, syscall.SIGQUIT} {
		if signal.Ignored(s) { // as under nohup: the programs that tests start would ignore it, too
			signal.Notify(make(chan os.Signal, 1), s)
		}
	}
	logging.Disable()
	goleak.VerifyTestMain(m)
}

// A terminal records what a run prints, and calls a function when it reads
// something.
type terminal struct {
	mu     sync.Mutex
	buffer bytes.Buffer
	await  string // empty: nothing
	then   func()
}

func (t *terminal) Write(p []byte) (int, error) {
	t.mu.Lock()
	t.buffer.Write(p)
	var then func()
	if t.await != "" && strings.Contains(t.buffer.String(), t.await) {
		then, t.await = t.then, ""
	}
	t.mu.Unlock()
	if then != nil {
		then()
	}
	return len(p), nil
}

func (t *terminal) String() string {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.buffer.String()
}

func runDemo(t *testing.T, endpoints ...string) (code int, stdout, stderr string) {
	t.Helper()
	var out, errs terminal
	code = run(t.Context(), demoArgs(endpoints), &out, &errs)
	return code, out.String(), errs.String()
}

func demoArgs(endpoints []string) []string {
	args := []string{"demo"}
	for _, e := range endpoints {
		args = append(args, "-e", e)
	}
	return args
}

func urls(servers []*redistest.Server) []string {
	var list []string
	for _, s := range servers {
		list = append(list, s.URL())
	}
	return list
}

// requireNoLockKey requires that nothing but a fence key with an expiry is left.
func requireNoLockKey(t *testing.T, servers ...*redistest.Server) {
	t.Helper()
	for _, s := range servers {
		if s.PID() == 0 {
			continue
		}
		for _, key := range s.MustDo(t, "KEYS", "*").([]any) {
			if strings.HasSuffix(key.(string), "{}:waiting") {
				continue // that a demo has waited, for two seconds
			}
			require.Regexp(t, `^\{redlock-demo-[a-z2-7]{6}\}:fence$`, key)
			require.Positive(t, s.MustDo(t, "TTL", key.(string)))
		}
	}
}

// requireReadable requires what a reader of every demo may expect.
func requireReadable(t *testing.T, stdout string) {
	t.Helper()
	require.NotContains(t, stdout, "\x1b")
	for line := range strings.Lines(stdout) {
		line = strings.TrimSuffix(line, "\n")
		require.Less(t, utf8.RuneCountInString(line), 90, line)
		require.Equal(t, strings.TrimRight(line, " "), line)
	}
}

var (
	changing = []struct {
		pattern *regexp.Regexp
		normal  string
	}{
		// An error stands as soon as it is certain, whoever has not answered yet.
		{regexp.MustCompile(`(?m)^      .*: (no answer yet|not waited for: it was decided|held by another owner for .* more)\n`), ""},
		{regexp.MustCompile(`\d of 5 granted, \d(\s+)refused`), "# of 5 granted, #${1}refused"},
		// Who was not asked any more when the others had refused.
		{regexp.MustCompile(`pending  not asked: it was decided`), "refused  held by another owner for 4.999s more"},
		{regexp.MustCompile(`the connection ended: EOF|read: connection reset by peer|write: broken pipe`), "connect: connection refused"}, // it was just killed
		{regexp.MustCompile(`dial tcp 127\.0\.0\.1:\d{5}: `), ""},
		{regexp.MustCompile(`127\.0\.0\.1:\d{5}`), "127.0.0.1:#####"},
		{regexp.MustCompile(`\d{16}`), "TOKEN"},
		{regexp.MustCompile(`redlock-demo-[a-z2-7]{6}`), "redlock-demo-??????"},
		{regexp.MustCompile(`for 4\.\d+s more`), "for 4.###s more"},
	}
	lease = regexp.MustCompile(`(?m)^      127\.0\.0\.1:\d{5}: held by another owner for 4\.\d+s more$`)
)

func TestDemoNeedsNothing(t *testing.T) {
	start := time.Now()
	code, stdout, stderr := runDemo(t)
	require.Less(t, time.Since(start), 10*time.Second)
	require.Empty(t, stderr)
	require.Equal(t, exitOK, code)
	requireReadable(t, stdout)
	require.GreaterOrEqual(t, len(lease.FindAllString(stdout, -1)), 3)

	for _, c := range changing {
		stdout = c.pattern.ReplaceAllString(stdout, c.normal)
	}
	golden := filepath.Join("testdata", "demo.txt")
	if *update {
		require.NoError(t, os.WriteFile(golden, []byte(stdout), 0o644))
	}
	want, err := os.ReadFile(golden)
	require.NoError(t, err)
	require.Equal(t, string(want), stdout)
}

func TestDemoOnServersLeavesNoLockKey(t *testing.T) {
	t.Parallel()
	servers := redistest.StartN(t, 5)
	code, stdout, stderr := runDemo(t, urls(servers)...)
	require.Empty(t, stderr)
	require.Equal(t, exitOK, code)
	requireReadable(t, stdout)
	require.Contains(t, stdout, "5 instances of yours; a quorum is 3.")
	require.Contains(t, stdout, "The demo kills 2 instances; the other 3 are still a quorum.")
	require.Contains(t, stdout, "failed   cut off by the demo")
	require.Contains(t, stdout, "no lock key is left on the 5 instances.")
	requireNoLockKey(t, servers...)
	for _, s := range servers {
		require.NotZero(t, s.PID(), "killed in earnest")
	}
}

func TestDemoAdaptsToWhatVotes(t *testing.T) {
	t.Parallel()
	for _, test := range []struct {
		n, dead int
		says    string
	}{
		{n: 1, says: "No instance can be spared: a quorum takes all 1 that vote."},
		{n: 2, says: "No instance can be spared: a quorum takes all 2 that vote."},
		{n: 3, says: "The demo kills 1 instance; the other 2 are still a quorum."},
		{n: 4, says: "The demo kills 1 instance; the other 3 are still a quorum."},
		{n: 5, dead: 1, says: "The demo kills 1 instance; the other 3 are still a quorum."},
		{n: 5, dead: 2, says: "No instance can be spared: a quorum takes all 3 that vote."},
	} {
		t.Run(fmt.Sprintf("%d, %d dead", test.n, test.dead), func(t *testing.T) {
			t.Parallel()
			servers := redistest.StartN(t, test.n)
			for _, s := range servers[:test.dead] {
				require.NoError(t, s.Kill())
			}
			code, stdout, stderr := runDemo(t, urls(servers)...)
			require.Empty(t, stderr)
			require.Equal(t, exitOK, code)
			requireReadable(t, stdout)
			require.Contains(t, stdout, test.says)
			if test.dead > 0 {
				require.Contains(t, stdout, "The demo goes on without "+strings.Join(redistest.Addrs(servers[:test.dead]), ", ")+":")
			}
			requireNoLockKey(t, servers...)
		})
	}
}

func TestDemoWithoutAQuorumIsUnavailable(t *testing.T) {
	t.Parallel()
	servers := redistest.StartN(t, 5)
	for _, s := range servers[:3] {
		require.NoError(t, s.Kill())
	}
	code, stdout, stderr := runDemo(t, urls(servers)...)
	require.Equal(t, exitUnavailable, code)
	requireReadable(t, stdout)
	require.Equal(t, 1, strings.Count(stderr, "\n"))
	require.Contains(t, stderr, "redlock: no quorum")
	for _, s := range servers[:3] {
		require.Contains(t, stderr, s.Addr()+": dial tcp "+s.Addr()+": connect: connection refused")
	}
	requireNoLockKey(t, servers...)
}

func TestDemoReadsTheEnvironment(t *testing.T) {
	servers := redistest.StartN(t, 3)
	t.Setenv(endpointsVariable, strings.Join(urls(servers), ","))
	code, stdout, stderr := runDemo(t)
	require.Empty(t, stderr)
	require.Equal(t, exitOK, code)
	require.Contains(t, stdout, "3 instances of yours")

	code, stdout, _ = runDemo(t, servers[0].URL())
	require.Equal(t, exitOK, code)
	require.Contains(t, stdout, "1 instance of yours", "flags come first")
}

func TestDemoWorksOverSocketsAndTLS(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	socket := filepath.Join(dir, "redis.sock")
	cert, key := certificate(t, dir)
	tlsAddr, err := redistest.FreeAddr()
	require.NoError(t, err)
	_, port, err := net.SplitHostPort(tlsAddr)
	require.NoError(t, err)
	redistest.Need(t)
	plain, err := redistest.Launch("--unixsocket", socket)
	require.NoError(t, err)
	t.Cleanup(func() { _ = plain.Close() })
	secure, err := redistest.Launch("--tls-port", port, "--tls-cert-file", cert, "--tls-key-file", key, "--tls-auth-clients", "no")
	if err != nil && strings.Contains(err.Error(), "tls-") {
		t.Skipf("SKIPPED, NOT PASSED: a redis-server without TLS: %v", err)
	}
	require.NoError(t, err)
	t.Cleanup(func() { _ = secure.Close() })

	code, stdout, stderr := runDemo(t, redistest.Start(t).URL(), "unix://"+socket, "rediss://"+tlsAddr+"?skip_verify=true")
	require.Empty(t, stderr)
	require.Equal(t, exitOK, code)
	requireReadable(t, stdout)
	require.Contains(t, stdout, "no lock key is left on the 3 instances.")
	requireNoLockKey(t, plain, secure)
}

// certificate writes a self-signed certificate and its key.
func certificate(t *testing.T, dir string) (certFile, keyFile string) {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	require.NoError(t, err)
	template := &x509.Certificate{SerialNumber: big.NewInt(1), NotAfter: time.Now().Add(time.Hour)}
	cert, err := x509.CreateCertificate(rand.Reader, template, template, key.Public(), key)
	require.NoError(t, err)
	der, err := x509.MarshalPKCS8PrivateKey(key)
	require.NoError(t, err)
	certFile, keyFile = filepath.Join(dir, "cert.pem"), filepath.Join(dir, "key.pem")
	require.NoError(t, os.WriteFile(certFile, pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: cert}), 0o600))
	require.NoError(t, os.WriteFile(keyFile, pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: der}), 0o600))
	return certFile, keyFile
}

const secret = "hunter2"

func TestDemoNeverShowsAPassword(t *testing.T) {
	t.Parallel()
	servers := redistest.StartN(t, 3, "--requirepass", secret)
	var right, wrong []string
	for _, s := range servers {
		right = append(right, "redis://:"+secret+"@"+s.Addr())
		wrong = append(wrong, "redis://someone:not-"+secret+"@"+s.Addr())
	}
	code, stdout, stderr := runDemo(t, right...)
	require.Empty(t, stderr)
	require.Equal(t, exitOK, code)
	require.NotContains(t, stdout, secret)

	code, stdout, stderr = runDemo(t, wrong...)
	require.Equal(t, exitUnavailable, code)
	require.NotContains(t, stdout+stderr, secret)
	require.Contains(t, stderr, "WRONGPASS")
}

func TestMisuseIsNamedWithoutAPassword(t *testing.T) {
	with := "redis://user:" + secret + "@127.0.0.1:7001"
	for _, test := range []struct {
		args []string
		says string
	}{
		{nil, "Usage: redlock <command>"},
		{[]string{"deom"}, "there is no such command (deom)"},
		{[]string{with}, "there is no such command;"},
		{[]string{"help", with}, "there is no such command;"},
		{[]string{"demo", "-x"}, "a flag is unknown or lacks its value (-x)"},
		{[]string{"demo", "-e"}, "a flag is unknown or lacks its value (-e)"},
		{[]string{"demo", "-" + with}, "a flag is unknown or lacks its value;"},
		{[]string{"demo", "-password=" + secret}, "a flag is unknown or lacks its value (-password);"},
		{[]string{"demo", "---e", with}, "a flag is unknown or lacks its value;"},
		{[]string{"demo", with}, "it takes flags only"},
		{[]string{"demo", "-e", with, with}, "it takes flags only"},
		{[]string{"demo", "-e", ""}, "endpoint 1 is blank"},
		{[]string{"demo", "-e", with, "-e", with}, "endpoint 2 (127.0.0.1:7001) is the same as endpoint 1"},
		{[]string{"demo", "-e", with + "9999"}, "endpoint 1 has no valid port number"},
		{[]string{"demo", "-e", "http://x:" + secret + "@y"}, "endpoint 1 has none of the schemes"},
		{[]string{"demo", "-e", "redis://x:" + secret + "%zz@y"}, "endpoint 1 is not a valid URL"},
		{[]string{"demo", "-e", secret + "@y:1"}, "endpoint 1 is neither host:port nor a URL"},
		{[]string{"version", with}, "it takes flags only"},
	} {
		var stdout, stderr terminal
		require.Equal(t, exitUsage, run(t.Context(), test.args, &stdout, &stderr), test.args)
		require.Empty(t, stdout.String(), test.args)
		require.Contains(t, stderr.String(), test.says)
		require.NotContains(t, stderr.String(), secret)
		if test.args != nil {
			require.Equal(t, 1, strings.Count(stderr.String(), "\n"), stderr.String())
		}
	}
}

func TestMisuseInTheEnvironmentIsNamedWithoutAPassword(t *testing.T) {
	t.Setenv(endpointsVariable, "redis://:"+secret+"@127.0.0.1:7001,")
	code, stdout, stderr := runDemo(t)
	require.Equal(t, exitUsage, code)
	require.Empty(t, stdout)
	require.Equal(t, "redlock demo: redlock: endpoint 2 is blank\n", stderr)
}

func TestHelpGoesToStdout(t *testing.T) {
	for _, test := range []struct{ args, says string }{
		{"help", "\n  demo "},
		{"-h", "\n  version "},
		{"--help", "Usage: redlock <command>"},
		{"help demo", "Usage: redlock demo"},
		{"demo -h", endpointsVariable},
		{"version --help", "Usage: redlock version"},
		{"version", "redlock "},
	} {
		var stdout, stderr terminal
		require.Equal(t, exitOK, run(t.Context(), strings.Fields(test.args), &stdout, &stderr), test.args)
		require.Empty(t, stderr.String(), test.args)
		require.Contains(t, stdout.String(), test.says)
	}
}

// What goes wrong in the middle ends the story: here another client takes the
// lock away.
func TestWrongOutcomeFails(t *testing.T) {
	t.Parallel()
	servers := redistest.StartN(t, 3)
	var stderr terminal
	stdout := terminal{await: " 2. B", then: func() {
		for _, s := range servers {
			s.MustDo(t, "FLUSHALL")
		}
	}}
	require.Equal(t, exitFailed, run(t.Context(), demoArgs(urls(servers)), &stdout, &stderr))
	require.Equal(t, "redlock demo: step 2: B got the lock\n", stderr.String())
	requireNoLockKey(t, servers...)
}

func TestInterruptReleasesTheLock(t *testing.T) {
	t.Parallel()
	for _, at := range []string{" 2. B", " 4. A", " 7. B", " 8. The", " 9. 1"} {
		t.Run(at, func(t *testing.T) {
			t.Parallel()
			servers := redistest.StartN(t, 3)
			ctx, cancel := context.WithCancel(t.Context())
			defer cancel()
			var stderr terminal
			stdout := terminal{await: at, then: cancel}
			require.Equal(t, exitInterrupted, run(ctx, demoArgs(urls(servers)), &stdout, &stderr))
			require.Equal(t, "redlock demo: interrupted\n", stderr.String())
			requireNoLockKey(t, servers...)
		})
	}
}

// On instances that hang, the demo is in its first step for long enough.
func TestSignalEndsTheProgram(t *testing.T) {
	t.Parallel()
	for sig, code := range map[syscall.Signal]int{syscall.SIGINT: 130, syscall.SIGTERM: 143} {
		program := exec.Command(os.Args[0], demoArgs([]string{redistest.Mute(t)})...)
		program.Env = append(os.Environ(), programEnv+"=1")
		out, err := program.StdoutPipe()
		require.NoError(t, err)
		require.NoError(t, program.Start())
		stdout := &terminal{await: " 1. A", then: func() { _ = program.Process.Signal(sig) }}
		_, err = io.Copy(stdout, out)
		require.NoError(t, err)
		var exit *exec.ExitError
		require.ErrorAs(t, program.Wait(), &exit)
		require.Equal(t, code, exit.ExitCode())
	}
}
