// Package redlocktest exists so that a team can test what its own code does when a
// lock is taken, slow or lost: N in-memory instances, with switches for their
// faults, and no Redis.
//
//	cluster := redlocktest.New(t, 3)
//	worker := NewWorker(cluster.Locker())
//	...
//	cluster.Lose("invoice-42") // does the worker stop?
//
// Code that opens its Locker by itself gets the endpoints and one more option:
//
//	locker, err := redlock.Open(cluster.Endpoints(), cluster.Option())
//
// # Virtual time
//
// Everything runs in memory, over [net.Pipe], so that a cluster works in a bubble
// of [testing/synctest], too. There, a lock of an hour expires at once, at exactly
// its time, and a test of it takes milliseconds:
//
//	synctest.Test(t, func(t *testing.T) {
//		cluster := redlocktest.New(t, 3) // in the bubble, not before it
//		lock, err := cluster.Locker().Acquire(t.Context(), "invoice-42", time.Hour)
//		...
//		time.Sleep(time.Hour) // takes none
//	})
//
// A call returns when a majority has answered, and a fault that comes right then may
// come before what is still on its way to the others: call [synctest.Wait] between
// the two. And what has forgotten its fencing tokens goes by the clients' clocks, so
// that two acquires around a [Cluster.Forget] need a moment between them.
//
// Go 1.26 may crash in bubbles under the race detector (https://go.dev/issue/78156):
// skip such tests under -race, as the tests of this package do, and let others, in
// real time and with short ttls, look for races.
//
// # What it is not
//
// The instances are miniredis, driven by the scripts of the real thing: votes,
// expiries, fencing tokens and the quarantine after a restart are as with servers.
// But all clocks agree, and nothing is ever on a disk; there are no users with rights,
// no replicas and no limits of memory, so that [redlock.Locker.Check] finds little to
// look at; and the speed is that of a fake. Measure, and check, on servers.
package redlocktest
