package recipes

import (
	"context"
	"time"

	"github.com/quorumlock/redlock"
)

// Lead stands for election until ctx ends, and calls term whenever it is the leader.
// The context of term ends when the leadership does; term has to return then, and to
// send the fencing token with what it writes. If term returns before, with an error or
// not, the leadership is given up, and somebody else may get it.
//
// While it can't tell who leads (no quorum) it goes on trying: [redlock.Locker.Acquire]
// does.
func Lead(ctx context.Context, locker *redlock.Locker, role string, ttl time.Duration, term func(ctx context.Context, token uint64) error, failed func(error)) {
	for ctx.Err() == nil {
		err := locker.Do(ctx, "leader/"+role, ttl, func(ctx context.Context, lock *redlock.Lock) error {
			return term(ctx, lock.FencingToken())
		})
		if err != nil && ctx.Err() == nil {
			failed(err) // it is for the caller to say how loud; a loss is one, too
		}
	}
}
