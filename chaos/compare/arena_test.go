package compare

import (
	"bufio"
	"fmt"
	"io"
	"net"
	"os"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/quorumlock/redlock/chaos/compare/client"
	"github.com/quorumlock/redlock/internal/redistest"
)

// arenaOf starts a variant's instances, without clients.
func arenaOf(t *testing.T, name string, embedded bool) *arena {
	t.Helper()
	if !embedded {
		redistest.Need(t)
	}
	vs, err := choose(name)
	require.NoError(t, err)
	p := newPlan(1, false, embedded, true)
	p.clients, p.cutLink = 0, 100*ms
	a := &arena{plan: p, variant: vs[0], start: time.Now()}
	t.Cleanup(func() { require.NoError(t, a.close()) })
	require.NoError(t, a.setUp(t.Context()))
	return a
}

// fault returns the fault of that name.
func faultOf(t *testing.T, a *arena, name string) *fault {
	t.Helper()
	for _, f := range faults(a.slowness, a.cutLink) {
		if f.name == name {
			return &f
		}
	}
	require.Fail(t, "no such fault", name)
	return nil
}

// ask sends one command to the instance as a client does, through its proxy, and
// returns the first line of the reply; "" if there is none in the time.
func ask(t *testing.T, in *instance, limit time.Duration, command string) string {
	t.Helper()
	conn, err := net.Dial("tcp", in.proxy.Addr())
	require.NoError(t, err)
	defer conn.Close()
	require.NoError(t, conn.SetDeadline(time.Now().Add(limit)))
	words := strings.Fields(command)
	request := fmt.Sprintf("*%d\r\n", len(words))
	for _, w := range words {
		request += fmt.Sprintf("$%d\r\n%s\r\n", len(w), w)
	}
	if _, err := io.WriteString(conn, request); err != nil {
		return ""
	}
	r := bufio.NewReader(conn)
	line, err := r.ReadString('\n')
	if err == nil && strings.HasPrefix(line, "$") && !strings.HasPrefix(line, "$-1") {
		line, err = r.ReadString('\n')
	}
	if err != nil {
		return ""
	}
	return strings.TrimSpace(line)
}

const (
	soon  = 300 * ms
	later = 5 * time.Second
)

// Each fault does to the instance what its text says, and no more; after it
// the instance answers.
func TestAFaultDoesWhatItSays(t *testing.T) {
	for _, c := range []struct {
		fault           string
		silent          bool // while it lasts
		forgets, expire bool // what was written before; what had 3 s to live
		embedded        bool // an embedded instance can show it, and forgets nothing
	}{
		{fault: "kill", silent: true, forgets: true, expire: true, embedded: true},
		{fault: "hang", silent: true, embedded: true},
		{fault: "slow", embedded: true},
		{fault: "cut", silent: true, embedded: true},
		{fault: "restart", forgets: true, expire: true},
		{fault: "clock", expire: true},
		{fault: "flush", forgets: true, expire: true, embedded: true},
	} {
		for _, embedded := range []bool{false, true} {
			if embedded && !c.embedded {
				continue
			}
			t.Run(fmt.Sprintf("%s embedded=%v", c.fault, embedded), func(t *testing.T) {
				t.Parallel()
				a := arenaOf(t, "one", embedded)
				if c.fault == "clock" && a.instances[0].master.(server).clock == nil {
					t.Skip("SKIPPED, NOT PASSED: ", redistest.ErrNoClock)
				}
				in, f := a.instances[0], faultOf(t, a, c.fault)
				require.Equal(t, "+OK", ask(t, in, later, "SET forever x"))
				require.Equal(t, "+OK", ask(t, in, later, "SET lease x PX 3000"))

				require.NoError(t, f.begin(a, in))
				switch {
				case c.silent:
					require.Empty(t, ask(t, in, soon, "SET meanwhile x"))
				case c.fault == "slow":
					begin := time.Now()
					require.Equal(t, "+PONG", ask(t, in, later, "PING"))
					require.GreaterOrEqual(t, time.Since(begin), 2*a.slowness)
				default:
					require.Equal(t, "+PONG", ask(t, in, later, "PING"))
				}
				if !c.silent && c.expire {
					require.Equal(t, "$-1", ask(t, in, later, "GET lease"))
				}
				if f.end != nil {
					require.NoError(t, f.end(a, in))
				}
				want := "x"
				if c.forgets && !(embedded && c.fault == "kill") {
					want = "$-1"
				}
				require.Equal(t, want, ask(t, in, later, "GET forever"))
				if c.silent && c.fault != "hang" { // that one did not read it, but has it
					require.Equal(t, "$-1", ask(t, in, later, "GET meanwhile"))
				}
			})
		}
	}
}

// A replica takes over with what it has, and what it replaced follows it.
func TestAPromotedReplicaHasWhatWasReplicated(t *testing.T) {
	for _, name := range []string{"kill", "hang", "cut", "failover"} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			a := arenaOf(t, "failover", false)
			a.cutLink = 500 * ms
			in, f := a.instances[0], faultOf(t, a, name)
			require.Equal(t, "+OK", ask(t, in, later, "SET before x"))
			require.Eventually(t, func() bool {
				reply, err := in.replica.Do("GET", "before")
				return err == nil && reply == "x"
			}, later, ms)
			replica, written := in.replica.Addr(), 0
			if name == "failover" {
				begun := make(chan error, 1)
				go func() { begun <- f.begin(a, in) }()
				for in.master.PID() != 0 {
					if ask(t, in, later, fmt.Sprint("SET last ", written+1)) == "+OK" {
						written++
					}
				}
				require.NoError(t, <-begun)
				require.Greater(t, written, 3)
			} else {
				require.NoError(t, f.begin(a, in))
			}
			require.NoError(t, a.promote(in))
			require.Equal(t, replica, in.master.Addr())
			require.Equal(t, "x", ask(t, in, later, "GET before"))
			if name == "failover" {
				kept, _ := strconv.Atoi(ask(t, in, later, "GET last")) // 0 if it has none
				require.LessOrEqual(t, kept, written-3)
			}
			require.NoError(t, f.end(a, in))
			require.Equal(t, "+OK", ask(t, in, later, "SET after x"))
			require.NoError(t, in.synced(later))
			require.Eventually(t, func() bool {
				reply, err := in.replica.Do("GET", "after")
				return err == nil && reply == "x"
			}, later, 10*ms)
		})
	}
}

// A client that is stopped reads no end of its input.
func TestAStoppedClientIsEnded(t *testing.T) {
	p, err := startProcess([]string{os.Args[0]}, client.Job{})
	require.NoError(t, err)
	require.NoError(t, p.Pause())
	require.NoError(t, p.close())
	require.False(t, p.Alive())
}
