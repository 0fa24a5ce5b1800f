package redlock_test

import (
	"context"
	"errors"
	"fmt"
	"log"
	"log/slog"
	"os"
	"strings"
	"time"

	"github.com/alicebob/miniredis/v2"
	"github.com/redis/go-redis/v9"

	"github.com/quorumlock/redlock"
)

// fiveServers stands for five independent Redis masters.
func fiveServers() (endpoints []string, closeAll func()) {
	var servers []*miniredis.Miniredis
	for range 5 {
		s := miniredis.NewMiniRedis()
		if err := s.Start(); err != nil {
			log.Fatal(err)
		}
		servers = append(servers, s)
		endpoints = append(endpoints, "redis://"+s.Addr())
	}
	return endpoints, func() {
		for _, s := range servers {
			s.Close()
		}
	}
}

// The quick start of the README.
func Example() {
	endpoints, closeAll := fiveServers()
	defer closeAll()

	locker, err := redlock.Open(endpoints)
	if err != nil {
		log.Fatal(err)
	}
	defer locker.Close()

	ctx, cancel := context.WithTimeout(context.Background(), 5*time.Second)
	defer cancel()
	lock, err := locker.Acquire(ctx, "invoice-42", 10*time.Second) // waits until ctx ends
	if err != nil {
		log.Fatal(err)
	}
	defer lock.Release(ctx)

	// The work. Send lock.FencingToken() with every write, and stop when
	// lock.Remaining() is used up.
	fmt.Println("holding", lock.Resource(), lock.Remaining() > 9*time.Second, lock.FencingToken() > 0)
	// Output: holding invoice-42 true true
}

// One endpoint is single-instance mode: the same API with a quorum of one.
func ExampleOpen_singleInstance() {
	endpoints, closeAll := fiveServers()
	defer closeAll()

	locker, err := redlock.Open(endpoints[:1])
	if err != nil {
		log.Fatal(err)
	}
	defer locker.Close()
	lock, err := locker.TryAcquire(context.Background(), "invoice-42", 10*time.Second)
	if err != nil {
		log.Fatal(err)
	}
	fmt.Println("released:", lock.Release(context.Background()) == nil)
	// Output: released: true
}

// Clients of your own, with whatever settings; Close leaves them open.
func ExampleNew() {
	endpoints, closeAll := fiveServers()
	defer closeAll()

	var instances []redlock.Instance
	for i, endpoint := range endpoints {
		options, err := redis.ParseURL(endpoint)
		if err != nil {
			log.Fatal(err)
		}
		client := redis.NewClient(options)
		defer client.Close()
		instances = append(instances, redlock.Instance{Name: fmt.Sprint("redis-", i+1), Client: client})
	}
	locker, err := redlock.New(instances, redlock.WithKeyPrefix("lock:"))
	if err != nil {
		log.Fatal(err)
	}
	defer locker.Close()
	lock, err := locker.TryAcquire(context.Background(), "invoice-42", 10*time.Second)
	if err != nil {
		log.Fatal(err)
	}
	defer lock.Release(context.Background())
	fmt.Println(lock.Resource(), lock.Remaining() > 0)
	// Output: invoice-42 true
}

// Before you rely on a set of servers, ask whether they are fit for it. These five
// are embedded in the test: they lock, but tell little about themselves.
func ExampleLocker_Check() {
	endpoints, closeAll := fiveServers()
	defer closeAll()
	locker, err := redlock.Open(endpoints)
	if err != nil {
		log.Fatal(err)
	}
	defer locker.Close()

	report, err := locker.Check(context.Background()) // fmt.Print(report) prints a table
	var unsafe *redlock.UnsafeError
	if !errors.As(err, &unsafe) && err != nil {
		log.Fatal(err)
	}
	for _, f := range report.Instances[0].Findings {
		if f.Severity == redlock.Unsafe {
			fmt.Printf("%s: %s\n  -> %s\n", f.Check, f.Text, f.Fix)
		}
	}
	// Output:
	// restart: it does not tell when it started: one that restarts and forgets its locks is not noticed
	//   -> use a server that tells uptime_in_seconds in INFO
}

// Taken and unreachable are different answers, and call for different actions.
func ExampleLocker_TryAcquire() {
	endpoints, closeAll := fiveServers()
	defer closeAll()
	locker, err := redlock.Open(endpoints)
	if err != nil {
		log.Fatal(err)
	}
	defer locker.Close()
	ctx := context.Background()

	first, err := locker.TryAcquire(ctx, "invoice-42", 10*time.Second)
	if err != nil {
		log.Fatal(err)
	}
	defer first.Release(ctx)

	_, err = locker.TryAcquire(ctx, "invoice-42", 10*time.Second)
	switch {
	case errors.Is(err, redlock.ErrTaken):
		fmt.Println("somebody else is at it")
	case errors.Is(err, redlock.ErrNoQuorum):
		fmt.Println("too few instances answered:", err)
	case err != nil:
		fmt.Println("neither:", err)
	}
	// Output: somebody else is at it
}

