// Package compare answers the question that every team asks, whether a quorum is
// worth it over one Redis, with measurements: the same work under the same faults
// at the same times against one Redis, one with a replica and failover, and quorums
// of three and five; and redsync beside them, as a child process of the bench
// module, since this module depends on no other lock library.
package compare
