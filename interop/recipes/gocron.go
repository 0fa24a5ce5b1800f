package recipes

import (
	"context"
	"time"

	"github.com/go-co-op/gocron/v2"

	"github.com/quorumlock/redlock"
)

// A CronLocker makes gocron run a job on one machine at a time:
//
//	gocron.NewScheduler(gocron.WithDistributedLocker(recipes.CronLocker{locker, time.Minute}))
//
// A machine that finds the job taken skips this run. gocron gives the job no
// context that ends with the lock: a job that must not overlap with its successor
// belongs into [OncePerTick], or checks a fencing token.
type CronLocker struct {
	Locker *redlock.Locker
	TTL    time.Duration // how long others wait for a machine that died
}

var _ gocron.Locker = CronLocker{}

// Lock asks once: whoever waited would run the job a second time, after the first.
func (c CronLocker) Lock(ctx context.Context, job string) (gocron.Lock, error) {
	lock, err := c.Locker.TryAcquire(ctx, "cron/"+job, c.TTL)
	if err != nil {
		return nil, err
	}
	lock.KeepAlive(context.WithoutCancel(ctx)) // until Unlock, however long the job takes
	return cronLock{lock}, nil
}

type cronLock struct{ *redlock.Lock }

func (l cronLock) Unlock(ctx context.Context) error { return l.Release(ctx) }
