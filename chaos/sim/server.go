package sim

import (
	"fmt"
	"math"
	"strconv"
	"strings"
	"time"
)

// An engine is the data of an instance, and runs its commands.
type engine interface {
	// do runs one command on the instance's clock and returns the reply.
	do(args []string, clock time.Time) []byte
	// holder returns the value of a key, and when it expires on the instance's clock.
	holder(key string, clock time.Time) (owner string, expiry time.Time)
	// keys returns the keys that have not expired.
	keys(clock time.Time) []string
	// restart forgets the scripts, and the data too unless kept.
	restart(kept bool, clock time.Time)
	close()
}

// A server is one instance: who it is, its clock, its connections and its engine.
type server struct {
	n        *network
	index    int
	engine   engine
	sessions []*session

	down    bool
	stopped time.Duration // until then it is stopped
	backlog []func()      // what has arrived since
	busy    time.Duration // until then it works on what came before
	posts   []post        // of the batch that runs
	starts  int
	started time.Time

	// The clock showed wall at since, and runs at rate.
	wall  time.Time
	since time.Duration
	rate  float64

	watch func(s *session, sent time.Duration, copied bool, batch *batch, reply string) // of batches that were run
}

// The date of the beginning of a world, on all clocks that are right.
var firstDay = time.Date(2026, time.March, 1, 9, 0, 0, 0, time.UTC)

func newServer(n *network, index int, e engine) *server {
	return &server{n: n, index: index, engine: e, started: firstDay.Add(-time.Hour), wall: firstDay, rate: n.Rates[index]}
}

// clock returns what the instance's clock shows at t.
func (s *server) clock(t time.Duration) time.Time {
	return s.wall.Add(time.Duration(float64(t-s.since) * s.rate))
}

// setClock lets the clock jump, and run at another rate.
func (s *server) setClock(t, jump time.Duration, rate float64) {
	s.wall, s.since, s.rate = s.clock(t).Add(jump), t, rate
}

// left returns how long it takes until the clock shows expiry.
func (s *server) left(t time.Duration, expiry time.Time) time.Duration {
	return time.Duration(math.Ceil(float64(expiry.Sub(s.clock(t))) / s.rate))
}

// A session is the instance's end of a connection.
type session struct {
	server *server
	conn   *conn
	gone   bool
	buffer []byte
	topics map[string]bool
}

// join begins the session.
func (x *session) join() {
	x.gone = false
	x.server.sessions = append(x.server.sessions, x)
}

// receive takes a message. A copy of one runs in a session of its own, which nobody
// reads.
func (x *session) receive(p []byte, sent time.Duration, copied bool) {
	s := x.server
	now := s.n.now()
	switch {
	case s.down:
		return
	case copied && p[0] != '*':
		return // the rest of a command
	case copied:
		x = &session{server: s, conn: x.conn}
	case x.gone:
		x.conn.hangUp() // it has restarted, and knows nothing of this connection
		return
	}
	run := func() { x.process(p, sent, copied) }
	if now < s.stopped {
		s.backlog = append(s.backlog, run)
		s.n.hits[Hang]++
		return
	}
	slow := time.Duration(0)
	for i := range s.n.Faults {
		if f := &s.n.Faults[i]; f.Kind == SlowServer && f.hits(now, all, s.index) {
			slow += s.n.dice.of(aboutFault, uint64(i), uint64(now)).between(0, f.Amount)
			s.n.hits[SlowServer]++
		}
	}
	if slow == 0 && now >= s.busy {
		run()
		return
	}
	s.busy = x.conn.instant(up, max(now, s.busy)+slow+1)
	s.n.at(s.busy, func() {
		if !x.gone && !s.down {
			run()
		}
	})
}

// process runs the commands in a message.
func (x *session) process(p []byte, sent time.Duration, copied bool) {
	if x.gone {
		return
	}
	x.buffer = append(x.buffer, p...)
	var out []byte
	for {
		args, size := parseCommand(x.buffer)
		if args == nil {
			break
		}
		x.buffer = x.buffer[size:]
		if reply := x.run(args, sent, copied); !copied || answeredTwice(args) {
			out = append(out, reply...)
		}
	}
	if len(out) > 0 {
		x.conn.reply(out)
	}
}

// answeredTwice reports whether the copy of a command is answered, too: that of every
// other batch, by its number.
func answeredTwice(args []string) bool {
	if upper(args[0]) != "EVALSHA" {
		return false
	}
	b := parseBatch(args)
	return b != nil && len(b.ops) > 0 && strings.ContainsAny(b.number[len(b.number)-1:], "02468")
}

// run runs one command.
func (x *session) run(args []string, sent time.Duration, copied bool) []byte {
	s := x.server
	now := s.clock(s.n.now())
	switch name := upper(args[0]); name {
	case "HELLO", "CLIENT":
		return introduction(args)
	case "TIME":
		return fmt.Appendf(nil, "*2\r\n%s%s", bulk(strconv.FormatInt(now.Unix(), 10)), bulk(strconv.Itoa(now.Nanosecond()/1000)))
	case "INFO":
		return bulk(fmt.Sprintf("# Server\r\nredis_version:7.0.15\r\nrun_id:run-%d-%d\r\nserver_time_usec:%d\r\nuptime_in_seconds:%d\r\n",
			s.index, s.starts, now.UnixMicro(), now.Unix()-s.started.Unix()))
	case "SUBSCRIBE", "UNSUBSCRIBE":
		if s.n.Deaf {
			return []byte("-NOPERM this user has no permissions to access one of the channels used as arguments\r\n")
		}
		var out []byte
		for _, topic := range args[1:] {
			out = append(out, x.subscribe(topic, name == "SUBSCRIBE")...)
		}
		return out
	case "EVAL", "EVALSHA":
		reply := s.engine.do(args, now)
		s.deliver()
		if reply[0] == '$' && s.watch != nil {
			if b := parseBatch(args); b != nil {
				s.watch(x, sent, copied, b, bulkText(reply))
			}
		}
		return reply
	default:
		return s.engine.do(args, now)
	}
}

