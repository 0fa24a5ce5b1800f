package recipes

import (
	"context"
	"fmt"
	"time"

	"github.com/quorumlock/redlock"
)

// A Schema is a database that knows its version.
type Schema interface {
	Version(ctx context.Context) (int, error)
	// Apply brings it from version to version+1, in one transaction that fails if
	// the version is another one by then: UPDATE schema SET version = version + 1
	// WHERE version = ?, and one row was changed.
	Apply(ctx context.Context, version int) error
}

// Migrate brings a database to version want, when ten machines of a deployment start
// at once: one does it, the others wait until it is done. Each looks at the version
// once it has the lock, and most of them find nothing left to do.
//
// The lock saves work and noise. What keeps a step from running twice is the
// transaction of Apply. If the database has a lock of its own (pg_advisory_lock,
// GET_LOCK), it is the better one here: it ends with the connection.
func Migrate(ctx context.Context, locker *redlock.Locker, database string, schema Schema, want int) error {
	return locker.Do(ctx, "migrate/"+database, 30*time.Second, func(ctx context.Context, _ *redlock.Lock) error {
		for {
			version, err := schema.Version(ctx)
			if err != nil || version >= want {
				return err
			}
			if err := schema.Apply(ctx, version); err != nil {
				return fmt.Errorf("from version %d: %w", version, err)
			}
		}
	})
}
