// Package redistest exists because a lock's promises are only worth testing
// against real servers and real faults: it starts redis-server processes,
// pauses, kills and restarts them, and puts a misbehaving TCP proxy in front of
// them.
//
// [Launch] and [LaunchProxy] serve programs; [Start], [StartN] and [NewProxy]
// serve tests and clean up after themselves. Commands sent with [Server.Do] go
// through a codec of this package, not through go-redis: a test that checks
// what a client did must not ask that client.
//
// REDLOCK_REDIS_SERVER names another server binary, valkey-server for instance.
// REDLOCK_REQUIRE_REDIS=1 turns the skip for a missing binary into a failure.
package redistest
