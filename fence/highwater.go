package fence

import (
	"context"
	"fmt"
	"sync"
)

// A HighWater guards resources that this process owns: files, devices, whatever
// nobody else writes. The zero HighWater is ready to use; its methods are safe
// for concurrent use, and it must not be copied after the first.
//
// It remembers the mark of every resource that it was asked for, some 200 bytes
// each, until [HighWater.Forget]: which of them a late holder may still come back
// to, only the application knows. All are lost with the process. Store the token
// beside the data, and pass it to [HighWater.Check] when the data is opened again.
type HighWater struct {
	tally Tally

	mu    sync.Mutex
	marks map[string]*mark
}

type mark struct {
	highest uint64        // 0: none since it was made or forgotten
	users   int           // calls that have or await the turn
	turn    chan struct{} // full while a call has the turn
}

// Do runs fn if token is at least as large as every token that it has seen for
// resource, and returns fn's error. A smaller one gets a *[StaleError], and fn is
// not run. No other token of the resource passes until fn has returned: a smaller
// one would see the mark, but a larger one might overtake the write. So calls for
// one resource take turns, and fn must not call Do or Check for its own.
//
// The mark stays raised whatever becomes of fn. If ctx ends while Do waits for its
// turn, it returns an error that matches that of ctx.
func (h *HighWater) Do(ctx context.Context, resource string, token uint64, fn func(ctx context.Context) error) error {
	if err := Validate(resource, token); err != nil {
		return err
	}
	m := h.join(resource)
	defer h.leave(resource, m)
	select {
	case m.turn <- struct{}{}:
		defer func() { <-m.turn }()
	case <-ctx.Done():
		return fmt.Errorf("fence: %s: waiting for the write before: %w", quote(resource), ctx.Err())
	}
	if err := h.raise(m, resource, token); err != nil {
		return err
	}
	return fn(ctx)
}

// Check is Do without a write: it raises the mark, as a holder's first read must.
// A write that follows it is another step, which a larger token can come before.
func (h *HighWater) Check(ctx context.Context, resource string, token uint64) error {
	return h.Do(ctx, resource, token, func(context.Context) error { return nil })
}

// Forget drops what is known of resource: the next token passes, whichever it is.
// It is for resources that no holder can come back to, such as deleted ones.
func (h *HighWater) Forget(resource string) {
	h.mu.Lock()
	defer h.mu.Unlock()
	m := h.marks[resource]
	switch {
	case m == nil:
	case m.users == 0:
		delete(h.marks, resource)
	default:
		m.highest = 0 // and leave deletes it; a second mark would grant a second turn
	}
}

// CountDuplicate counts an execution that the application found to be a duplicate.
func (h *HighWater) CountDuplicate() { h.tally.CountDuplicate() }

// Counts returns what was counted.
func (h *HighWater) Counts() Counts { return h.tally.Counts() }

func (h *HighWater) join(resource string) *mark {
	h.mu.Lock()
	defer h.mu.Unlock()
	m := h.marks[resource]
	if m == nil {
		if h.marks == nil {
			h.marks = map[string]*mark{}
		}
		m = &mark{turn: make(chan struct{}, 1)}
		h.marks[resource] = m
	}
	m.users++
	return m
}

func (h *HighWater) leave(resource string, m *mark) {
	h.mu.Lock()
	defer h.mu.Unlock()
	m.users--
	if m.users == 0 && m.highest == 0 {
		delete(h.marks, resource)
	}
}

func (h *HighWater) raise(m *mark, resource string, token uint64) error {
	h.mu.Lock()
	defer h.mu.Unlock()
	if err := h.tally.Compare(resource, token, m.highest); err != nil {
		return err
	}
	m.highest = token
	return nil
}
