// Package faults shows what the library promises on real redis-server processes: client
// processes work on resources that locks guard, while servers, connections, clocks and
// the clients themselves fail as they do in the field, by a schedule that a seed fixes.
// The history of the run is then checked.
//
// A scenario is a kind of servers and the faults that befall them. It is inside the
// assumptions of docs/safety-model.md, and then there are never two holders; or it breaks
// one of them, and then a resource that checks fencing tokens is still right.
package faults
