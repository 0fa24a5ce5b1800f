package recipes

import (
	"errors"
	"io"
	"os"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	"go.yaml.in/yaml/v3"
)

// documents reads the YAML documents of a file in deploy/.
func documents(t *testing.T, name string) (docs []map[string]any) {
	t.Helper()
	f, err := os.Open("../../deploy/" + name)
	require.NoError(t, err)
	defer f.Close()
	for d := yaml.NewDecoder(f); ; {
		var doc map[string]any
		err := d.Decode(&doc)
		if errors.Is(err, io.EOF) {
			return docs
		}
		require.NoError(t, err, name)
		docs = append(docs, doc)
	}
}

// at returns what is at the end of a path of keys and indices.
func at(t *testing.T, v any, path ...any) any {
	t.Helper()
	for _, p := range path {
		switch p := p.(type) {
		case string:
			m, ok := v.(map[string]any)
			require.True(t, ok, "%v in %v", p, v)
			require.Contains(t, m, p)
			v = m[p]
		case int:
			list, ok := v.([]any)
			require.True(t, ok, "%v in %v", p, v)
			require.Greater(t, len(list), p)
			v = list[p]
		}
	}
	return v
}

func read(t *testing.T, name string) string {
	t.Helper()
	text, err := os.ReadFile("../../" + name)
	require.NoError(t, err)
	return string(text)
}

// The files in deploy/ start three masters on the settings and the users that the tests
// run, and the documentation shows the same user.
func TestTheFilesInDeployAgree(t *testing.T) {
	conf := read(t, "deploy/redis.conf")
	for _, setting := range []string{"appendonly yes", "appendfsync always", "maxmemory-policy noeviction", "dir /data", "aclfile /etc/redis/users.acl"} {
		require.Contains(t, conf, "\n"+setting+"\n")
	}
	for line := range strings.Lines(read(t, "deploy/users.acl")) {
		require.True(t, strings.HasPrefix(line, "user "), "an ACL file has no comments")
		if strings.HasPrefix(line, "user locker ") {
			require.Contains(t, read(t, "docs/deploy.md"), "\n"+line)
		}
	}

	compose := documents(t, "compose.yaml")[0]
	services, ok := at(t, compose, "services").(map[string]any)
	require.True(t, ok)
	require.Len(t, services, 3)
	disks := map[any]bool{}
	for name, s := range services {
		require.Equal(t, []any{"redis-server", "/etc/redis/redis.conf"}, at(t, s, "command"), name)
		require.Contains(t, at(t, s, "volumes"), "./redis.conf:/etc/redis/redis.conf:ro")
		require.Contains(t, at(t, s, "volumes"), "./users.acl:/etc/redis/users.acl:ro")
		disks[at(t, s, "volumes", 2)] = true
	}
	require.Len(t, disks, 3, "each has a disk of its own")

	byKind := map[string]map[string]any{}
	for _, d := range documents(t, "kubernetes.yaml") {
		byKind[at(t, d, "kind").(string)] = d
	}
	set := byKind["StatefulSet"]
	require.Equal(t, 3, at(t, set, "spec", "replicas"))
	require.Equal(t, "None", at(t, byKind["Service"], "spec", "clusterIP"))
	require.Equal(t, 1, at(t, byKind["PodDisruptionBudget"], "spec", "maxUnavailable"))
	require.Equal(t, at(t, byKind["Service"], "metadata", "name"), at(t, set, "spec", "serviceName"))
	pod := at(t, set, "spec", "template", "spec")
	require.Equal(t, at(t, services["lock-a"], "image"), at(t, pod, "containers", 0, "image"))
	mounted := map[any]any{}
	for _, m := range at(t, pod, "containers", 0, "volumeMounts").([]any) {
		mounted[at(t, m, "mountPath")] = at(t, m, "name")
	}
	require.Equal(t, map[any]any{"/data": "data", "/etc/redis/redis.conf": "conf", "/etc/redis/users.acl": "users"}, mounted)

	kustomization := documents(t, "kustomization.yaml")[0]
	require.Equal(t, at(t, kustomization, "configMapGenerator", 0, "name"), at(t, pod, "volumes", 0, "configMap", "name"))
	require.Equal(t, at(t, kustomization, "secretGenerator", 0, "name"), at(t, pod, "volumes", 1, "secret", "secretName"))
	require.Equal(t, at(t, kustomization, "namespace"), at(t, byKind["Namespace"], "metadata", "name"))
}
