package recipes

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"errors"
	"fmt"
	"math/big"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/quorumlock/redlock"
	"github.com/quorumlock/redlock/internal/redistest"
)

// requireALock takes a lock, extends it and gives it up. Servers that have just been
// started are in quarantine for the ttl and 2 s. On a machine that is busy an answer may
// come too late: what is not lost can be tried again.
func requireALock(t *testing.T, l *redlock.Locker) {
	t.Helper()
	t.Cleanup(func() { require.NoError(t, l.Close()) })
	lock, err := l.Acquire(t.Context(), "r", 3*time.Second)
	require.NoError(t, err)
	for _, f := range []func() error{
		func() error { return lock.Extend(t.Context(), 3*time.Second) },
		func() error { return lock.Release(t.Context()) },
	} {
		err := f()
		for errors.Is(err, redlock.ErrNoQuorum) && !errors.Is(err, redlock.ErrLost) {
			err = f()
		}
		require.NoError(t, err)
	}
	require.Positive(t, lock.FencingToken())
}

// openOn opens a Locker, and closes the clients after it.
func openOn(t *testing.T, instances []redlock.Instance) *redlock.Locker {
	t.Helper()
	for _, in := range instances {
		t.Cleanup(func() { require.NoError(t, in.Client.Close()) })
	}
	l, err := redlock.New(instances)
	require.NoError(t, err)
	return l
}

func TestALockOverClusters(t *testing.T) {
	t.Parallel()
	servers := redistest.StartN(t, 3, "--cluster-enabled", "yes")
	var clusters [][]string
	for _, s := range servers {
		s.MustDo(t, "CLUSTER", "ADDSLOTSRANGE", "0", "16383")
		clusters = append(clusters, []string{s.Addr()})
	}
	for _, s := range servers {
		require.Eventually(t, func() bool {
			return strings.Contains(fmt.Sprint(s.MustDo(t, "CLUSTER", "INFO")), "cluster_state:ok")
		}, 10*time.Second, 10*time.Millisecond)
	}
	requireALock(t, openOn(t, Clusters(clusters)))
}

// sentinel starts a Sentinel that watches masters, and returns its address.
func sentinel(t *testing.T, masters map[string]*redistest.Server) string {
	t.Helper()
	addr, err := redistest.FreeAddr()
	require.NoError(t, err)
	_, port, err := net.SplitHostPort(addr)
	require.NoError(t, err)
	config := "port " + port + "\nbind 127.0.0.1\n"
	for name, m := range masters {
		config += fmt.Sprintf("sentinel monitor %s %s 1\n", name, strings.ReplaceAll(m.Addr(), ":", " "))
	}
	file := filepath.Join(t.TempDir(), "sentinel.conf") // it writes there
	require.NoError(t, os.WriteFile(file, []byte(config), 0o600))
	binary := os.Getenv("REDLOCK_REDIS_SERVER")
	if binary == "" {
		binary = "redis-server"
	}
	cmd := exec.Command(binary, file, "--sentinel")
	require.NoError(t, cmd.Start())
	t.Cleanup(func() {
		_ = cmd.Process.Kill()
		_ = cmd.Wait()
	})
	return addr
}

func TestALockOverSentinels(t *testing.T) {
	t.Parallel()
	servers := redistest.StartN(t, 3)
	masters := map[string]*redistest.Server{"m1": servers[0], "m2": servers[1], "m3": servers[2]}
	addr := sentinel(t, masters)
	requireALock(t, openOn(t, Sentinels([]string{"m1", "m2", "m3"}, []string{addr})))
}

// certificates makes an authority, and what it signs for servers and clients, as files.
func certificates(t *testing.T) (authority, certificate, key string) {
	t.Helper()
	dir := t.TempDir()
	write := func(name, kind string, der []byte) string {
		file := filepath.Join(dir, name)
		require.NoError(t, os.WriteFile(file, pem.EncodeToMemory(&pem.Block{Type: kind, Bytes: der}), 0o600))
		return file
	}
	newKey := func() *ecdsa.PrivateKey {
		k, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
		require.NoError(t, err)
		return k
	}
	ca := &x509.Certificate{
		SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: "authority"}, NotAfter: time.Now().Add(time.Hour),
		IsCA: true, BasicConstraintsValid: true, KeyUsage: x509.KeyUsageCertSign,
	}
	caKey, leafKey := newKey(), newKey()
	der, err := x509.CreateCertificate(rand.Reader, ca, ca, &caKey.PublicKey, caKey)
	require.NoError(t, err)
	authority = write("ca.pem", "CERTIFICATE", der)
	leaf := &x509.Certificate{
		SerialNumber: big.NewInt(2), Subject: pkix.Name{CommonName: "both sides"}, NotAfter: time.Now().Add(time.Hour),
		IPAddresses: []net.IP{net.IPv4(127, 0, 0, 1)},
		ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth, x509.ExtKeyUsageClientAuth},
	}
	der, err = x509.CreateCertificate(rand.Reader, leaf, ca, &leafKey.PublicKey, caKey)
	require.NoError(t, err)
	certificate = write("leaf.pem", "CERTIFICATE", der)
	der, err = x509.MarshalECPrivateKey(leafKey)
	require.NoError(t, err)
	return authority, certificate, write("key.pem", "EC PRIVATE KEY", der)
}

