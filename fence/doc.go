// Package fence exists because a lock can't stop a holder that was paused past
// its lease from writing late: only the resource can, if it refuses the smaller
// fencing token.
//
// A guard keeps, for each resource, the largest token that it has seen, its mark.
// It accepts a token that is at least as large and refuses a smaller one with a
// *[StaleError], in one atomic step with the write:
//
//   - [github.com/quorumlock/redlock/fence/sqlfence]: in the transaction of the write
//   - [github.com/quorumlock/redlock/fence/redisfence]: in the script that writes
//   - [github.com/quorumlock/redlock/fence/httpfence]: around the handler of a request
//   - [HighWater], here: around a function of this process
//
// # The first operation
//
// A holder's first operation on the resource must go through the guard, also if
// it only reads. Otherwise A reads, B reads, A writes, and B, whose token is
// larger, overwrites that with what it made of its stale read: no guard can see
// anything wrong. A first operation that raises the mark shuts A out before B
// looks.
//
// # What a guard can't do
//
// It can't order what does not pass it: every writer has to send a token, for the
// same name of the resource. It does not tell a repeat from a second write of the
// same holder, since equal tokens are accepted: a write that is sent again after
// a lost reply happens twice, unless it is idempotent. And it promises no more
// than its memory: a mark that is forgotten lets anybody in.
package fence
