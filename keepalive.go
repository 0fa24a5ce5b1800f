package redlock

import (
	"context"
	"slices"
)

// KeepAlive extends the lock in the background, by the ttl that was last asked
// for, until ctx ends, the lock is released or lost, or the time of [WithMaxHold]
// is over. It renews at about a third of the ttl; a renewal that failed is tried again,
// sooner, for as long as the lock is valid.
//
// The context that it returns is a child of ctx. It ends when the lock does, and
// never later than [Lock.ValidUntil], by a local timer: also when every instance
// hangs. Its [context.Cause] then matches [ErrLost] and is a *[LostError] with the
// reason; after a Release, LostReleased. What is done under the lock belongs on it:
//
//	ctx = lock.KeepAlive(ctx)
//
// When ctx ends, the renewals do, and the lock is still to be released. KeepAlive
// may be called more than once.
func (k *Lock) KeepAlive(ctx context.Context) context.Context {
	switch {
	case ctx == nil:
		return endedContext(context.Background(), errNilContext)
	case k == nil:
		return endedContext(ctx, errNilLock)
	}
	k.mu.Lock()
	defer k.mu.Unlock()
	if err := k.endedLocked(k.locker.now()); err != nil {
		return endedContext(ctx, err)
	}
	kept, cancel := context.WithCancelCause(ctx)
	w := &watcher{ctx: ctx, cancel: cancel}
	w.stop = context.AfterFunc(ctx, func() { k.unwatch(w) })
	if k.keeping == nil {
		k.keeping = newKeeping(k)
		k.locker.keeper.add(k.keeping, k.ttl)
	}
	k.keeping.watchers = append(k.keeping.watchers, w)
	return kept
}

func endedContext(ctx context.Context, cause error) context.Context {
	ctx, cancel := context.WithCancelCause(ctx)
	cancel(cause)
	return ctx
}

// A watcher is one context that ends with the lock.
type watcher struct {
	ctx    context.Context //nolint:containedctx // whose renewals they are, for the observer
	cancel context.CancelCauseFunc
	stop   func() bool
}

// unwatch takes w off, whose context has ended. Without the last one, nobody wants
// renewals any more.
func (k *Lock) unwatch(w *watcher) {
	k.mu.Lock()
	defer k.mu.Unlock()
	g := k.keeping
	if g == nil {
		return
	}
	g.watchers = slices.DeleteFunc(g.watchers, func(other *watcher) bool { return other == w })
	if len(g.watchers) == 0 {
		k.keeping = nil
		k.locker.keeper.hurry(g)
	}
}

// signalLocked ends the contexts of KeepAlive, and the renewals.
func (k *Lock) signalLocked(reason LostReason, cause error) {
	g := k.keeping
	if g == nil {
		return
	}
	k.keeping = nil
	why := &LostError{Resource: k.resource, Reason: reason, cause: cause}
	for _, w := range g.watchers {
		w.cancel(why)
		w.stop()
	}
	k.locker.keeper.hurry(g)
}
