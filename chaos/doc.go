// Package chaos shows the claims of the documentation on real redis-servers under
// faults. It is tests, and what they share.
package chaos
