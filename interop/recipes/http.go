package recipes

import (
	"errors"
	"net/http"
	"time"

	"github.com/quorumlock/redlock"
)

// OneAtATime serves requests for one thing (an order, an account) one at a time,
// on all machines together; of names it. A request waits for a second, and is told to
// come again after that: a browser that waits without end only adds to the queue.
//
// The handler's context ends when the lock is lost, or the client has gone. Its
// work should take a fraction of the ttl, so that no renewal is needed.
func OneAtATime(locker *redlock.Locker, of func(*http.Request) string, handle http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		lock, err := locker.Acquire(r.Context(), "http/"+of(r), 10*time.Second, redlock.WithMaxWait(time.Second), redlock.WithMaxHold(time.Minute))
		switch {
		case errors.Is(err, redlock.ErrTaken):
			w.Header().Set("Retry-After", "1")
			http.Error(w, "somebody else is at it", http.StatusConflict)
			return
		case err != nil:
			w.Header().Set("Retry-After", "5")
			http.Error(w, "try again later", http.StatusServiceUnavailable)
			return
		}
		defer lock.Release(r.Context()) // also when it panics
		handle.ServeHTTP(w, r.WithContext(lock.KeepAlive(r.Context())))
	})
}
