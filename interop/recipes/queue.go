package recipes

import (
	"context"
	"time"

	"github.com/quorumlock/redlock"
)

// A Message is delivered at least once, as by every queue: so it may be delivered
// twice, and to two workers at once.
type Message struct {
	ID      string // the same in each delivery
	Subject string // what it is about, and what it changes
	Body    []byte
}

// A Store is where messages take effect.
type Store interface {
	// Apply does what m says and notes m.ID, in one transaction; a message whose ID is
	// noted already changes nothing, and is no error. A token smaller than the largest
	// for m.Subject is refused.
	Apply(ctx context.Context, m Message, token uint64) error
}

// Consume handles a message. Idempotency comes first: that a message does its work
// once is for the Store to see to, which can do it in one transaction, and no lock
// replaces that (the worker may die between the work and the acknowledgement). The lock
// is for what the transaction can't have: that two messages of one subject don't
// call somebody else's API at the same time, say.
//
// An error means: deliver it again, later.
func Consume(ctx context.Context, locker *redlock.Locker, store Store, m Message) error {
	return locker.Do(ctx, "queue/"+m.Subject, 10*time.Second, func(ctx context.Context, lock *redlock.Lock) error {
		return store.Apply(ctx, m, lock.FencingToken())
	}, redlock.WithMaxWait(5*time.Second))
}
