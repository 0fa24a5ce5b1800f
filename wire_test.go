package redlock

import (
	"context"
	"crypto/tls"
	"errors"
	"io"
	"net"
	"net/http/httptest"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"sync"
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

// The fault: only the worker sends again what was not run; a caller that reads its own
// answer left that to it, and did not say so.
func TestWhatACallerReadsAsNotRunIsSentAgain(t *testing.T) {
	t.Parallel()
	s := redistest.Start(t)
	l := opened(t, []string{s.Addr()}, WithInstanceTimeout(inTime))
	r := l.newRound(t.Context(), opRelease, &Lock{locker: l, resource: "r", key: "r", owner: "nobody"})
	defer r.leave()
	for inline := false; !inline; {
		warmUp(t, l)
		s.MustDo(t, "SCRIPT", "FLUSH")
		r.start, r.attended = l.now(), true
		r.votes[0], r.tally = pending, tally{n: 1}
		r.send(r.start)
		inline = r.inline
		require.NoError(t, r.wait(t.Context(), inTime, settled))
		require.Equal(t, refused, r.votes[0], "%v", r.errs[0])
	}
}

// The fault: the worker took a batch back, and emptied it, while the caller that was to
// write it still read it.
func TestABatchIsNotTakenBackWhileItIsWritten(t *testing.T) {
	t.Parallel()
	s := redistest.Start(t)
	l := opened(t, []string{s.Addr()}, WithInstanceTimeout(inTime))
	warmUp(t, l)
	in := l.instances[0]
	is := func(condition func() bool) func() bool {
		return func() bool {
			in.mu.Lock()
			defer in.mu.Unlock()
			return condition()
		}
	}
	eventually(t, is(func() bool { return in.listening }), "the worker listens")

	r := l.newRound(t.Context(), opRelease, &Lock{locker: l, resource: "r", key: "r", owner: "nobody"})
	unwanted := l.newRound(t.Context(), opExtend, &Lock{locker: l, resource: "r", key: "r", owner: "nobody"})
	unwanted.lock.phase.Store(over)
	r.start, unwanted.start = l.now(), l.now()
	r.refs.Add(1)
	unwanted.refs.Add(1)
	defer r.leave()
	defer unwanted.leave()

	unwanted.mu.Lock() // the caller is about to write, and waits for this
	queued := make(chan struct{})
	go func() {
		defer close(queued)
		_, _ = in.enqueueBoth(unwanted, r, l.now())
	}()
	eventually(t, is(func() bool { return len(in.flights) == 1 }), "it is about to leave")
	s.MustDo(t, "CLIENT", "KILL", "TYPE", "normal", "SKIPME", "yes")
	eventually(t, is(func() bool { return in.turn == workers }), "the worker has seen the end")
	require.Never(t, is(func() bool { return in.wire == nil }), 50*time.Millisecond, time.Millisecond)
	unwanted.mu.Unlock()
	<-queued
	require.NoError(t, r.wait(t.Context(), inTime, settled))
	require.Equal(t, failed, r.votes[0])
}

// The fault: a caller whose own operation was small wrote what had been queued before it,
// too, however large: a socket may take that only when its peer reads.
func TestACallerWritesOnlyALittle(t *testing.T) {
	t.Parallel()
	s := redistest.Start(t)
	l := opened(t, []string{s.Addr()}, WithInstanceTimeout(inTime))
	warmUp(t, l)
	in := l.instances[0]
	eventually(t, func() bool {
		in.mu.Lock()
		defer in.mu.Unlock()
		return in.listening
	}, "the worker listens")
	var rounds []*round
	for _, key := range []string{strings.Repeat("x", maxResource), "x"} {
		r := l.newRound(t.Context(), opRelease, &Lock{locker: l, resource: key, key: key, owner: "nobody"})
		r.start = l.now()
		r.refs.Add(1)
		defer r.leave()
		rounds = append(rounds, r)
	}
	in.mu.Lock()
	in.queue = append(in.queue, rounds...)
	in.departLocked(rounds[1], rounds[1].start)
	out := len(in.flights)
	in.mu.Unlock()
	require.Zero(t, out)
	for _, r := range rounds {
		require.NoError(t, r.wait(t.Context(), inTime, settled))
		require.Equal(t, refused, r.votes[0])
	}
}

// A meddler is a connection that notes the commands which are written to it, and
// does not pass on one of them: it answers that itself, or not at all.
type meddler struct {
	net.Conn
	how  *meddling
	held []byte
}

type meddling struct {
	mu       sync.Mutex
	commands []string
	command  string // the next one of these is not passed on
	answer   string
}

func (m *meddling) set(command, answer string) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.commands, m.command, m.answer = nil, command, answer
}

func (m *meddling) seen() []string {
	m.mu.Lock()
	defer m.mu.Unlock()
	return slices.Clone(m.commands)
}

