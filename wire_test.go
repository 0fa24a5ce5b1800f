package redlock

import (
	"context"
	"errors"
	"net"
	"strconv"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/quorumlock/redlock/internal/redistest"
)

// A script is a connection whose reads return what it says.
type scripted struct {
	net.Conn
	reads []string
}

func (c *scripted) Read(b []byte) (int, error) {
	if len(c.reads) == 0 {
		return 0, errors.New("the end")
	}
	n := copy(b, c.reads[0])
	if c.reads[0] = c.reads[0][n:]; c.reads[0] == "" {
		c.reads = c.reads[1:]
	}
	return n, nil
}

func (c *scripted) SetDeadline(time.Time) error { return nil }

// answersOf reads until the end or a fault.
func answersOf(reads ...string) (answers []answerText, err error) {
	w := newWire(&scripted{reads: reads})
	for {
		switch a, err := w.next(); {
		case err != nil:
			return answers, err
		case a.whole:
			answers = append(answers, a)
			continue
		}
		if err := w.fill(); err != nil {
			return answers, nil //nolint:nilerr // the end
		}
	}
}

func TestAnswersAreReadFromWhateverPieces(t *testing.T) {
	long := strings.Repeat("g 1234567890123456\n", 5000)
	const stream = "$1\r\n7\r\n" + "-NOSCRIPT No matching script.\r\n" + "$9\r\n8\ng 5\nr 6\r\n" + "$4\r\n9\n\r\n\r\n"
	want := []answerText{
		{whole: true, number: 7},
		{whole: true, refusal: serverError("NOSCRIPT No matching script.")},
		{whole: true, number: 8, lines: "g 5\nr 6"},
		{whole: true, number: 9, lines: "\r\n"},
	}
	for size := 1; size <= len(stream); size++ {
		var reads []string
		for i := 0; i < len(stream); i += size {
			reads = append(reads, stream[i:min(i+size, len(stream))])
		}
		got, err := answersOf(reads...)
		require.NoError(t, err)
		require.Equal(t, want, got, "in pieces of %d", size)
	}
	got, err := answersOf("$"+strconv.Itoa(len(long)+2)+"\r\n1\n"+long+"\r\n", stream)
	require.NoError(t, err)
	require.Equal(t, append([]answerText{{whole: true, number: 1, lines: long}}, want...), got)
}

func TestWhatIsNoAnswerIsAFault(t *testing.T) {
	for _, nonsense := range []string{
		"HTTP/1.1 400 Bad Request\r\n", "\r\n", "x", "+OK\r\n", ":1\r\n", "*1\r\n$1\r\n1\r\n", "$-1\r\n", "$x\r\n", "_\r\n",
		"$99999999999\r\n", "$1\r\nx\r\n", "$0\r\n\r\n", "$2\r\ng1\r\n", "$3\r\n1 g\r\n", ">2\r\n",
	} {
		answers, err := answersOf("$1\r\n7\r\n" + nonsense)
		require.Error(t, err, "%q", nonsense)
		require.Len(t, answers, 1)
	}
	answers, err := answersOf(strings.Repeat("$", 1), strings.Repeat("1", maxReply+1))
	require.NoError(t, err, "a head without an end is given up by its size")
	require.Empty(t, answers)
}

func FuzzAnswers(f *testing.F) {
	f.Add("$1\r\n7\r\n-ERR x\r\n$9\r\n8\ng 5\nr 6\r\n", 3)
	f.Fuzz(func(t *testing.T, stream string, size int) {
		whole, faultWhole := answersOf(stream)
		var reads []string
		for size = max(size, 1); len(stream) > size; stream = stream[size:] {
			reads = append(reads, stream[:size])
		}
		if stream != "" {
			reads = append(reads, stream)
		}
		pieces, faultPieces := answersOf(reads...)
		require.Equal(t, whole, pieces)
		require.Equal(t, faultWhole == nil, faultPieces == nil)
	})
}

func TestACommandIsAnArrayOfBulkStrings(t *testing.T) {
	text, signed, unsigned, n := "a\r\nb", int64(-12), uint64(1<<53-1), 3
	got := appendCommand([]byte("before "), []any{evalsha, &scriptArg{text: []byte("sha")}, &n, 4, "", &text, &signed, &unsigned})
	require.Equal(t, "before *8\r\n$7\r\nevalsha\r\n$3\r\nsha\r\n$1\r\n3\r\n$1\r\n4\r\n$0\r\n\r\n$4\r\na\r\nb\r\n$3\r\n-12\r\n$16\r\n9007199254740991\r\n", string(got))
}

