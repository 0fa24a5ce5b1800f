package redlock

import (
	"bytes"
	"context"
	"errors"
	"net"
	"slices"
	"strconv"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/alicebob/miniredis/v2"
	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"
)

// These tests run the whole stack in virtual time: nothing takes any, but what waits.
// So each renewal, each retry and each signal has one right instant.

// A bubble is three servers and a Locker in virtual time.
type bubble struct {
	t       *testing.T
	l       *Locker
	servers []*miniredis.Miniredis
	states  []*state
	ahead   atomic.Int64 // of the wall clock, to the monotonic one

	begin time.Time

	mu      sync.Mutex
	extends []time.Duration // when renewals were sent, since begin
}

// A state is how one server can be reached.
type state struct {
	mu      sync.Mutex
	refuses bool // connections, and has broken those that it had
	conns   []net.Conn
	goesOn  chan struct{} // while it hangs: what it is sent waits for this
}

// inVirtualTime runs f in a new bubble.
func inVirtualTime(t *testing.T, f func(t *testing.T, b *bubble)) {
	t.Helper()
	if RaceDetector {
		t.Skip("SKIPPED, NOT PASSED: the race detector crashes in bubbles of many goroutines, https://github.com/golang/go/issues/78156")
	}
	synctest.Test(t, func(t *testing.T) {
		b := &bubble{t: t, begin: time.Now()}
		var endpoints []string
		for i := range 3 {
			s := miniredis.NewMiniRedis()
			s.ClockTTL(true)
			b.servers, b.states = append(b.servers, s), append(b.states, &state{})
			endpoints = append(endpoints, net.JoinHostPort("127.0.0.1", strconv.Itoa(i+1)))
		}
		l, err := Open(endpoints, fresh([]Option{
			b.clock,
			WithObserver(Observer{Round: b.note}),
			WithClientOptions(func(o *redis.Options) { o.Dialer = b.dial }),
		})...)
		require.NoError(t, err)
		b.l = l
		defer func() {
			for i := range b.states {
				b.heal(i)
			}
			_ = l.Close()
			for _, s := range b.servers {
				s.Close()
			}
		}()
		f(t, b)
	})
}

// clock gives the Locker both clocks: in a bubble, time.Now has no monotonic one.
func (b *bubble) clock(c *config) error {
	c.now = func() time.Time {
		now := time.Now().Add(time.Duration(b.ahead.Load()))
		return clocks(now.Sub(epoch.Round(0)), time.Since(b.begin))
	}
	return nil
}

func (b *bubble) note(e RoundEvent) {
	if e.Op == "extend" {
		b.mu.Lock()
		b.extends = append(b.extends, e.Start.Sub(epoch))
		b.mu.Unlock()
	}
}

func (b *bubble) dial(_ context.Context, _, addr string) (net.Conn, error) {
	_, port, err := net.SplitHostPort(addr)
	if err != nil {
		return nil, err
	}
	n, err := strconv.Atoi(port)
	if err != nil {
		return nil, err
	}
	s := b.states[n-1]
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.refuses {
		return nil, errRefused
	}
	c, err := b.servers[n-1].Dial()
	if err != nil {
		return nil, err
	}
	s.conns = append(s.conns, c)
	return &stateConn{c, s}, nil
}

var errRefused = errors.New("connection refused")

// A stateConn is a connection to a server that may hang.
type stateConn struct {
	net.Conn
	state *state
}

func (c *stateConn) Write(p []byte) (int, error) {
	c.state.mu.Lock()
	goesOn := c.state.goesOn
	c.state.mu.Unlock()
	if goesOn == nil {
		return c.Conn.Write(p)
	}
	// It is in the buffer of a socket.
	request := bytes.Clone(p)
	go func() {
		<-goesOn
		_, _ = c.Conn.Write(request)
	}()
	return len(p), nil
}

// refuse makes server i break its connections, and take no new ones.
func (b *bubble) refuse(i int) {
	s := b.states[i]
	s.mu.Lock()
	defer s.mu.Unlock()
	s.refuses = true
	for _, c := range s.conns {
		_ = c.Close()
	}
	s.conns = nil
}

