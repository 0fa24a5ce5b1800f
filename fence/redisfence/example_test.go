package redisfence_test

import (
	"context"
	"errors"
	"fmt"
	"log"

	"github.com/alicebob/miniredis/v2"
	"github.com/redis/go-redis/v9"

	"github.com/quorumlock/redlock/fence"
	"github.com/quorumlock/redlock/fence/redisfence"
)

// dataServer stands for the Redis that holds the data.
func dataServer() (client *redis.Client, closeAll func()) {
	server := miniredis.NewMiniRedis()
	if err := server.Start(); err != nil {
		log.Fatal(err)
	}
	client = redis.NewClient(&redis.Options{Addr: server.Addr()})
	return client, func() { _ = client.Close(); server.Close() }
}

// Token 33 is that of a holder that was paused, 34 that of the one after it.
func ExampleGuard() {
	client, closeAll := dataServer()
	defer closeAll()
	ctx := context.Background()

	guard, err := redisfence.New(client)
	if err != nil {
		log.Fatal(err)
	}
	// The first operation raises the mark, also if it only reads.
	if err := guard.Check(ctx, "cart", 34); err != nil {
		log.Fatal(err)
	}
	fmt.Println(client.HGet(ctx, "cart", "apples").Err())

	// One command, behind the check: any that a script may call.
	fmt.Println(guard.Do(ctx, "cart", 34, []string{"cart"}, "HSET", "cart", "apples", 3).Int())
	err = guard.Do(ctx, "cart", 33, []string{"cart"}, "HSET", "cart", "apples", 2).Err()
	fmt.Println(errors.Is(err, fence.ErrStale), err)
	// Output:
	// redis: nil
	// 1 <nil>
	// true fence: stale: "cart": token 33 is smaller than 34
}

// A script of your own, which sees its KEYS and ARGV as if there were no guard.
func ExampleGuard_Run() {
	client, closeAll := dataServer()
	defer closeAll()
	ctx := context.Background()

	guard, err := redisfence.New(client)
	if err != nil {
		log.Fatal(err)
	}
	move, err := redisfence.NewScript(`
		redis.call('DECRBY', KEYS[1], ARGV[1])
		return redis.call('INCRBY', KEYS[2], ARGV[1])`)
	if err != nil {
		log.Fatal(err)
	}
	keys := []string{"{accounts}:a", "{accounts}:b"} // one hash tag: one slot, also for the mark
	fmt.Println(guard.Run(ctx, "{accounts}", 34, move, keys, 10).Int())
	fmt.Println(guard.Run(ctx, "{accounts}", 33, move, keys, 10).Int())
	// Output:
	// 10 <nil>
	// 0 fence: stale: "{accounts}": token 33 is smaller than 34
}
