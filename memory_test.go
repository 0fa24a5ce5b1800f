package redlock_test

import (
	"context"
	"fmt"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/quorumlock/redlock"
	"github.com/quorumlock/redlock/internal/redistest"
)

// What a resource costs an instance: the figures of docs/fencing.md, with -v. The
// numbers of resources fill the server's hash tables alike, so that the cases differ
// by the names alone. (As much as they do: tables grow by doubling, and those of the
// server here are as large as the locks that were held have made them.)
func TestAReleasedResourceCostsOneSmallKey(t *testing.T) {
	const callers = 200
	for _, c := range []struct {
		resources, length int
		prefix            string
		held, left        float64 // at most, in bytes for each resource: while it is held, and once it is released
	}{
		{resources: 100_000, length: 12, held: 330, left: 180},
		{resources: 25_000, length: 100, held: 510, left: 270},
		{resources: 25_000, length: 1000, held: 2520, left: 1270},
		{resources: 25_000, length: 12, prefix: "lock:", held: 340, left: 185},
	} {
		t.Run(fmt.Sprintf("%d resources of %d bytes, prefix %q", c.resources, c.length, c.prefix), func(t *testing.T) {
			s := redistest.Start(t)
			l, err := redlock.Open([]string{s.URL()}, redlock.WithKeyPrefix(c.prefix), redlock.WithQuarantine(0))
			require.NoError(t, err)
			defer l.Close()
			each := func(f func(i int) error) {
				var wg sync.WaitGroup
				for first := range callers {
					wg.Go(func() {
						for i := first; i < c.resources; i += callers {
							if err := f(i); err != nil {
								t.Errorf("resource %d: %v", i, err)
								return
							}
						}
					})
				}
				wg.Wait()
			}
			before := usedMemory(t, s)
			perResource := func() float64 { return float64(usedMemory(t, s)-before) / float64(c.resources) }

			locks := make([]*redlock.Lock, c.resources)
			each(func(i int) (err error) {
				locks[i], err = l.Acquire(t.Context(), fmt.Sprintf("%0*d", c.length, i), time.Hour)
				return err
			})
			require.EqualValues(t, 2*c.resources, s.MustDo(t, "DBSIZE"))
			held := perResource()
			each(func(i int) error { return locks[i].Release(context.Background()) })
			require.EqualValues(t, c.resources, s.MustDo(t, "DBSIZE"), "the fences stay")
			left := perResource()
			t.Logf("%.0f bytes for each while it is held, %.0f once it is released", held, left)
			require.Less(t, held, c.held)
			require.Less(t, left, c.left)
		})
	}
}

// usedMemory returns what s has allocated, in bytes.
func usedMemory(t *testing.T, s *redistest.Server) int {
	t.Helper()
	info, ok := s.MustDo(t, "INFO", "memory").(string)
	require.True(t, ok)
	_, rest, found := strings.Cut(info, "\r\nused_memory:")
	require.True(t, found, info)
	digits, _, _ := strings.Cut(rest, "\r\n")
	n, err := strconv.Atoi(digits)
	require.NoError(t, err)
	return n
}
