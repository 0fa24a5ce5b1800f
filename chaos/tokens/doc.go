// Package tokens shows what fencing tokens promise, on real redis-servers under
// faults. It is tests, and what they share.
package tokens
