// Package control exists because a test that finds nothing proves little: it plays
// situations in which a lock is known to be unsafe, on real servers, and shows that
// each of them breaks a resource that checks no tokens, every time; and that the
// same is harmless with fencing, or is refused by the quarantine, by another rule of
// the library or by Check.
//
// Each [Scenario] is a file of its own, with one fault. Its story is played several
// times: without the fault, where nothing may go wrong; with it, where something
// must; and with it behind each of its protections.
package control