// farFrom returns a Locker on one instance, which its answers have shown to be a
// few milliseconds away, and the proxy in between.
func farFrom(t *testing.T, s *redistest.Server, opts ...Option) (*Locker, *redistest.Proxy) {
	t.Helper()
	p := redistest.NewProxy(t, s.Addr())
	p.Delay(2 * time.Millisecond)
	l := opened(t, []string{p.Addr()}, append(opts, WithInstanceTimeout(inTime))...)
	warmUp(t, l)
	p.Delay(0)
	return l, p
}

// Far away, batches follow each other before the answer to the first one is there,
// four at most; and one at a time where that is asked for.
func TestSeveralBatchesAreOutToAnInstanceThatIsFarAway(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		opts []Option
		most int
	}{
		"several": {nil, maxFlights},
		"one":     {[]Option{OneFlight()}, 1},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := redistest.Start(t)
			l, p := farFrom(t, s, c.opts...)
			p.HoldReplies(true)
			errs := make(chan error, 10)
			in := l.instances[0]
			for i := range cap(errs) {
				go func() {
					_, err := l.TryAcquire(context.Background(), strconv.Itoa(i), time.Minute)
					errs <- err
				}()
				has := func() bool { return value(s, strconv.Itoa(i)) != nil }
				if i < c.most {
					eventually(t, has, "it has arrived while the answers to those before it are held")
				} else {
					eventually(t, func() bool { return in.queued() == i-c.most+1 }, "it waits")
				}
			}
			require.Nil(t, value(s, strconv.Itoa(c.most)))
			in.mu.Lock()
			out := len(in.flights)
			in.mu.Unlock()
			require.Equal(t, c.most, out)
			p.HoldReplies(false)
			for range cap(errs) {
				require.NoError(t, <-errs)
			}
		})
	}
}

// When the connection breaks, the grants of all batches that are out are ambiguous.
func TestAllBatchesThatAreOutAreAmbiguousWhenTheConnectionBreaks(t *testing.T) {
	t.Parallel()
	s := redistest.Start(t)
	l, p := farFrom(t, s)
	p.HoldReplies(true)
	errs := make(chan error, 3)
	for i := range cap(errs) {
		go func() {
			_, err := l.TryAcquire(context.Background(), strconv.Itoa(i), time.Minute)
			errs <- err
		}()
		eventually(t, func() bool { return value(s, strconv.Itoa(i)) != nil }, "it is granted, and nobody knows")
	}
	p.Break()
	p.HoldReplies(false)
	for range cap(errs) {
		require.ErrorIs(t, <-errs, ErrNoQuorum)
	}
	becomesClean(t, l)
	for i := range cap(errs) {
		require.Nil(t, value(s, strconv.Itoa(i)))
	}
}

// NOSCRIPT for several batches sends all of them again, in their order.
func TestBatchesThatWereNotRunAreSentAgainInOrder(t *testing.T) {
	t.Parallel()
	s := redistest.Start(t)
	l, p := farFrom(t, s)
	for range 20 {
		s.MustDo(t, "SCRIPT", "FLUSH")
		p.Delay(2 * time.Millisecond)
		k, err := l.TryAcquire(t.Context(), "r", time.Minute)
		require.NoError(t, err)
		errs := make(chan error, 2)
		s.MustDo(t, "SCRIPT", "FLUSH")
		go func() { errs <- k.Extend(context.Background(), time.Minute) }()
		go func() {
			_, err := l.TryAcquire(context.Background(), "r", time.Minute)
			if errors.Is(err, ErrTaken) {
				err = nil
			}
			errs <- err
		}()
		require.NoError(t, <-errs)
		require.NoError(t, <-errs)
		require.NoError(t, k.Release(t.Context()))
		require.Nil(t, value(s, "r"))
	}
}

// repeating is a connection on which, while it is on, every read comes twice.
type repeating struct {
	net.Conn
	on   *atomic.Bool
	held []byte
}

func (c *repeating) Read(b []byte) (int, error) {
	if len(c.held) > 0 {
		n := copy(b, c.held)
		c.held = c.held[n:]
		return n, nil
	}
	n, err := c.Conn.Read(b)
	if c.on.Load() {
		c.held = append(c.held, b[:n]...)
	}
	return n, err
}

