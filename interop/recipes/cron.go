package recipes

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/quorumlock/redlock"
)

// OncePerTick runs a job of cron on one of the machines whose cron starts it. tick is
// when it was due, the same on all of them, as time.Now().Truncate(time.Hour) is; it
// reports whether the job ran here.
//
// The tick belongs to the resource, and a success is not released: otherwise a machine
// whose clock is a second behind would find the lock free again, and run the job a
// second time. For spread, the most by which the machines' clocks and cron differ, the
// lock then tells them that it is done: unless the Locker is closed before, which
// releases it. A job that failed, and one whose machine died, is free for the next
// machine to come. What must never run twice also notes its tick where it writes.
func OncePerTick(ctx context.Context, locker *redlock.Locker, job string, tick time.Time, spread time.Duration, run func(context.Context) error) (ran bool, err error) {
	resource := fmt.Sprintf("cron/%s/%d", job, tick.Unix())
	lock, err := locker.TryAcquire(ctx, resource, spread)
	switch {
	case errors.Is(err, redlock.ErrTaken):
		return false, nil
	case err != nil:
		return false, err
	}
	work, done := context.WithCancel(ctx)
	err = run(lock.KeepAlive(work))
	done() // no more renewals
	if err != nil {
		return true, errors.Join(err, lock.Release(ctx))
	}
	return true, lock.Extend(ctx, spread)
}
