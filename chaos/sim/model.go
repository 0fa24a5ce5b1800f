package sim

import (
	"cmp"
	"crypto/sha1" // as Redis names scripts
	"encoding/hex"
	"fmt"
	"math"
	"slices"
	"strconv"
	"strings"
	"time"
)

// A model is the engine of the core: what lua/batch.lua does, in Go. It knows no other
// command than those that the script needs for a test: SET, GET, PTTL and DEL.
type model struct {
	data    map[string]entry
	scripts map[string]bool
	publish func(topic, message string) int
}

type entry struct {
	value  string
	expiry int64 // ms since 1970; 0: never
}

func newModel(publish func(topic, message string) int) *model {
	return &model{data: map[string]entry{}, scripts: map[string]bool{}, publish: publish}
}

func (m *model) close() {}

func (m *model) restart(kept bool, _ time.Time) {
	clear(m.scripts)
	if !kept {
		clear(m.data)
	}
}

func (m *model) do(args []string, clock time.Time) []byte {
	x := at{m, clock.UnixMilli()}
	switch upper(args[0]) {
	case "EVAL":
		sum := sha1.Sum([]byte(args[1]))
		m.scripts[hex.EncodeToString(sum[:])] = true
	case "EVALSHA":
		if !m.scripts[args[1]] {
			return []byte("-NOSCRIPT No matching script. Please use EVAL.\r\n")
		}
	default:
		return fmt.Appendf(nil, "-ERR unknown command '%s'\r\n", args[0])
	}
	b := parseBatch(args)
	if b == nil {
		return []byte("-ERR not the batch script\r\n")
	}
	return bulk(strings.Join(x.run(b), "\n"))
}

func (m *model) holder(key string, clock time.Time) (string, time.Time) {
	e, ok := at{m, clock.UnixMilli()}.get(key)
	if !ok || e.expiry == 0 {
		return e.value, time.UnixMilli(math.MaxInt32 * 1000)
	}
	return e.value, time.UnixMilli(e.expiry + 1) // then it is gone
}

func (m *model) keys(clock time.Time) []string {
	x := at{m, clock.UnixMilli()}
	var keys []string
	for k := range m.data {
		if _, ok := x.get(k); ok {
			keys = append(keys, k)
		}
	}
	slices.Sort(keys)
	return keys
}

// at is a model at a moment.
type at struct {
	*model
	now int64
}

// get returns what a key holds. As on a server, a key lives through the whole of the
// millisecond in which it expires.
func (m at) get(key string) (entry, bool) {
	e, ok := m.data[key]
	if ok && e.expiry != 0 && m.now > e.expiry {
		delete(m.data, key)
		return entry{}, false
	}
	return e, ok
}

func (m at) set(key, value, px string) { m.data[key] = entry{value, m.now + number(px)} }

// keepTTL sets a key and leaves its expiry as it is.
func (m at) keepTTL(key, value string) {
	e, _ := m.get(key)
	m.data[key] = entry{value, e.expiry}
}

func (m at) expire(key string, px int64) {
	if e, ok := m.get(key); ok {
		m.data[key] = entry{e.value, m.now + px}
	}
}

func (m at) pttl(key string) int64 {
	e, ok := m.get(key)
	switch {
	case !ok:
		return -2
	case e.expiry == 0:
		return -1
	}
	return e.expiry - m.now
}

// number reads what the library has written.
func number(s string) int64 {
	n, err := strconv.ParseInt(s, 10, 64)
	if err != nil {
		panic("sim: not a number: " + s)
	}
	return n
}

const (
	noToken = "f the fence key holds no token"
	noFence = "f the fence key is gone"
	ended   = "f the fence key has counted to its end"
)

// fence reads a fence key: its number; text is empty where it is absent. fault is an
// answer where it can't be used.
func (m at) fence(key string) (n int64, text, fault string) {
	e, ok := m.get(key)
	if !ok {
		return 0, "", ""
	}
	n, err := strconv.ParseInt(e.value, 10, 64)
	if err != nil || len(e.value) > 16 || n >= 1<<53 || strings.Trim(e.value, "0123456789") != "" {
		return 0, "", noToken
	}
	return n, e.value, ""
}

// refusal tells in which way a lock is not owner's; empty where it is.
func (m at) refusal(o operation) string {
	switch e, ok := m.get(o.lock); {
	case !ok:
		return "n"
	case e.value != o.owner:
		return "x"
	}
	return ""
}

func (m at) run(b *batch) []string {
	answers := []string{b.number}
	q := queues{m, b, false, false}
	for _, o := range b.ops {
		var answer string
		switch o.letter {
		case 'a':
			answer = m.acquire(o)
		case 'w':
			if answer = m.acquire(o); answer[0] == 'r' {
				q.join(o)
			}
		case 'q':
			q.join(o)
			answer = m.look(o)
		case 'r':
			answer = m.raise(o)
		case 'e':
			answer = m.extend(o)
		case 'h':
			answer = m.heal(o)
		case 'd':
			answer = m.release(o, &q)
		}
		answers = append(answers, answer)
	}
	return answers
}

func (m at) release(o operation, q *queues) string {
	answer := m.refusal(o)
	if answer == "x" {
		return answer
	}
	delete(m.data, o.lock)
	told := 0
	if o.flag != "0" && q.anybody() {
		told = q.wake(o)
	}
	return cmp.Or(answer, fmt.Sprintf("g %d", told))
}

// look returns how long a lock is another's.
func (m at) look(o operation) string {
	if _, taken := m.get(o.lock); !taken {
		return "n"
	}
	return m.taken(o)
}