// hang makes server i read nothing.
func (b *bubble) hang(i int) {
	s := b.states[i]
	s.mu.Lock()
	defer s.mu.Unlock()
	s.goesOn = make(chan struct{})
}

// heal makes server i well again.
func (b *bubble) heal(i int) {
	s := b.states[i]
	s.mu.Lock()
	defer s.mu.Unlock()
	s.refuses = false
	if s.goesOn != nil {
		close(s.goesOn)
		s.goesOn = nil
	}
}

// keep returns a lock that all servers have granted, and its context.
func (b *bubble) keep(ttl time.Duration, opts ...AcquireOption) (*Lock, context.Context) {
	b.t.Helper()
	k, err := b.l.TryAcquire(b.t.Context(), "r", ttl, opts...)
	require.NoError(b.t, err)
	synctest.Wait()
	for _, s := range b.servers {
		require.True(b.t, s.Exists("r"))
	}
	return k, k.KeepAlive(b.t.Context())
}

// sent returns when renewals were sent, since from.
func (b *bubble) sent(from time.Time) []time.Duration {
	synctest.Wait()
	b.l.dispatcher.take() // it naps for a while before it looks
	b.l.dispatcher.handOut()
	b.mu.Lock()
	defer b.mu.Unlock()
	var at []time.Duration
	for _, e := range b.extends {
		at = append(at, e-from.Sub(b.begin))
	}
	slices.Sort(at) // what hangs is told late
	return at
}

// requireEnd requires that ctx ends at this time after from, because the lock was lost
// for reason.
func requireEnd(t *testing.T, ctx context.Context, from time.Time, at time.Duration, reason LostReason) {
	t.Helper()
	<-ctx.Done()
	require.Equal(t, at, time.Since(from), context.Cause(ctx))
	lost, ok := errors.AsType[*LostError](context.Cause(ctx))
	require.True(t, ok, context.Cause(ctx))
	require.Equal(t, reason, lost.Reason, lost)
}

// signalAt returns how long after its last renewal a lock that is not renewed any more
// is lost: the validity, less 5 ms or a tenth.
func signalAt(ttl time.Duration) time.Duration {
	full := validity(ttl, 0.01, 2*time.Millisecond)
	return full - min(5*time.Millisecond, full/10)
}

func TestALockIsRenewedAtAThirdOfItsTTL(t *testing.T) {
	for ttl, times := range map[time.Duration]int{minTTL: 600, 100 * time.Millisecond: 20, 3 * time.Second: 20, 10 * time.Minute: 5} {
		inVirtualTime(t, func(t *testing.T, b *bubble) {
			k, ctx := b.keep(ttl)
			begin := time.Now()
			var want []time.Duration
			for n := range times {
				want = append(want, time.Duration(n+1)*(ttl/3))
			}
			time.Sleep(want[times-1] + 1)
			require.Equal(t, want, b.sent(begin))
			require.NoError(t, ctx.Err())
			require.Equal(t, validity(ttl, 0.01, 2*time.Millisecond)-1, k.Remaining())
		})
	}
}

// However its instances fail, a lock is lost at one instant: 5 ms before the end of
// its window, or a tenth of a short one.
func TestTheLossOfALockIsSignalledInTimeWhateverItsInstancesDo(t *testing.T) {
	for name, strike := range map[string]func(*bubble, int){"refuse": (*bubble).refuse, "hang": (*bubble).hang} {
		for _, ttl := range []time.Duration{minTTL, 20 * time.Millisecond, 300 * time.Millisecond, 10 * time.Second} {
			for n := 2; n <= 3; n++ {
				inVirtualTime(t, func(t *testing.T, b *bubble) {
					k, ctx := b.keep(ttl)
					begin := time.Now()
					time.Sleep(ttl/3 + 1) // and one renewal
					for i := range n {
						strike(b, i)
					}
					requireEnd(t, ctx, begin, ttl/3+signalAt(ttl), LostNoQuorum)
					require.LessOrEqual(t, k.Remaining(), time.Duration(0), name)
					_, ok := errors.AsType[*QuorumError](context.Cause(ctx))
					require.True(t, ok, "with the votes")
					require.False(t, k.ValidUntil().Before(time.Now()), "never later than that")
				})
			}
		}
	}
}

