package fence_test

import (
	"context"
	"errors"
	"fmt"

	"github.com/quorumlock/redlock/fence"
)

// A file that only this process writes. Token 33 is that of a holder that was
// paused, 34 that of the one after it.
func ExampleHighWater() {
	var guard fence.HighWater
	ctx := context.Background()
	write := func(token uint64, text string) error {
		return guard.Do(ctx, "report.txt", token, func(context.Context) error {
			fmt.Println("written:", text)
			return nil
		})
	}

	fmt.Println(write(34, "by the new holder"))
	err := write(33, "by the late one")
	fmt.Println(err)

	var stale *fence.StaleError
	fmt.Println(errors.Is(err, fence.ErrStale), errors.As(err, &stale) && stale.Current == 34)
	fmt.Printf("%+v\n", guard.Counts())
	// Output:
	// written: by the new holder
	// <nil>
	// fence: stale: "report.txt": token 33 is smaller than 34
	// true true
	// {Accepted:1 Stale:1 Duplicates:0}
}

// account is a balance behind a guard.
type account struct {
	guard   fence.HighWater
	balance int
}

// read goes through the guard, as the first operation of a holder must.
func (a *account) read(token uint64) (balance int, err error) {
	err = a.guard.Do(context.Background(), "account", token, func(context.Context) error {
		balance = a.balance
		return nil
	})
	return balance, err
}

func (a *account) write(token uint64, balance int) error {
	return a.guard.Do(context.Background(), "account", token, func(context.Context) error {
		a.balance = balance
		return nil
	})
}

// The lost update that a guard of the writes alone does not see, and how the guard
// of the first read shuts it out. A, with token 33, is paused after its read; B,
// with token 34, is the holder after it. Each adds to the balance that it has read.
func ExampleHighWater_firstRead() {
	a := &account{balance: 100}
	readByA := a.balance                                     // past the guard
	readByB := a.balance                                     // past the guard
	fmt.Println("A adds 50:", a.write(33, readByA+50))       // late, but the guard has not seen 34 yet
	fmt.Println("B adds 1:", a.write(34, readByB+1))         // the larger token: nothing looks wrong
	fmt.Println("balance:", a.balance, "and A's 50 is lost") // neither was told

	a = &account{balance: 100}
	readByA, _ = a.read(33)
	readByB, _ = a.read(34) // raises the mark: from here on A can't write
	fmt.Println("A adds 50:", a.write(33, readByA+50))
	fmt.Println("B adds 1:", a.write(34, readByB+1))
	fmt.Println("balance:", a.balance, "and A knows")
	// Output:
	// A adds 50: <nil>
	// B adds 1: <nil>
	// balance: 101 and A's 50 is lost
	// A adds 50: fence: stale: "account": token 33 is smaller than 34
	// B adds 1: <nil>
	// balance: 101 and A knows
}