// taken is the refusal for a lock that is another's.
func (m at) taken(o operation) string {
	n, _, fault := m.fence(o.fence)
	return cmp.Or(fault, fmt.Sprintf("r %d %d", n, m.pttl(o.lock)))
}

// queues are those that wait, as a batch sees them.
type queues struct {
	at
	b             *batch
	waits, looked bool // that somebody does
}

// A place in a queue: since when, a space, the name, and the end of the line.
const (
	sinceLen  = 16
	placeLen  = sinceLen + 1 + 8 + 1
	maxPlaces = 64
)

func (q *queues) key(o operation) string { return o.lock + "{}:waiting" }

func (q *queues) places(o operation) string {
	if e, ok := q.get(q.key(o)); ok && len(e.value)%placeLen == 0 {
		return e.value
	}
	return ""
}

func (q *queues) setPlaces(o operation, places string) {
	if places == "" {
		delete(q.data, q.key(o))
	} else {
		q.set(q.key(o), places, "2000")
	}
}

// me ends the place of the Locker that asks.
func (q *queues) me() string { return " " + q.b.me + "\n" }

// join puts the Locker that asks into the queue of o's lock, by how long it has waited.
func (q *queues) join(o operation) {
	if q.b.mark == "" || len(o.since) != sinceLen {
		return
	}
	q.set(q.b.mark, "1", "2000")
	q.waits, q.looked = true, true
	places := q.places(o)
	if !strings.Contains(places, q.me()) {
		before := len(places)
		for before > 0 && places[before-placeLen:before-placeLen+sinceLen] > o.since {
			before -= placeLen
		}
		places = places[:before] + o.since + q.me() + places[before:]
		places = places[:min(len(places), maxPlaces*placeLen)]
	}
	q.setPlaces(o, places)
}

// anybody reports whether somebody waits, for whatever.
func (q *queues) anybody() bool {
	if !q.looked {
		e, _ := q.get(q.b.mark)
		q.waits, q.looked = q.b.mark != "" && e.value == "1", true
	}
	return q.waits
}

// wake tells the first in the queue who listens of the release of o's lock, and the
// next one if o says so.
func (q *queues) wake(o operation) (told int) {
	places := q.places(o)
	if places == "" {
		return 0
	}
	if before, after, found := strings.Cut(places, q.me()); found {
		places = before[:len(before)-sinceLen] + after
	}
	for news := "now"; places != ""; {
		name := places[sinceLen+1 : placeLen-1]
		heard := q.publish(q.b.mark+":"+name, fmt.Sprintf("%s %s %s", news, head(o.owner), o.lock))
		if news == "later" {
			break
		}
		places = places[placeLen:]
		if heard == 0 {
			continue
		}
		told = 1
		if o.flag != "2" {
			break
		}
		news = "later"
	}
	q.setPlaces(o, places)
	return told
}

func head(owner string) string { return owner[:min(8, len(owner))] }

func (m at) acquire(o operation) string {
	f := "0"
	n, text, fault := m.fence(o.fence)
	if o.fence != "" {
		f = o.token
		switch {
		case fault != "":
			return fault
		case n == 1<<53-1:
			return ended
		case text != "" && n >= number(f):
			f = strconv.FormatInt(n+1, 10)
		}
	}
	if e, taken := m.get(o.lock); taken {
		switch {
		case e.value != o.owner:
			return m.taken(o)
		case o.fence == "":
			return "g 0"
		case text == "":
			return noFence
		}
		return "g " + text
	}
	m.set(o.lock, o.owner, o.ttl)
	if o.fence != "" {
		m.set(o.fence, f, o.keep)
	}
	return "g " + f
}

// held returns the fence of a lock that is the owner's, and not beyond its token; or
// the answer where it is not.
func (m at) held(o operation) (text, answer string) {
	if answer := m.refusal(o); answer != "" {
		return "", answer
	}
	if o.fence == "" {
		return "", ""
	}
	n, text, fault := m.fence(o.fence)
	switch {
	case fault != "":
		return "", fault
	case text == "":
		return "", noFence
	case n > number(o.token):
		return "", "t " + text
	}
	return text, ""
}

func (m at) raise(o operation) string {
	if _, answer := m.held(o); answer != "" {
		return answer
	}
	m.keepTTL(o.fence, o.token)
	return "g " + o.token
}

func (m at) extend(o operation) string {
	text, answer := m.held(o)
	if answer != "" {
		return answer
	}
	return fmt.Sprintf("e %s %d", o.token, m.keepOn(o, text, o.flag == "1"))
}

// keepOn sets the fence to the token and the expiries to ttl and keep, unless that
// brings them nearer and shorter does not ask for it. It returns what was left before.
func (m at) keepOn(o operation, text string, shorter bool) (before int64) {
	left := m.pttl(o.lock)
	later := shorter || left < number(o.ttl)
	switch {
	case o.fence == "":
	case text != o.token && (later || text == ""):
		m.set(o.fence, o.token, o.keep)
	case text != o.token:
		m.keepTTL(o.fence, o.token)
	case later:
		m.expire(o.fence, number(o.keep))
	}
	if later {
		m.expire(o.lock, number(o.ttl))
	} else {
		m.expire(o.lock, left)
	}
	return left
}

func (m at) heal(o operation) string {
	text := ""
	if o.fence != "" {
		n, old, fault := m.fence(o.fence)
		switch {
		case fault != "":
			return fault
		case n > number(o.token):
			return "x"
		}
		text = old
	}
	if _, taken := m.get(o.lock); taken {
		return "x"
	}
	m.set(o.lock, o.owner, o.ttl)
	m.keepOn(o, text, true)
	return "g " + o.token
}