func (m *meddling) option() Option {
	return WithClientOptions(func(o *redis.Options) {
		dial := redis.NewDialer(o)
		o.Dialer = func(ctx context.Context, network, addr string) (net.Conn, error) {
			conn, err := dial(ctx, network, addr)
			return &meddler{Conn: conn, how: m}, err
		}
	})
}

func (c *meddler) Write(b []byte) (int, error) {
	m := c.how
	m.mu.Lock()
	defer m.mu.Unlock()
	for _, name := range []string{"evalsha", "eval", "info", "time"} {
		if !strings.Contains(string(b), "\r\n"+name+"\r\n") {
			continue
		}
		m.commands = append(m.commands, name)
		if name == m.command {
			m.command = ""
			c.held = []byte(m.answer)
			return len(b), nil
		}
	}
	return c.Conn.Write(b)
}

func (c *meddler) Read(b []byte) (int, error) {
	c.how.mu.Lock()
	n := copy(b, c.held)
	c.held = c.held[n:]
	c.how.mu.Unlock()
	if n > 0 {
		return n, nil
	}
	return c.Conn.Read(b)
}

// The fault: a new connection on which the probe was refused, by a server that loads
// what it had, took a batch before it was asked who it is: a vote without quarantine.
func TestNoBatchIsSentBeforeTheProof(t *testing.T) {
	t.Parallel()
	s := redistest.Start(t)
	var m meddling
	m.set("evalsha", "-LOADING Redis is loading the dataset in memory\r\n")
	l := opened(t, []string{s.Addr()}, m.option(), WithQuarantine(time.Hour), WithInstanceTimeout(inTime))
	_, err := l.TryAcquire(t.Context(), "r", time.Minute)
	require.ErrorIs(t, err, ErrQuarantined)
	require.Equal(t, []string{"evalsha", "info", "time", "evalsha"}, m.seen()[:4])
}

// The fault: when the client closed the connection, as a proof had not been answered,
// batches went through the client for as long as the next connection lived.
func TestAConnectionThatTheClientClosedIsReplaced(t *testing.T) {
	t.Parallel()
	s := redistest.Start(t)
	var m meddling
	var clock shiftedClock
	l := opened(t, []string{s.Addr()}, m.option(), clock.option)
	warmUp(t, l)
	m.set("time", "")
	clock.set(2 * proofAge)
	eventually(t, func() bool {
		k, err := l.TryAcquire(context.Background(), "r", time.Minute)
		return err == nil && k.Release(context.Background()) == nil && len(m.seen()) > 1
	}, "it works again")
	warmUp(t, l)
	in := l.instances[0]
	eventually(t, func() bool {
		in.mu.Lock()
		defer in.mu.Unlock()
		return in.wire != nil
	}, "batches have a connection of their own")
}

// The fault: what was to be sent again went to an instance that had been found to be
// down meanwhile, and stayed in its queue; the worker span.
func TestWhatWasNotRunFailsWhenTheInstanceIsDown(t *testing.T) {
	l := opened(t, []string{redistest.Mute(t)})
	in := newInstance(l, 0, "an instance without a worker")
	r := l.newRound(t.Context(), opRaise, &Lock{locker: l, resource: "r", key: "r", owner: "nobody"})
	defer r.leave()
	r.refs.Add(1)
	in.redo, in.down = []*round{r}, errPending
	in.requeue()
	require.Empty(t, in.queue)
	require.Equal(t, failed, r.votes[0])
	require.Equal(t, errPending, r.errs[0])
}

// The fault: to close a TLS connection is to send a farewell first, for which a
// connection whose buffers are full waits for five seconds; all that time nobody could
// queue anything.
func TestClosingAConnectionDoesNotWaitForItsPeer(t *testing.T) {
	ours, theirs := net.Pipe()
	web := httptest.NewTLSServer(nil)
	defer web.Close()
	peer := tls.Server(theirs, &tls.Config{MinVersion: tls.VersionTLS13, Certificates: web.TLS.Certificates, SessionTicketsDisabled: true})
	greeted := make(chan error, 1)
	go func() { greeted <- peer.Handshake() }()
	conn := tls.Client(ours, &tls.Config{MinVersion: tls.VersionTLS13, InsecureSkipVerify: true})
	require.NoError(t, conn.Handshake())
	require.NoError(t, <-greeted)

	in := newInstance(&Locker{config: defaults()}, 0, "an instance that reads nothing")
	in.wire = newWire(conn)
	began := time.Now()
	in.dropWire()
	require.Less(t, time.Since(began), time.Second)
	require.NoError(t, theirs.Close())
}

