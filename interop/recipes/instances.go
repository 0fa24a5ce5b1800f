package recipes

import (
	"crypto/tls"
	"crypto/x509"
	"errors"
	"os"

	"github.com/redis/go-redis/v9"

	"github.com/quorumlock/redlock"
)

// Sentinels returns instances for [redlock.New] that Sentinel looks after, one group of
// servers for each name. Close their clients after the Locker, which leaves them open.
//
// The promise is weaker. Replication is asynchronous: the replica that takes over may not
// have heard of the last locks. The library sees that another server answers, and lets it
// not vote for the largest ttl and 2 s, so that one failover at a time costs one vote
// and no more; docs/safety-model.md says what it can't see. Independent masters without replicas give as much availability, for less: a majority of
// them may be down, and nothing is promoted.
func Sentinels(names, sentinels []string) (instances []redlock.Instance) {
	for _, name := range names {
		instances = append(instances, redlock.Instance{Name: name, Client: redis.NewFailoverClient(&redis.FailoverOptions{
			MasterName: name, SentinelAddrs: sentinels, MaxRetries: -1, ContextTimeoutEnabled: true,
		})})
	}
	return instances
}

// Clusters returns instances for [redlock.New] that are several Redis Clusters. One cluster is one instance, however many nodes it has: a resource lives on one of
// them.
//
// The promise is weaker than over Sentinels: a cluster's client does not tell when it
// reaches another server, so there is no quarantine, and every failover may let a second
// holder in. Only the fencing token keeps that one from harm.
func Clusters(clusters [][]string) (instances []redlock.Instance) {
	for _, addrs := range clusters {
		instances = append(instances, redlock.Instance{Name: addrs[0], Client: redis.NewClusterClient(&redis.ClusterOptions{
			Addrs: addrs, MaxRetries: -1, ContextTimeoutEnabled: true,
		})})
	}
	return instances
}

// OverTLS returns a Locker on rediss:// endpoints whose certificates an authority of
// one's own has signed, and which want to see one of ours.
func OverTLS(endpoints []string, authority, certificate, key string) (*redlock.Locker, error) {
	pem, err := os.ReadFile(authority)
	if err != nil {
		return nil, err
	}
	pool := x509.NewCertPool()
	if !pool.AppendCertsFromPEM(pem) {
		return nil, errors.New("no certificate in " + authority)
	}
	pair, err := tls.LoadX509KeyPair(certificate, key)
	if err != nil {
		return nil, err
	}
	return redlock.Open(endpoints, redlock.WithTLSConfig(&tls.Config{
		MinVersion: tls.VersionTLS12, RootCAs: pool, Certificates: []tls.Certificate{pair},
	}))
}
