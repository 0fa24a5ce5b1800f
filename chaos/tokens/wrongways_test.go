package tokens

import (
	"strconv"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/quorumlock/redlock"
	"github.com/quorumlock/redlock/chaos/history"
	"github.com/quorumlock/redlock/internal/redistest"
)

// A trial plays a schedule of steps on three real servers, each step one script on
// one of them, as a client with the right or with a wrong rule would send it, and
// records what the clients believe to have acquired.
type trial struct {
	t       *testing.T
	servers []*redistest.Server
	now     int64
	ops     []history.Op
}

// grant is the acquire of our protocol on server z: the fence after it, 0 if it
// was refused. A repeat by the same owner is granted again.
func (x *trial) grant(z int, owner string, seed int64) int64 {
	return x.eval(z, `
		local l = redis.call('GET', 'L')
		if l == ARGV[1] then return tonumber(redis.call('GET', 'F')) end
		if l then return 0 end
		local f = math.max(tonumber(redis.call('GET', 'F') or '0') + 1, tonumber(ARGV[2]))
		redis.call('SET', 'F', string.format('%.0f', f))
		redis.call('SET', 'L', ARGV[1])
		return f`, owner, strconv.FormatInt(seed, 10))
}

// raise is the raise of our protocol: 1 if F is token now. Without the owner's
// check it is a wrong one.
func (x *trial) raise(z int, owner string, token int64, checkOwner bool) int64 {
	check := "1"
	if !checkOwner {
		check = "0"
	}
	return x.eval(z, `
		if ARGV[3] == '1' and redis.call('GET', 'L') ~= ARGV[1] then return 0 end
		if tonumber(redis.call('GET', 'F') or '0') > tonumber(ARGV[2]) then return 0 end
		redis.call('SET', 'F', ARGV[2])
		return 1`, owner, strconv.FormatInt(token, 10), check)
}

func (x *trial) eval(z int, script string, args ...string) int64 {
	command := append([]string{"EVAL", script, "0"}, args...)
	n, ok := x.servers[z].MustDo(x.t, command...).(int64)
	require.True(x.t, ok)
	return n
}

// expire is the end of a lock key, whatever the reason.
func (x *trial) expire(zs ...int) {
	for _, z := range zs {
		x.servers[z].MustDo(x.t, "DEL", "L")
	}
}

// begin starts an acquisition; what it returns completes it with a token.
func (x *trial) begin(client int) (complete func(token int64)) {
	x.now++
	call := x.now
	return func(token int64) {
		x.now++
		x.ops = append(x.ops, history.Op{
			Client: client, Resource: "r", Kind: history.Acquire, Call: call, Return: x.now, Token: uint64(token), //nolint:gosec // positive
		})
	}
}

// open returns a Locker on the servers zs.
func (x *trial) open(zs []int, opts ...redlock.Option) *redlock.Locker {
	var endpoints []string
	for _, z := range zs {
		endpoints = append(endpoints, x.servers[z].Addr())
	}
	l, err := redlock.Open(endpoints, append(opts, redlock.WithInstanceTimeout(time.Second))...)
	require.NoError(x.t, err)
	x.t.Cleanup(func() { _ = l.Close() })
	return l
}

// acquire completes an acquisition by l.
func (x *trial) acquire(client int, l *redlock.Locker) {
	done := x.begin(client)
	lock, err := l.Acquire(x.t.Context(), "r", tokensTTL)
	require.NoError(x.t, err)
	done(int64(lock.FencingToken())) //nolint:gosec // below 2^53
}

// The known wrong ways to issue tokens, each with a schedule in which it goes
// wrong: the check finds it, and finds nothing where the same schedule is played
// by the rules.
func TestTheCheckFindsTheKnownWrongWays(t *testing.T) {
	const a, b, c = 0, 1, 2 // servers
	for name, schedule := range map[string]func(x *trial, wrong bool){
		"the largest INCR of a majority, not written back": func(x *trial, wrong bool) {
			x.servers[a].MustDo(x.t, "SET", "F", "100")
			done := x.begin(1)
			t1 := max(x.grant(a, "o1", 1), x.grant(b, "o1", 1)) // 101 and 1
			if !wrong {
				require.EqualValues(x.t, 1, x.raise(b, "o1", t1, true))
			}
			done(t1)
			x.expire(a, b)
			done = x.begin(2)
			t2 := max(x.grant(b, "o2", 1), x.grant(c, "o2", 1)) // 2 and 1
			if !wrong {
				require.EqualValues(x.t, 1, x.raise(c, "o2", t2, true))
			}
			done(t2)
		},
		"a raise without the owner's check": func(x *trial, wrong bool) {
			x.servers[b].MustDo(x.t, "SET", "F", "2")
			x.servers[c].MustDo(x.t, "SET", "F", "2")
			done1 := x.begin(1)
			t1 := max(x.grant(a, "o1", 1), x.grant(b, "o1", 1)) // 1 and 3
			x.expire(a)
			done2 := x.begin(2)
			t2 := max(x.grant(a, "o2", 1), x.grant(c, "o2", 1)) // 2 and 3
			require.EqualValues(x.t, 1, x.raise(a, "o2", t2, true))
			done2(t2)
			// The raise of the first one was held up.
			if x.raise(a, "o1", t1, !wrong) == 1 {
				done1(t1)
			}
		},
		"an owner that is used twice": func(x *trial, wrong bool) {
			owner1, owner2 := "first round", "second round"
			if wrong {
				owner2 = owner1
			}
			// The replies of the first round are late; it is given up.
			late := map[string][]int64{owner1: {x.grant(a, owner1, 1), x.grant(b, owner1, 1)}}
			x.expire(a, b)
			done := x.begin(2)
			t2 := max(x.grant(b, "o2", 1), x.grant(c, "o2", 1))
			x.raise(c, "o2", t2, true)
			done(t2)
			x.expire(b, c)
			done = x.begin(1)
			// The second round takes every reply to its owner.
			if replies := late[owner2]; len(replies) == 2 {
				done(replies[0])
				return
			}
			t1 := max(x.grant(a, owner2, 1), x.grant(b, owner2, 1))
			require.EqualValues(x.t, 1, x.raise(a, owner2, t1, true))
			done(t1)
		},
		"an instance that forgot, and votes at once": func(x *trial, wrong bool) {
			var guard []redlock.Option // the default
			if wrong {
				guard = append(guard, redlock.WithQuarantine(0))
			}
			first, second := x.open([]int{a, b}, redlock.WithQuarantine(0)), x.open([]int{a, b, c}, guard...)
			// Who locked before has a clock that is ahead of ours.
			const ahead = 900 * time.Millisecond
			for _, z := range []int{a, b} {
				x.servers[z].MustDo(x.t, "SET", "{r}:fence", strconv.FormatInt(time.Now().Add(ahead).UnixMicro(), 10))
			}
			x.acquire(1, first)
			require.NoError(x.t, x.servers[a].Kill())
			require.NoError(x.t, x.servers[b].Restart())
			x.acquire(2, second)
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			for _, wrong := range []bool{false, true} {
				x := &trial{t: t, servers: redistest.StartN(t, 3)}
				schedule(x, wrong)
				require.Equal(t, wrong, len(history.Check(x.ops)) > 0, "%v", x.ops)
				ok, err := history.Linearizable(x.ops, time.Minute, nil)
				require.NoError(t, err)
				require.Equal(t, !wrong, ok)
			}
		})
	}
}
