// Package sim exists because the interesting schedules are the rare ones: it runs the
// library in virtual time, thousands of schedules of faults a minute, each made from
// a seed, and checks what the documentation claims.
//
// A schedule is a few clients, their workers' programs, some instances, a network and
// a list of faults. In its first part everything may go wrong, and safety is checked;
// then it all heals, and everybody must make progress. What runs is the library as it
// is, with go-redis, over connections in memory. The instances come in two sizes: the
// whole stack has the real Lua script in miniredis, the core a model of it, which is
// several times as fast and is tested against the script, see [model].
//
// A schedule does the same each time that it runs, whatever the scheduler of goroutines
// does. No two messages arrive at one instant, and how long a message takes depends on
// the seed and on which message it is, not on who was first to ask for a random number.
// Goroutines that are woken at one instant go on at instants of their own, see keep: the
// library asks for that through a seam. What is random in the library itself, the pauses,
// is made of the seed and the instant through another; owners are renamed in the order in
// which they appear.
package sim
