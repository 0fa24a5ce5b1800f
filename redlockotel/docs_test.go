package redlockotel_test

import (
	"testing"

	"github.com/quorumlock/redlock/internal/doctest"
)

// The code on the pages that needs this module compiles.
func TestTheCodeOnThePagesCompiles(t *testing.T) { doctest.Check(t, "..", "redlockotel") }