// A renewal that failed is tried again after a twentieth of the ttl, within 5 ms and
// 1 s, and a half more or less; a hung one is given up after the instance time-out.
func TestAFailedRenewalIsTriedAgainWithinItsBounds(t *testing.T) {
	for _, c := range []struct{ ttl, delay time.Duration }{
		{50 * time.Millisecond, 5 * time.Millisecond},
		{300 * time.Millisecond, 15 * time.Millisecond},
		{10 * time.Second, 500 * time.Millisecond},
		{time.Minute, time.Second},
	} {
		for name, strike := range map[string]func(*bubble, int){"refuse": (*bubble).refuse, "hang": (*bubble).hang} {
			inVirtualTime(t, func(t *testing.T, b *bubble) {
				_, ctx := b.keep(c.ttl)
				begin := time.Now()
				for i := range 2 {
					strike(b, i)
				}
				out := time.Duration(0) // for how long a renewal is
				if name == "hang" {
					out = b.l.voteLimit(c.ttl)
				}
				<-ctx.Done()
				_ = b.l.Close() // so that the observer hears of what is still out
				at := b.sent(begin)
				require.Equal(t, c.ttl/3, at[0])
				end, last := signalAt(c.ttl), at[0]
				for _, next := range at[1:] {
					least := out
					if next-at[0] >= sendLimit {
						least = 0 // it is known to be down
					}
					require.GreaterOrEqual(t, next-last, least+c.delay/2, "%s %v", name, c.ttl)
					require.Less(t, next-last, out+c.delay*3/2, "%s %v", name, c.ttl)
					last = next
				}
				require.GreaterOrEqual(t, last+out+c.delay*3/2, end, "tried to the end")
			})
		}
	}
}

// What fails for a while within the validity costs nothing, and the next renewal is a
// third of the ttl after the one that was confirmed.
func TestALockSurvivesAMajorityThatHangsForHalfOfItsTTL(t *testing.T) {
	for _, ttl := range []time.Duration{100 * time.Millisecond, 300 * time.Millisecond, time.Second, 10 * time.Second} {
		for _, from := range []time.Duration{0, ttl / 6, ttl/3 - 1, ttl / 3, ttl/3 + 1} {
			inVirtualTime(t, func(t *testing.T, b *bubble) {
				_, ctx := b.keep(ttl)
				time.Sleep(from)
				for i := range 3 {
					b.hang(i)
				}
				time.Sleep(ttl / 2)
				for i := range 3 {
					b.heal(i)
				}
				time.Sleep(3 * ttl)
				require.NoError(t, context.Cause(ctx), "%v from %v", ttl, from)
			})
		}
	}
}

// The same of refused connections, which end in a moment: but it takes one more probe
// until the instances are known to be back. Probes are not rarer than the lock can
// afford.
func TestALockSurvivesAMajorityThatRefusesForHalfOfItsValidity(t *testing.T) {
	for _, ttl := range []time.Duration{300 * time.Millisecond, time.Second, 10 * time.Second} {
		for _, from := range []time.Duration{0, ttl / 6, ttl/3 - 1, ttl / 3, ttl/3 + 1} {
			for range 4 {
				inVirtualTime(t, func(t *testing.T, b *bubble) {
					_, ctx := b.keep(ttl)
					time.Sleep(from)
					for i := range 2 {
						b.refuse(i)
					}
					time.Sleep(validity(ttl, 0.01, 2*time.Millisecond) / 2)
					for i := range 2 {
						b.heal(i)
					}
					time.Sleep(2 * ttl)
					require.NoError(t, context.Cause(ctx), "%v from %v", ttl, from)
				})
			}
		}
	}
}