// A job that takes longer than its ttl extends the lock as it goes, and stops
// when it can't.
func ExampleLock_Extend() {
	endpoints, closeAll := fiveServers()
	defer closeAll()
	locker, err := redlock.Open(endpoints)
	if err != nil {
		log.Fatal(err)
	}
	defer locker.Close()
	ctx := context.Background()

	lock, err := locker.Acquire(ctx, "nightly-report", 2*time.Second)
	if err != nil {
		log.Fatal(err)
	}
	defer lock.Release(ctx)
	for page := range 3 {
		if lock.Remaining() < time.Second+500*time.Millisecond {
			if err := lock.Extend(ctx, 2*time.Second); errors.Is(err, redlock.ErrLost) {
				log.Fatal("stop at once: ", err)
			}
		}
		fmt.Println("page", page+1)
	}
	// Output:
	// page 1
	// page 2
	// page 3
}

// Do holds the lock while a function runs, however long that takes. Its context ends
// when the lock is lost, and Do says so.
func ExampleLocker_Do() {
	endpoints, closeAll := fiveServers()
	defer closeAll()
	locker, err := redlock.Open(endpoints)
	if err != nil {
		log.Fatal(err)
	}
	defer locker.Close()

	err = locker.Do(context.Background(), "nightly-report", 2*time.Second, func(ctx context.Context, lock *redlock.Lock) error {
		for page := range 3 {
			if ctx.Err() != nil {
				return context.Cause(ctx) // stop at once: somebody else may be at it
			}
			fmt.Println("page", page+1)
		}
		return nil
	})
	fmt.Println("lost:", errors.Is(err, redlock.ErrLost))
	// Output:
	// page 1
	// page 2
	// page 3
	// lost: false
}

// A lock that is kept alive holds until it is released or lost; the context tells which.
func ExampleLock_KeepAlive() {
	endpoints, closeAll := fiveServers()
	defer closeAll()
	locker, err := redlock.Open(endpoints)
	if err != nil {
		log.Fatal(err)
	}
	defer locker.Close()

	lock, err := locker.Acquire(context.Background(), "nightly-report", 2*time.Second, redlock.WithMaxHold(time.Hour))
	if err != nil {
		log.Fatal(err)
	}
	ctx := lock.KeepAlive(context.Background())
	fmt.Println("holding:", ctx.Err() == nil) // the work belongs on ctx

	if err := lock.Release(context.Background()); err != nil {
		log.Fatal(err)
	}
	var lost *redlock.LostError
	if errors.As(context.Cause(ctx), &lost) {
		fmt.Println("it ended:", lost.Reason)
	}
	// Output:
	// holding: true
	// it ended: released
}

// Errors and harm go to a log, by the class of a resource; a count of what is lost goes
// wherever it is wanted.
func ExampleMultiObserver() {
	endpoints, closeAll := fiveServers()
	defer closeAll()

	class := func(resource string) string { c, _, _ := strings.Cut(resource, ":"); return c }
	outcomes := make(chan redlock.Outcome, 1)
	locker, err := redlock.Open(endpoints, redlock.WithObserver(redlock.MultiObserver(
		redlock.SlogObserver(slog.New(slog.DiscardHandler), class),
		redlock.Observer{Acquire: func(e redlock.AcquireEvent) { outcomes <- e.Outcome }},
	)))
	if err != nil {
		log.Fatal(err)
	}
	defer locker.Close()

	lock, err := locker.Acquire(context.Background(), "invoice:42", 10*time.Second)
	if err != nil {
		log.Fatal(err)
	}
	fmt.Println(<-outcomes, locker.Stats().Held)
	lock.Release(context.Background())
	// Output: acquired 1
}

// A log that names classes of resources, as text on standard output and without the time.
func ExampleSlogObserver() {
	endpoints, closeAll := fiveServers()
	defer closeAll()

	logger := slog.New(slog.NewTextHandler(os.Stdout, &slog.HandlerOptions{
		ReplaceAttr: func(_ []string, a slog.Attr) slog.Attr {
			if a.Key != slog.MessageKey && a.Key != slog.LevelKey && a.Key != "class" && a.Key != "reason" {
				return slog.Attr{}
			}
			return a
		},
	}))
	class := func(resource string) string { c, _, _ := strings.Cut(resource, ":"); return c }
	locker, err := redlock.Open(endpoints, redlock.WithQuarantine(0), redlock.WithObserver(redlock.SlogObserver(logger, class)))
	if err != nil {
		log.Fatal(err)
	}
	if _, err := locker.Acquire(context.Background(), "invoice:42", 10*time.Second); err != nil {
		log.Fatal(err)
	}
	locker.Close() // with a lock that is held
	// Output:
	// level=INFO msg="redlock: lease lost" class=invoice reason=closed
}