// An answer that comes twice is not taken for the answer to the next batch: its
// grants would be nobody's, or the wrong one's.
func TestAnAnswerThatComesTwiceIsTakenOnce(t *testing.T) {
	t.Parallel()
	s := redistest.Start(t)
	s.MustDo(t, "SET", "taken", "somebody else", "PX", "60000")
	var on atomic.Bool
	l := opened(t, []string{s.Addr()}, WithClientOptions(func(o *redis.Options) {
		dial := redis.NewDialer(o)
		o.Dialer = func(ctx context.Context, network, addr string) (net.Conn, error) {
			conn, err := dial(ctx, network, addr)
			if err != nil {
				return nil, err
			}
			return &repeating{Conn: conn, on: &on}, nil
		}
	}))
	warmUp(t, l)
	on.Store(true)
	for range 100 {
		k, err := l.TryAcquire(t.Context(), "free", time.Minute)
		require.NoError(t, err)
		_, err = l.TryAcquire(t.Context(), "taken", time.Minute)
		require.ErrorIs(t, err, ErrTaken)
		require.NoError(t, k.Release(t.Context()))
	}
}

// A caller that reads its own answer obeys its context all the same.
func TestTheOnlyInstanceThatStopsDelaysNoContext(t *testing.T) {
	t.Parallel()
	s := redistest.Start(t)
	l := opened(t, []string{s.Addr()}, WithInstanceTimeout(inTime))
	warmUp(t, l)
	for range 5 {
		k, err := l.TryAcquire(t.Context(), "r", time.Minute)
		require.NoError(t, err)
		require.NoError(t, k.Release(t.Context()))

		require.NoError(t, s.Pause())
		ctx, cancel := context.WithCancel(t.Context())
		time.AfterFunc(20*time.Millisecond, cancel)
		began := time.Now()
		_, err = l.TryAcquire(ctx, "r", time.Minute)
		took := time.Since(began)
		require.NoError(t, s.Resume())
		require.ErrorIs(t, err, context.Canceled)
		require.Less(t, took, 200*time.Millisecond, "of 20, on a machine that is busy")
		eventually(t, func() bool { return l.instances[0].resting() && value(s, "r") == nil }, "it is cleaned up")
	}
}

// A connection that ends while it is idle costs nobody a vote.
func TestAnIdleConnectionThatEndsIsReplaced(t *testing.T) {
	t.Parallel()
	for _, n := range []int{1, 3} {
		servers := redistest.StartN(t, n)
		var endpoints []string
		for _, s := range servers {
			endpoints = append(endpoints, s.Addr())
		}
		l := opened(t, endpoints)
		for range 20 {
			k, err := l.TryAcquire(t.Context(), "r", time.Minute)
			require.NoError(t, err)
			require.NoError(t, k.Release(t.Context()))
			for i, s := range servers {
				in := l.instances[i]
				eventually(t, func() bool {
					in.mu.Lock()
					defer in.mu.Unlock()
					return in.listening && len(in.flights) == 0
				}, "it is idle")
				s.MustDo(t, "CLIENT", "KILL", "TYPE", "normal", "SKIPME", "yes")
				eventually(t, func() bool {
					in.mu.Lock()
					defer in.mu.Unlock()
					return in.wire == nil && in.turn == nobodys
				}, "it is noticed")
			}
		}
	}
}

// One caller of the only instance reads its answer itself; its lock travels without
// the worker.
func TestTheOnlyInstanceIsReadByItsCaller(t *testing.T) {
	t.Parallel()
	s := redistest.Start(t)
	l := opened(t, []string{s.Addr()}, WithInstanceTimeout(inTime))
	in := l.instances[0]
	r := l.newRound(t.Context(), opRelease, &Lock{locker: l, resource: "r", key: "r", owner: "nobody"})
	defer r.leave()
	eventually(t, func() bool {
		warmUp(t, l)
		r.start, r.attended = l.now(), true
		r.votes[0], r.tally = pending, tally{n: 1}
		r.send(r.start)
		inline := r.inline
		if inline {
			in.mu.Lock()
			turn := in.turn
			in.mu.Unlock()
			require.Equal(t, callers, turn)
		}
		require.NoError(t, r.wait(t.Context(), inTime, settled))
		return inline
	}, "the worker rests, and the caller sends and reads")
	require.Equal(t, refused, r.votes[0])
}

// A limiter sees every command, and says no when it is told to.
type limiter struct{ allowed, reported atomic.Int64 }

func (l *limiter) Allow() error       { l.allowed.Add(1); return nil }
func (l *limiter) ReportResult(error) { l.reported.Add(1) }

// What has to see every command of a client sees every batch.
func TestALimiterSeesEveryBatch(t *testing.T) {
	t.Parallel()
	s := redistest.Start(t)
	var seen limiter
	l := opened(t, []string{s.Addr()}, WithClientOptions(func(o *redis.Options) { o.Limiter = &seen }))
	warmUp(t, l)
	for range 10 {
		before := seen.allowed.Load()
		k, err := l.TryAcquire(t.Context(), "r", time.Minute)
		require.NoError(t, err)
		require.NoError(t, k.Release(t.Context()))
		require.Equal(t, before+2, seen.allowed.Load())
	}
}
