// Package source exists for those who want fencing tokens from one counter that
// they run anyway, instead of the quorum: pass a source to redlock.WithFencing.
//
//   - [Counter]: on one Redis. Fast; as durable as that Redis, with a clock as the net.
//   - [Sequence]: of a PostgreSQL. As durable as its commits.
//   - [Query]: any statement of a SQL database that answers a larger number each time.
//   - [Func]: your own. docs/fencing.md has recipes for etcd and ZooKeeper.
//
// Each is one more server that every acquire depends on: while it is down, nobody
// gets a lock. The quorum, the default, needs none.
package source
