// Package redlock locks a resource across N independent Redis masters, so that
// the lock survives the loss of a minority of them.
//
// A [Locker] asks all instances at once. It has the lock as soon as a majority
// granted it, within a validity window that leaves room for clocks that drift;
// if it can't get a majority, it releases what it got. With one endpoint it is
// the same lock on a single instance.
//
//	locker, err := redlock.Open([]string{"redis://a:6379", "redis://b:6379", "redis://c:6379"})
//	...
//	lock, err := locker.Acquire(ctx, "invoice-42", 30*time.Second)
//	...
//	defer lock.Release(ctx)
//	// The work, until lock.ValidUntil(), with lock.FencingToken() in each write.
//
// # What a lock promises
//
// Order: every acquisition carries a fencing token, a number larger than that of
// every acquisition of the resource that completed before. That needs no clock
// while the instances remember the resource (see [WithFenceRetention]), and it
// holds whatever messages do: they may be late, repeated, reordered or lost.
//
// Mutual exclusion, under conditions: clocks run at the same rate within the
// drift and do not jump, a majority of the instances forgets nothing, and the
// holder does not go on after its window is over. Nobody can promise more with a
// lease: a holder that is paused between its last look at the clock and its write
// comes back late. A resource that checks the fencing token refuses that write.
//
// # What it does not promise
//
// It is no consensus store, it does not queue fairly between processes, and it
// can't make an unfenced resource safe. Replicas that take over from an instance
// may have lost its last writes: list independent masters.
package redlock
