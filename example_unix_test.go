//go:build unix

package redlock_test

import (
	"context"
	"errors"
	"fmt"
	"log"
	"os"
	"os/signal"
	"syscall"
	"time"

	"github.com/quorumlock/redlock"
)

// A service that is told to stop: the work sees that its context ends, Do releases the
// lock, so that the next one need not wait for the ttl, and Close what is left.
func ExampleLocker_Close_sigterm() {
	endpoints, closeAll := fiveServers()
	defer closeAll()
	locker, err := redlock.Open(endpoints)
	if err != nil {
		log.Fatal(err)
	}

	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM, os.Interrupt)
	defer stop()
	err = locker.Do(ctx, "queue-7", 10*time.Second, func(ctx context.Context, lock *redlock.Lock) error {
		fmt.Println("working")
		_ = syscall.Kill(syscall.Getpid(), syscall.SIGTERM) // what the platform does
		<-ctx.Done()
		return ctx.Err()
	})
	switch {
	case errors.Is(err, redlock.ErrLost):
		fmt.Println("stopped, and the lock was lost before:", err)
	case errors.Is(err, context.Canceled):
		fmt.Println("stopped, and the lock is free")
	case err != nil:
		fmt.Println("failed:", err)
	}
	if err := locker.Close(); err != nil { // bounded, also when instances hang
		fmt.Println("left behind:", err)
	}
	// Output:
	// working
	// stopped, and the lock is free
}
