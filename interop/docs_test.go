package interop

import (
	"testing"

	"github.com/quorumlock/redlock/internal/doctest"
)

// The code on the pages that needs other libraries compiles.
func TestTheCodeOnThePagesCompiles(t *testing.T) { doctest.Check(t, "..", "interop") }