// upper returns the name of a command.
func upper(name string) string {
	if name == "evalsha" { // nearly always
		return "EVALSHA"
	}
	return strings.ToUpper(name)
}

// introduction returns the reply to what a client says of itself, as that of a server
// which is too old for it; nil if that is not what it says.
func introduction(args []string) []byte {
	switch {
	case len(args) == 0:
		return nil
	case strings.EqualFold(args[0], "HELLO"):
		return []byte("-ERR unknown command 'HELLO'\r\n")
	case strings.EqualFold(args[0], "CLIENT"):
		return []byte("+OK\r\n")
	}
	return nil
}

func (x *session) subscribe(topic string, on bool) []byte {
	if x.topics == nil {
		x.topics = map[string]bool{}
	}
	kind := "subscribe"
	if on {
		x.topics[topic] = true
	} else {
		kind = "unsubscribe"
		delete(x.topics, topic)
	}
	return fmt.Appendf(nil, "*3\r\n%s%s:%d\r\n", bulk(kind), bulk(topic), len(x.topics))
}

// publish sends a message to all that have subscribed, once the batch is through, and
// returns how many those are.
func (s *server) publish(topic, message string) int {
	told := 0
	for _, x := range s.sessions {
		if x.topics[topic] {
			told++
		}
	}
	s.posts = append(s.posts, post{topic, message})
	return told
}

// A post is a message that is to be published.
type post struct{ topic, message string }

// deliver sends what a batch has published. Each message arrives by itself, so that what
// it changes is done before the next.
func (s *server) deliver() {
	if len(s.posts) == 0 {
		return
	}
	for _, p := range s.posts {
		message := fmt.Appendf(nil, "*3\r\n%s%s%s", bulk("message"), bulk(p.topic), bulk(p.message))
		for _, x := range s.sessions {
			if x.topics[p.topic] {
				x.conn.reply(message)
			}
		}
	}
	s.posts = s.posts[:0]
}

// close takes that the client has closed the connection, behind what it has sent
// before.
func (x *session) close() {
	s := x.server
	switch now := s.n.now(); {
	case now < s.stopped:
		s.backlog = append(s.backlog, x.end)
	case now < s.busy:
		s.n.at(s.busy+1, x.end)
	default:
		x.end()
	}
}

// end ends the session.
func (x *session) end() {
	x.gone = true
	s := x.server
	for i, other := range s.sessions {
		if other == x {
			s.sessions = append(s.sessions[:i:i], s.sessions[i+1:]...)
			return
		}
	}
}

// crash ends the process. Its machine tells the clients.
func (s *server) crash(kept bool) {
	s.down, s.stopped, s.backlog = true, 0, nil
	s.breakConns(all)
	s.engine.restart(kept, s.clock(s.n.now()))
}

// breakConns breaks the connections of a client, or of all.
func (s *server) breakConns(client int) {
	left := s.sessions[:0:0]
	for _, x := range s.sessions {
		if client != all && x.conn.link.client != client {
			left = append(left, x)
			continue
		}
		x.gone = true
		x.conn.hangUp()
	}
	s.sessions = left
}

// start starts the process again.
func (s *server) start() {
	s.down = false
	s.starts++
	s.started = s.clock(s.n.now())
}

// stop stops the process until t.
func (s *server) stop(t time.Duration) { s.stopped = max(s.stopped, t) }

// goOn lets it run what has arrived meanwhile.
func (s *server) goOn() {
	if s.n.now() < s.stopped {
		return // somebody else has stopped it for longer
	}
	backlog := s.backlog
	s.backlog = nil
	for _, run := range backlog {
		run()
	}
}

// parseCommand reads one command, an array of bulk strings; nil if there is none yet.
func parseCommand(p []byte) (args []string, size int) {
	whole := string(p) // the arguments are parts of it
	n, rest, ok := parseCount(whole, '*')
	if !ok {
		return nil, 0
	}
	args = make([]string, 0, n)
	for range n {
		var length int
		length, rest, ok = parseCount(rest, '$')
		if !ok || len(rest) < length+2 {
			return nil, 0
		}
		args = append(args, rest[:length])
		rest = rest[length+2:]
	}
	return args, len(p) - len(rest)
}

func parseCount(p string, kind byte) (n int, rest string, ok bool) {
	end := strings.IndexByte(p, '\n')
	if end < 2 {
		return 0, p, false
	}
	if p[0] != kind {
		panic(fmt.Sprintf("sim: %q where %q begins an element", p[0], kind))
	}
	n, err := strconv.Atoi(p[1 : end-1])
	if err != nil || n < 0 {
		panic(fmt.Sprintf("sim: %q is no length", p[:end]))
	}
	return n, p[end+1:], true
}

func bulk(s string) []byte {
	b := append(make([]byte, 0, len(s)+16), '$')
	b = strconv.AppendInt(b, int64(len(s)), 10)
	b = append(b, "\r\n"...)
	b = append(b, s...)
	return append(b, "\r\n"...)
}

// bulkText returns what bulk has encoded.
func bulkText(reply []byte) string {
	_, rest, _ := parseCount(string(reply), '$')
	return rest[:len(rest)-2]
}
