// Package mutants exists because a test that nobody has seen fail proves nothing: it
// is a list of faults that the library could have, each of them dangerous and small,
// and a runner that puts one after the other into a copy of one file and shows that a
// named test, and mostly the simulation too, finds it.
//
// A [Mutant] changes the text of one file in one place. The runner hands the changed
// file to the compiler with the -overlay flag of the go command; nothing in the source
// tree is touched.
package mutants
