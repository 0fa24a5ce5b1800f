// Package httpfence exists so that a service can refuse the requests of a late
// holder: a [Transport] sends the fencing token with each request, and a [Guard]
// in front of the service's handler compares it.
//
//	Fencing-Resource: invoice-42      request: the resource, percent-encoded
//	Fencing-Token: 41                 request: the token, in decimal
//
//	412 Precondition Failed           the token is stale
//	Fencing-Current: 42               the larger one that the service has seen
//	400 Bad Request                   no token, or what is none
//	503 Service Unavailable           the guard could not compare
//
// # What the middleware makes atomic
//
// The handler runs inside the check: while it does, no other token of the resource
// passes this guard. So the write is fenced if the handler has finished it when it
// returns, and if every writer of the resource passes this guard, in this one
// process. It is not, if
//
//   - the handler leaves the write to a goroutine, a queue or a cache that writes
//     back later;
//   - the service runs more than once, with a [fence.HighWater] in each: each has a
//     mark of its own. Use a [Checker] on a store that they share, or let the
//     handler check with sqlfence or redisfence where it writes, which needs no
//     middleware;
//   - the handler gave up (a time-out, say) on a write that is still under way in
//     the store behind it;
//   - the process restarts: a HighWater starts empty. See there.
//
// Requests for one resource take turns. A client that sends its body slowly keeps
// the turn: set the server's ReadTimeout.
package httpfence