func TestALockOverTLSWithCertificatesOfBothSides(t *testing.T) {
	t.Parallel()
	authority, certificate, key := certificates(t)
	var endpoints []string
	for range 3 {
		addr, err := redistest.FreeAddr()
		require.NoError(t, err)
		_, port, err := net.SplitHostPort(addr)
		require.NoError(t, err)
		redistest.Start(t, "--tls-port", port, "--tls-ca-cert-file", authority, "--tls-cert-file", certificate, "--tls-key-file", key)
		endpoints = append(endpoints, "rediss://"+addr)
	}
	l, err := OverTLS(endpoints, authority, certificate, key)
	require.NoError(t, err)
	requireALock(t, l)

	_, err = OverTLS(endpoints, key, certificate, key)
	require.ErrorContains(t, err, "no certificate")
}

// deployed starts a server with the files that deploy/ hands out.
func deployed(t *testing.T) *redistest.Server {
	t.Helper()
	// Each server rewrites its own copy of the users.
	users := filepath.Join(t.TempDir(), "users.acl")
	text, err := os.ReadFile("../../deploy/users.acl")
	require.NoError(t, err)
	require.NoError(t, os.WriteFile(users, text, 0o600))
	return redistest.Start(t, append(settings(t), "--aclfile", users)...)
}

// settings returns the settings of deploy/redis.conf as arguments, but for those that
// are about the place where it runs.
func settings(t *testing.T) (args []string) {
	t.Helper()
	text, err := os.ReadFile("../../deploy/redis.conf")
	require.NoError(t, err)
	for line := range strings.Lines(string(text)) {
		f := strings.Fields(line)
		if len(f) == 0 || f[0] == "#" || f[0] == "bind" || f[0] == "dir" || f[0] == "aclfile" {
			continue
		}
		for i, arg := range f[1:] {
			f[i+1] = strings.Trim(arg, `"`)
		}
		args = append(args, "--"+f[0])
		args = append(args, f[1:]...)
	}
	require.NotEmpty(t, args)
	return args
}

// A user with the rights in deploy/users.acl, and no other, locks, is guarded against
// restarts, has its clock compared, wakes others and is woken. What else it is refused,
// the client and Check do without.
func TestTheRightsInDeployAreAllThatIsNeeded(t *testing.T) {
	t.Parallel()
	var endpoints []string
	var admins []*redis.Client
	for range 3 {
		s := deployed(t)
		endpoints = append(endpoints, "redis://locker:change-me@"+s.Addr())
		admin := redis.NewClient(&redis.Options{Addr: s.Addr(), Username: "admin", Password: "change-me-too"})
		t.Cleanup(func() { _ = admin.Close() })
		admins = append(admins, admin)
	}
	var heard []redlock.InstanceChange
	observer := redlock.Observer{Instance: func(e redlock.InstanceEvent) {
		if e.Change != redlock.InstanceQuarantined && e.Change != redlock.QuarantineOver {
			heard = append(heard, e.Change)
		}
	}}
	ours, err := redlock.Open(endpoints, redlock.WithKeyPrefix("lock:"), redlock.WithObserver(observer))
	require.NoError(t, err)
	requireALock(t, ours)
	others, err := redlock.Open(endpoints, redlock.WithKeyPrefix("lock:"))
	require.NoError(t, err)
	defer others.Close()

	lock, err := ours.Acquire(t.Context(), "r", 3*time.Second)
	require.NoError(t, err)
	lock.KeepAlive(t.Context())
	got := make(chan error)
	go func() {
		next, err := others.Acquire(t.Context(), "r", 3*time.Second)
		if err == nil {
			err = next.Release(t.Context())
		}
		got <- err
	}()
	for _, a := range admins {
		require.Eventually(t, func() bool {
			return len(a.PubSubChannels(t.Context(), "lock:*").Val()) > 0
		}, 10*time.Second, time.Millisecond, "who waits listens")
	}
	require.NoError(t, lock.Release(t.Context()))
	require.NoError(t, <-got)

	report, err := ours.Check(t.Context())
	require.NoError(t, err)
	for _, in := range report.Instances {
		for _, f := range in.Findings {
			require.NotContains(t, []string{"permissions", "persistence", "eviction", "replicas"}, f.Check, "%v", f)
		}
	}
	for _, a := range admins {
		log, err := a.ACLLog(t.Context(), 100).Result()
		require.NoError(t, err)
		for _, refused := range log {
			require.Contains(t, askedInVain, refused.Object, "%+v", refused)
		}
	}
	require.NoError(t, ours.Close())
	require.Empty(t, heard)
}

// askedInVain is what the client says of itself on a new connection, and may not: it
// does without.
var askedInVain = []string{"client|setinfo", "client", "config|get", "config", "cluster|info"}
