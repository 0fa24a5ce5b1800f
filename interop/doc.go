// Package interop exists to show that this library and others exclude each other
// on one resource: redsync, node-redlock, bsm/redislock and rueidislock run beside
// it on real servers, and take over from each other while the work goes on.
// docs/migrating.md says what follows for a migration.
//
// It is a module of its own, so that the root's go.mod need not name them. The
// recipes of the documentation are in its package recipes.
package interop