// The next renewal follows the ttl that was last asked for.
func TestExtendChangesThePaceOfTheRenewals(t *testing.T) {
	const first = 3 * time.Second
	for _, second := range []time.Duration{300 * time.Millisecond, time.Second, 9 * time.Second} {
		inVirtualTime(t, func(t *testing.T, b *bubble) {
			k, ctx := b.keep(first)
			begin := time.Now()
			time.Sleep(first/3 + first/6) // one renewal, and the half of the way to the next one
			require.NoError(t, k.Extend(t.Context(), second))
			require.Equal(t, validity(second, 0.01, 2*time.Millisecond), k.Remaining())
			extended := time.Since(begin)
			time.Sleep(2*(second/3) + 1)
			require.Equal(t, []time.Duration{first / 3, extended, extended + second/3, extended + 2*(second/3)}, b.sent(begin))

			for i := range 3 {
				b.hang(i)
			}
			requireEnd(t, ctx, begin, extended+2*(second/3)+signalAt(second), LostNoQuorum)
		})
	}
}

func TestAKeptLockEndsAtItsMaxHold(t *testing.T) {
	const ttl = 3 * time.Second
	for most, renewals := range map[time.Duration]int{
		20 * time.Millisecond: 0, time.Second: 0, ttl: 1, 4 * time.Second: 2, 10*time.Second + 1: 8,
	} {
		inVirtualTime(t, func(t *testing.T, b *bubble) {
			begin := time.Now()
			k, ctx := b.keep(ttl, WithMaxHold(most))
			early := min(signalEarly, min(most, signalEarly*earlyPart)/earlyPart)
			requireEnd(t, ctx, begin, most-early, LostMaxHold)
			require.Equal(t, time.Duration(0), k.Remaining())
			synctest.Wait()
			for _, s := range b.servers {
				require.False(t, s.Exists("r"), "it is released")
			}
			var want []time.Duration
			for n := range renewals {
				want = append(want, time.Duration(n+1)*time.Second)
			}
			require.Equal(t, want, b.sent(begin), "until one that reaches the end")
		})
	}
}

// What the servers say is final is not waited for: the renewal that hears of it ends the
// lock.
func TestADefiniteLossIsSignalledAtTheNextRenewal(t *testing.T) {
	const ttl = 3 * time.Second
	for _, c := range []struct {
		name   string
		lose   func(s *miniredis.Miniredis)
		reason LostReason
	}{
		{"overwritten", func(s *miniredis.Miniredis) { _ = s.Set("r", "somebody else") }, LostTakenOver},
		{"deleted", func(s *miniredis.Miniredis) { s.Del("r") }, LostExpired},
	} {
		inVirtualTime(t, func(t *testing.T, b *bubble) {
			k, ctx := b.keep(ttl)
			begin := time.Now()
			time.Sleep(ttl/3 + 1)
			for _, s := range b.servers[:2] {
				c.lose(s)
			}
			requireEnd(t, ctx, begin, 2*(ttl/3), c.reason)
			require.Equal(t, time.Duration(0), k.Remaining(), c.name)
			synctest.Wait()
			require.False(t, b.servers[2].Exists("r"), "the rest of it is freed")
		})
	}
}

// tickOf returns how long after a jump of a clock it is noticed at the latest.
func tickOf(ttl time.Duration) time.Duration { return min(100*time.Millisecond, ttl/20) }