// Of one lock, an extend leaves when the one before it is answered: if that one was
// not run, it is sent again, and must not come after one that asked for more.
func TestExtendsOfOneLockAreNotOutTogether(t *testing.T) {
	t.Parallel()
	s := redistest.Start(t)
	l, p := farFrom(t, s)
	in := l.instances[0]
	p.Delay(2 * time.Millisecond) // it stays far away
	k, err := l.TryAcquire(t.Context(), "r", time.Minute)
	require.NoError(t, err)
	p.HoldReplies(true)
	errs := make(chan error, 3)
	go func() { errs <- k.Extend(context.Background(), 30*time.Second) }()
	eventually(t, func() bool {
		left, _ := s.MustDo(t, "PTTL", "r").(int64)
		return left < 40_000
	}, "the shorter one has arrived")
	go func() { errs <- k.Extend(context.Background(), 2*time.Minute) }()
	eventually(t, func() bool {
		in.mu.Lock()
		defer in.mu.Unlock()
		return in.blocked && len(in.queue) == 1 && len(in.flights) == 1
	}, "the longer one waits, though it could have left")
	go func() {
		_, err := l.TryAcquire(context.Background(), "another", time.Minute)
		errs <- err
	}()
	eventually(t, func() bool { return in.queued() == 2 }, "and so does what is behind it")
	p.HoldReplies(false)
	for range cap(errs) {
		require.NoError(t, <-errs)
	}
	require.Greater(t, k.Remaining(), time.Minute)
}

// A single caller is one whose operation was alone in its batch, with no other behind it,
// on the only instance.
func TestASingleCallerHasNobodyBesideOrBehindIt(t *testing.T) {
	for _, c := range []struct {
		instances, batch, queue int
		want                    bool
	}{{1, 1, 0, true}, {1, 1, 1, false}, {1, 2, 0, false}, {3, 1, 0, false}} {
		in := &instance{
			locker: &Locker{instances: make([]*instance, c.instances)}, sent: 1, single: !c.want,
			queue: make([]*round, c.queue), flights: []flight{{number: 1, batch: make([]*round, c.batch)}},
		}
		_, err := in.answered(answerText{whole: true, number: 1}, time.Now())
		require.NoError(t, err)
		require.Equal(t, c.want, in.single, c)
	}
}

// What an instance takes for a large batch is not mistaken for its distance, nor for
// none.
func TestTheDistanceIsMeasuredOnSmallBatches(t *testing.T) {
	at := time.Now()
	for n, want := range map[int]time.Duration{1: 1990 * time.Microsecond, smallBatch: 1800 * time.Microsecond, smallBatch + 1: never, maxBatch: never} {
		in := &instance{locker: &Locker{}, sent: 1, distance: never, flights: []flight{{number: 1, batch: make([]*round, n), left: at.Add(-2 * time.Millisecond)}}}
		_, err := in.answered(answerText{whole: true, number: 1}, at)
		require.NoError(t, err)
		require.Equal(t, want, in.distance, n)
	}
}

// A release may come while a batch is made up, between two extends of one lock: the
// first one is sent, the second one is not, and the release has to wait for the first.
func TestAnExtendThatIsNotSentHidesNoneThatIs(t *testing.T) {
	t.Parallel()
	l, errs := newLocker(nil)
	require.Empty(t, errs)
	defer l.cancel()
	in := newInstance(l, 0, "a")
	l.instances = append(l.instances, in)
	for apart := 0; apart < 10; {
		k := &Lock{locker: l, sightings: make([]sighting, 1)}
		k.phase.Store(held)
		k.until.Store(int64(never))
		for range maxBatch {
			in.queue = append(in.queue, l.newRound(t.Context(), opExtend, k))
		}
		released := make(chan struct{})
		go func() {
			defer close(released)
			for !k.isOnWay(0) {
				runtime.Gosched()
			}
			k.phase.Store(over)
		}()
		in.mu.Lock()
		batch, unwanted, _ := in.takeLocked(l.now())
		in.mu.Unlock()
		in.disown(unwanted)
		<-released
		sent := len(batch)
		require.Equal(t, sent > 0, k.isOnWay(0), "%d of %d are on their way", sent, maxBatch)
		in.deliver(batch, result{err: errPending})
		require.False(t, k.isOnWay(0))
		if sent > 0 && len(unwanted) > 0 {
			apart++
		}
	}
}

// A client that dials while its Locker closes gets a connection that does not work: a dial
// that fails it would log.
func TestADialDuringCloseFailsInSilence(t *testing.T) {
	t.Parallel()
	ours, theirs := net.Pipe()
	defer theirs.Close()
	var closed tap
	closed.close()
	dial := closed.wrap(func(context.Context, string, string) (net.Conn, error) { return ours, nil })
	conn, err := dial(t.Context(), "tcp", "h:1")
	require.NoError(t, err)
	_, err = conn.Write([]byte("PING"))
	require.ErrorIs(t, err, net.ErrClosed)
	_, err = theirs.Read(make([]byte, 1))
	require.ErrorIs(t, err, io.EOF)
	require.Nil(t, closed.last())
}
