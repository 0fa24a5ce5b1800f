package redlocktest

import (
	"fmt"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// What was sent to an instance that hangs, it does in the end: also if the client has
// given up, and closed. What was on its way when a connection broke is lost.
func TestWhatWasSentToAHungInstanceIsDoneInTheEnd(t *testing.T) {
	t.Parallel()
	send := func(c *Cluster) {
		c.Slow(0, time.Hour)
		conn, err := c.instances[0].dial()
		require.NoError(t, err)
		for _, key := range []string{"p", "q", "r"} {
			_, err := fmt.Fprintf(conn, "*3\r\n$3\r\nSET\r\n$1\r\n%s\r\n$5\r\nowner\r\n", key)
			require.NoError(t, err)
		}
		require.NoError(t, conn.Close())
	}
	c := New(t, 1)
	send(c)
	require.False(t, c.Held("r"))
	c.Up(0)
	require.Eventually(t, func() bool { return c.Owner("r") == "owner" }, 10*time.Second, time.Millisecond)

	c = New(t, 1)
	send(c)
	c.Down(0)
	c.Up(0)
	c.instances[0].running.Wait()
	require.False(t, c.Held("r"))
}