// A wall clock that was set forward, or that went on while the machine slept, ends the
// lock at the next tick: no timer shows it.
func TestAWallClockThatGoesForwardEndsTheLockWithinATick(t *testing.T) {
	for _, ttl := range []time.Duration{100 * time.Millisecond, time.Second, 10 * time.Second} {
		for _, ahead := range []time.Duration{ttl, time.Hour, 100 * 365 * 24 * time.Hour} {
			inVirtualTime(t, func(t *testing.T, b *bubble) {
				k, ctx := b.keep(ttl)
				time.Sleep(ttl/3 + ttl/7)
				jump := time.Now()
				b.ahead.Store(int64(ahead))
				require.LessOrEqual(t, k.Remaining(), time.Duration(0), "it is over at once")
				<-ctx.Done()
				require.LessOrEqual(t, time.Since(jump), tickOf(ttl))
				lost, ok := errors.AsType[*LostError](context.Cause(ctx))
				require.True(t, ok)
				require.Equal(t, LostExpired, lost.Reason)
				require.ErrorIs(t, lost, errStepped)
				require.ErrorContains(t, lost, "clock was set forward")
			})
		}
	}
}

// One that goes forward by less than what is left brings the end nearer by as much, and
// the signal with it.
func TestAWallClockThatGoesForwardALittleBringsTheEndNearer(t *testing.T) {
	const ttl, ahead = 3 * time.Second, 700 * time.Millisecond
	inVirtualTime(t, func(t *testing.T, b *bubble) {
		_, ctx := b.keep(ttl)
		begin := time.Now()
		for i := range 3 {
			b.hang(i)
		}
		b.ahead.Store(int64(ahead))
		requireEnd(t, ctx, begin, signalAt(ttl)-ahead, LostExpired)
		require.ErrorIs(t, context.Cause(ctx), errStepped)
	})
	inVirtualTime(t, func(t *testing.T, b *bubble) {
		k, ctx := b.keep(ttl)
		b.ahead.Store(int64(ahead))
		time.Sleep(3 * ttl)
		require.NoError(t, context.Cause(ctx), "with the next renewal all is well again")
		require.Positive(t, k.Remaining())
	})
}

func TestAWallClockThatIsSetBackExtendsNothing(t *testing.T) {
	const ttl = 3 * time.Second
	for _, back := range []time.Duration{ttl / 2, time.Hour, 24 * 365 * time.Hour} {
		inVirtualTime(t, func(t *testing.T, b *bubble) {
			_, ctx := b.keep(ttl)
			begin := time.Now()
			time.Sleep(ttl / 6)
			b.ahead.Store(int64(-back))
			time.Sleep(ttl) // it is renewed as before
			require.Equal(t, []time.Duration{ttl / 3, 2 * (ttl / 3), ttl}, b.sent(begin))
			for i := range 3 {
				b.hang(i)
			}
			requireEnd(t, ctx, begin, ttl+signalAt(ttl), LostNoQuorum)
		})
	}
}

// A lock that was extended to a short ttl is looked after as one of that ttl.
func TestTheTickFollowsTheTTL(t *testing.T) {
	inVirtualTime(t, func(t *testing.T, b *bubble) {
		const second = 200 * time.Millisecond
		k, ctx := b.keep(10 * time.Second)
		require.NoError(t, k.Extend(t.Context(), second))
		time.Sleep(second/3 + 1)
		jump := time.Now()
		b.ahead.Store(int64(time.Hour))
		<-ctx.Done()
		require.LessOrEqual(t, time.Since(jump), tickOf(second))
	})
}

// A lock of a short ttl costs ticks and probes, but only while it is there.
func TestTheTickOfAShortLockEndsSoonAfterIt(t *testing.T) {
	inVirtualTime(t, func(t *testing.T, b *bubble) {
		pace := func() time.Duration {
			b.l.keeper.mu.Lock()
			defer b.l.keeper.mu.Unlock()
			return b.l.keeper.ttl
		}
		_, ctx := b.keep(time.Minute)
		require.Equal(t, time.Minute, pace())
		short, err := b.l.TryAcquire(t.Context(), "short", 200*time.Millisecond)
		require.NoError(t, err)
		short.KeepAlive(t.Context())
		time.Sleep(2 * review)
		require.Equal(t, 200*time.Millisecond, pace())
		require.NoError(t, short.Release(t.Context()))
		time.Sleep(review + maxTick)
		require.Equal(t, time.Minute, pace())
		require.NoError(t, ctx.Err())
	})
}
