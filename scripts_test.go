package redlock

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"math/rand/v2"
	"net"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/alicebob/miniredis/v2"
	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/quorumlock/redlock/internal/redistest"
)

// A backend runs the script: a real server, or miniredis, which tests of users'
// programs take for one.
type backend struct {
	*redis.Client
}

// onBackends runs f on both.
func onBackends(t *testing.T, f func(t *testing.T, b backend)) {
	t.Run("redis", func(t *testing.T) { f(t, connect(t, redistest.Start(t).Addr(), "")) })
	t.Run("miniredis", func(t *testing.T) { f(t, connect(t, miniredis.RunT(t).Addr(), "")) })
}

// connect returns a client of addr, as user, whose password is "pw".
func connect(t *testing.T, addr, user string) backend {
	t.Helper()
	o := &redis.Options{Addr: addr, Protocol: 2, MaxRetries: -1, DisableIdentity: true, PoolSize: 1}
	if user != "" {
		o.Username, o.Password = user, "pw"
	}
	c := redis.NewClient(o)
	t.Cleanup(func() { require.NoError(t, c.Close()) })
	return backend{c}
}

// command sends one command and requires that it succeeds; nil is no error.
func (b backend) command(t *testing.T, args ...any) any {
	t.Helper()
	reply, err := b.Do(t.Context(), args...).Result()
	if !errors.Is(err, redis.Nil) {
		require.NoError(t, err, "%v", args)
	}
	return reply
}

func (b backend) flush(t *testing.T) {
	t.Helper()
	b.command(t, "FLUSHALL")
}

// keys returns all keys, in order.
func (b backend) keys(t *testing.T) []string {
	t.Helper()
	keys, err := b.Keys(t.Context(), "*").Result()
	require.NoError(t, err)
	slices.Sort(keys)
	return keys
}

// A cell is what a key holds.
type cell struct {
	kind  string // "string", "list", or "none"
	value string
	ttl   int64 // in ms; -1 when it does not expire
}

var none = cell{kind: "none", ttl: -2}

func text(value string, ttl int64) cell { return cell{"string", value, ttl} }

// putAll sets keys, and lookAll returns what is in them, in few round trips.
func (b backend) putAll(t *testing.T, cells map[string]cell) {
	t.Helper()
	_, err := b.Pipelined(t.Context(), func(p redis.Pipeliner) error {
		for key, c := range cells {
			switch c.kind {
			case "list":
				p.Do(t.Context(), "RPUSH", key, c.value)
			case "string":
				p.Do(t.Context(), "SET", key, c.value)
			}
			if c.ttl > 0 {
				p.Do(t.Context(), "PEXPIRE", key, c.ttl)
			}
		}
		return nil
	})
	require.NoError(t, err)
}

func (b backend) lookAll(t *testing.T, keys []string) map[string]cell {
	t.Helper()
	shapes, err := b.Pipelined(t.Context(), func(p redis.Pipeliner) error {
		for _, key := range keys {
			p.Do(t.Context(), "TYPE", key)
			p.Do(t.Context(), "PTTL", key)
		}
		return nil
	})
	require.NoError(t, err)
	cells := map[string]cell{}
	values, err := b.Pipelined(t.Context(), func(p redis.Pipeliner) error {
		for i, key := range keys {
			kind, _ := shapes[2*i].(*redis.Cmd).Text()
			ttl, _ := shapes[2*i+1].(*redis.Cmd).Int64()
			cells[key] = cell{kind: kind, ttl: ttl}
			if kind == "list" {
				p.Do(t.Context(), "LINDEX", key, 0)
			} else {
				p.Do(t.Context(), "GET", key)
			}
		}
		return nil
	})
	if !errors.Is(err, redis.Nil) {
		require.NoError(t, err)
	}
	for i, key := range keys {
		c := cells[key]
		c.value, _ = values[i].(*redis.Cmd).Text()
		cells[key] = c
	}
	return cells
}

func (b backend) put(t *testing.T, key string, c cell) {
	t.Helper()
	b.putAll(t, map[string]cell{key: c})
}

func (b backend) look(t *testing.T, key string) cell {
	t.Helper()
	return b.lookAll(t, []string{key})[key]
}

// slack is how long a test may take. The ttls in these tests are further apart.
const slack = 20_000

// requireCell requires that key holds want, whose ttl has run for a while.
func (b backend) requireCell(t *testing.T, want cell, key string, what ...any) {
	t.Helper()
	requireSame(t, want, b.look(t, key), what...)
}

func requireSame(t *testing.T, want, got cell, what ...any) {
	t.Helper()
	if want.ttl > 0 && got.ttl > max(want.ttl-slack, 0) && got.ttl <= want.ttl {
		got.ttl = want.ttl
	}
	require.Equal(t, want, got, what...)
}

// A pair is the keys of one resource.
type pair struct{ lock, fence string }

func pairOf(resource string) pair {
	return pair{"lock:" + resource, fenceKey("lock:", resource)}
}

// An operation is one of a batch, in plain words: not as the library encodes it.
type operation struct {
	pair
	args []string
}

func (p pair) acquire(owner string, ttl, keep int64, seed string) operation {
	return operation{p, []string{"a", owner, strconv.FormatInt(ttl, 10), strconv.FormatInt(keep, 10), seed}}
}

func (p pair) raise(owner, token string) operation {
	return operation{p, []string{"r", owner, token}}
}

func (p pair) extend(owner string, ttl, keep int64, token string) operation {
	return operation{p, []string{"e", owner, strconv.FormatInt(ttl, 10), strconv.FormatInt(keep, 10), token, "0"}}
}

// shorten is an extend that may bring the expiries nearer.
func (p pair) shorten(owner string, ttl, keep int64, token string) operation {
	return operation{p, []string{"e", owner, strconv.FormatInt(ttl, 10), strconv.FormatInt(keep, 10), token, "1"}}
}

func (p pair) heal(owner string, ttl, keep int64, token string) operation {
	return operation{p, []string{"h", owner, strconv.FormatInt(ttl, 10), strconv.FormatInt(keep, 10), token}}
}

func (p pair) release(owner string) operation {
	return operation{p, []string{"d", owner, "0"}}
}

func (o operation) letter() string { return o.args[0] }

// eval runs ops as one batch.
func (b backend) eval(ctx context.Context, fenced bool, ops ...operation) ([]string, error) {
	var keys []string
	args := []any{"0", "", batchNumber, ""}
	if fenced {
		args[0] = "1"
	}
	for _, o := range ops {
		keys = append(keys, o.lock)
		if fenced && o.letter() != "d" {
			keys = append(keys, o.fence)
		}
		for _, arg := range o.args {
			args = append(args, arg)
		}
	}
	reply, err := batchScript.Run(ctx, b, keys, args...).Text()
	if err != nil {
		return nil, err
	}
	number, lines, _ := strings.Cut(reply, "\n")
	if number != batchNumber {
		return nil, fmt.Errorf("the answer to batch %q", number)
	}
	return strings.Split(lines, "\n"), nil
}

const batchNumber = "1234567890"

var batchScript = redis.NewScript(string(batchText))

// run runs ops as one batch and returns their lines, one for each.
func (b backend) run(t *testing.T, fenced bool, ops ...operation) []string {
	t.Helper()
	lines, err := b.eval(t.Context(), fenced, ops...)
	require.NoError(t, err)
	require.Len(t, lines, len(ops), "%q", lines)
	return lines
}

// Values of the tests.
const (
	own     = "the owner"
	foreign = "somebody else"
	seed    = uint64(1_700_000_000_000_000)
	ttlMS   = 100_000 // what an operation asks for
	keepMS  = 700_000
	oldTTL  = 300_000 // what the keys had before
	oldKeep = 500_000
	soon    = 30_000
)

func decimal(n uint64) string { return strconv.FormatUint(n, 10) }

// What the script is compared with: protocol.md once more, on cells.

// A world is one resource on one instance.
type world struct{ lock, fence cell }

// A verdict is a line of the script: its letter and its numbers, or a part of its
// text. The letters are those that are right: mostly one.
type verdict struct {
	letters string
	fence   uint64
	lease   int64
	text    string
}

var number = regexp.MustCompile(`^[0-9]{1,16}$`)

// counted reads a fence: its number, and why it can't be used.
func (c cell) counted() (n uint64, fault string) {
	switch c.kind {
	case "none":
		return 0, ""
	case "list":
		return 0, "WRONGTYPE"
	}
	n, err := strconv.ParseUint(c.value, 10, 64)
	if err != nil || !number.MatchString(c.value) || n >= maxToken {
		return 0, "holds no token"
	}
	return n, ""
}

// held tells whether the lock is own's; if not, what the script says to that.
func (c cell) held() (bool, verdict) {
	switch {
	case c.kind == "none":
		return false, verdict{letters: "n"}
	case c.kind == "list":
		return false, verdict{letters: "f", text: "WRONGTYPE"}
	case c.value != own:
		return false, verdict{letters: "x"}
	}
	return true, verdict{}
}

// after returns what an operation of own, with ttlMS, keepMS and seed, makes of w.
// Its letter is S for an extend that may shorten.
func (w world) after(letter string, fenced bool) (verdict, world) {
	isOwn, notOwn := w.lock.held()
	var n uint64
	if fenced && letter != "d" {
		var fault string
		if n, fault = w.fence.counted(); fault != "" {
			if !isOwn && strings.Contains("reS", letter) {
				return notOwn, w
			}
			return verdict{letters: "f", text: fault}, w
		}
	}
	next := w
	switch letter {
	case "a":
		end := "" // at its end a fence may fail every acquire
		if fenced && n == maxToken-1 {
			end = "f"
		}
		switch {
		case isOwn && fenced && w.fence == none:
			return verdict{letters: "f", text: "fence key is gone"}, w
		case isOwn:
			return verdict{letters: "g" + end, fence: n}, w
		case w.lock.kind == "string":
			return verdict{letters: "r" + end, fence: n, lease: w.lock.ttl}, w
		case w.lock.kind == "list":
			return verdict{letters: "f"}, w
		case end != "":
			return verdict{letters: "f", text: "counted to its end"}, w
		}
		next.lock = text(own, ttlMS)
		if fenced {
			n = max(n+1, seed)
			next.fence = text(decimal(n), keepMS)
		}
		return verdict{letters: "g", fence: n}, next

	case "r":
		switch {
		case !isOwn:
			return notOwn, w
		case w.fence == none:
			return verdict{letters: "f", text: "fence key is gone"}, w
		case n > seed:
			return verdict{letters: "xtf", fence: n}, w // see TestARaiseBeyondTheTokenIsNobodyElses
		}
		next.fence.value = decimal(seed)
		return verdict{letters: "g", fence: seed}, next

	case "e", "S":
		switch {
		case !isOwn:
			return notOwn, w
		case fenced && w.fence == none:
			return verdict{letters: "f", text: "fence key is gone"}, w
		case n > seed:
			return verdict{letters: "t", fence: n}, w
		case letter == "e" && w.lock.ttl > ttlMS: // it brings no expiry nearer
			if fenced {
				next.fence.value = decimal(seed)
			}
			return verdict{letters: "e", fence: seed, lease: w.lock.ttl}, next
		}

	case "h":
		if w.lock != none || n > seed {
			return verdict{letters: "x"}, w
		}

	case "d":
		if !isOwn {
			return notOwn, w
		}
		next.lock = none
		return verdict{letters: "g"}, next
	}
	// An extend or a heal that is done.
	next.lock = text(own, ttlMS)
	if fenced {
		next.fence = text(decimal(seed), keepMS)
	}
	if letter == "h" {
		return verdict{letters: "g", fence: seed}, next
	}
	return verdict{letters: "e", fence: seed, lease: w.lock.ttl}, next
}

// grants returns lines with an extend that is done, "e F left", as the grant that it
// is, "g F".
func grants(lines ...string) []string {
	plain := slices.Clone(lines)
	for i, line := range plain {
		if rest, extended := strings.CutPrefix(line, "e "); extended {
			fence, _, _ := strings.Cut(rest, " ")
			plain[i] = "g " + fence
		}
	}
	return plain
}

// requireLine requires that line says v.
func requireLine(t *testing.T, v verdict, line string, what ...any) {
	t.Helper()
	letter, rest, _ := strings.Cut(line, " ")
	require.NotEmpty(t, letter, what...)
	require.Contains(t, v.letters, letter, "%s: %v", line, what)
	switch letter {
	case "g", "t":
		n, err := strconv.ParseUint(rest, 10, 64)
		require.NoError(t, err)
		require.Equal(t, v.fence, n, what...)
	case "r", "e":
		fence, lease, _ := strings.Cut(rest, " ")
		require.Equal(t, decimal(v.fence), fence, what...)
		left, err := strconv.ParseInt(lease, 10, 64)
		require.NoError(t, err)
		require.LessOrEqual(t, left, v.lease, what...)
		require.GreaterOrEqual(t, left, max(v.lease-slack, -1), what...)
	case "f":
		require.NotEmpty(t, rest, "a failure without a reason")
		require.Contains(t, rest, v.text, what...)
	default:
		require.Empty(t, rest, what...)
	}
}

// badFences are texts that are no token; a number in Lua, some of them.
var badFences = []string{
	"0x10", "1e3", "nan", "inf", "-5", "+5", "", " 5", "5 ", "5\n", "1.5", "5a", "1_000", "\x00",
	"9007199254740992", "9007199254740993", "9999999999999999", "12345678901234567", "00000000000000005",
}

var goodFences = []string{
	"0", "7", "007", "0000000000000007", decimal(seed - 1), decimal(seed), decimal(seed + 1), decimal(maxToken - 2), decimal(maxToken - 1),
}

func worlds() []world {
	locks := []cell{
		none, text(own, oldTTL), text(own, soon), text(own, -1), text(foreign, oldTTL), text(foreign, -1),
		text("", oldTTL), text(own+" ", oldTTL), text(own[1:], oldTTL),
		{"list", own, oldTTL},
	}
	fences := []cell{none, {"list", "7", oldKeep}, text("7", -1), text(decimal(seed), -1)}
	for _, s := range slices.Concat(goodFences, badFences) {
		fences = append(fences, text(s, oldKeep))
	}
	var all []world
	for _, l := range locks {
		for _, f := range fences {
			all = append(all, world{l, f})
		}
	}
	return all
}

// Every operation, in every state of the two keys: the answer, what is in the
// keys after it, and when they expire. What is not to be changed is not touched,
// its expiry neither.
func TestTheScriptIsTheProtocolInEveryState(t *testing.T) {
	onBackends(t, func(t *testing.T, b backend) {
		for _, letter := range []string{"a", "r", "e", "S", "h", "d"} {
			requireEveryState(t, b, letter, true)
			if letter != "r" { // which is never sent without fencing
				requireEveryState(t, b, letter, false)
			}
		}
	})
}

func requireEveryState(t *testing.T, b backend, letter string, fenced bool) {
	t.Helper()
	b.flush(t)
	var befores []world
	var ops []operation
	var keys []string
	cells := map[string]cell{}
	for i, before := range worlds() {
		r := pairOf(strconv.Itoa(i))
		befores = append(befores, before)
		keys = append(keys, r.lock, r.fence)
		cells[r.lock], cells[r.fence] = before.lock, before.fence
		ops = append(ops, map[string]operation{
			"a": r.acquire(own, ttlMS, keepMS, decimal(seed)),
			"r": r.raise(own, decimal(seed)),
			"e": r.extend(own, ttlMS, keepMS, decimal(seed)),
			"S": r.shorten(own, ttlMS, keepMS, decimal(seed)),
			"h": r.heal(own, ttlMS, keepMS, decimal(seed)),
			"d": r.release(own),
		}[letter])
	}
	b.putAll(t, cells)
	lines := b.run(t, fenced, ops...)
	cells = b.lookAll(t, keys)
	for i, before := range befores {
		line, lock, fence := lines[i], cells[ops[i].lock], cells[ops[i].fence]
		what := fmt.Sprintf("%s on %+v, fenced %v", letter, before, fenced)
		want, after := before.after(letter, fenced)
		requireLine(t, want, line, what)
		requireSame(t, after.lock, lock, what)
		requireSame(t, after.fence, fence, what)

		if !fenced || line[0] != 'g' && line[0] != 'e' || letter == "d" {
			continue
		}
		// A vote for a token: the lock is ours, and the fence says just that token.
		require.Equal(t, own, lock.value, what)
		n, fault := fence.counted()
		require.Empty(t, fault, what)
		require.Equal(t, grants(line), []string{"g " + fence.value}, what)
		require.Equal(t, n, parseAnswer(line).fence, what)
	}
}

// Of an instance whose fence is where it should not be while the lock is still
// ours, a raise must not say that the lock is another owner's: refusals are
// counted as such, and make a round that nobody else won "taken".
func TestARaiseBeyondTheTokenIsNobodyElses(t *testing.T) {
	onBackends(t, func(t *testing.T, b backend) {
		r := pairOf("r")
		b.put(t, r.lock, text(own, oldTTL))
		b.put(t, r.fence, text(decimal(seed+1), oldKeep))
		a := parseAnswer(b.run(t, true, r.raise(own, decimal(seed)))[0])
		require.Equal(t, failed, a.vote, "%v", a.err)
	})
}

// A number that cannot be read is a fault of this instance: it gets no lock of
// ours, and what it has keeps its value and its expiry.
func TestABadFenceLeavesNoLockBehind(t *testing.T) {
	onBackends(t, func(t *testing.T, b backend) {
		for i, bad := range badFences {
			r := pairOf(strconv.Itoa(i))
			b.put(t, r.fence, text(bad, oldKeep))
			for _, o := range []operation{
				r.acquire(own, ttlMS, keepMS, decimal(seed)),
				r.heal(own, ttlMS, keepMS, decimal(seed)),
			} {
				a := parseAnswer(b.run(t, true, o)[0])
				require.Equal(t, failed, a.vote, "%q", bad)
				b.requireCell(t, none, r.lock, "%q", bad)
				b.requireCell(t, text(bad, oldKeep), r.fence, "%q", bad)
			}
		}
	})
}

func TestARepeatedAcquireChangesNothing(t *testing.T) {
	onBackends(t, func(t *testing.T, b backend) {
		r := pairOf("r")
		first := b.run(t, true, r.acquire(own, oldTTL, oldKeep, decimal(seed)))[0]
		require.Equal(t, "g "+decimal(seed), first)
		for range 3 {
			// As a client does that lost the reply: the same, but with more time and a larger seed, to see it.
			again := b.run(t, true, r.acquire(own, oldTTL+ttlMS, oldKeep+ttlMS, decimal(seed+1000)))[0]
			require.Equal(t, first, again)
			b.requireCell(t, text(own, oldTTL), r.lock)
			b.requireCell(t, text(decimal(seed), oldKeep), r.fence)
		}
	})
}

func TestEveryGrantCountsUp(t *testing.T) {
	onBackends(t, func(t *testing.T, b backend) {
		r := pairOf("r")
		last := uint64(0)
		for i := range 100 {
			// Seeds of clients whose clocks are anywhere.
			s := seed + rand.Uint64N(20)
			owner := strconv.Itoa(i)
			lines := b.run(t, true, r.acquire(owner, ttlMS, keepMS, decimal(s)), r.acquire(foreign, ttlMS, keepMS, decimal(s)), r.release(owner))
			a := parseAnswer(lines[0])
			require.Equal(t, granted, a.vote, "%v", a.err)
			require.Equal(t, max(last+1, s), a.fence)
			require.Equal(t, refused, parseAnswer(lines[1]).vote)
			require.Equal(t, a.fence, parseAnswer(lines[1]).fence, "a refusal tells the fence")
			last = a.fence
		}
		b.requireCell(t, text(decimal(last), keepMS), r.fence, "a release keeps the fence")
	})
}

// Lua's own text of a number is 1.7e+15, and a double can't count beyond 2^53.
func TestTokensAreExactAndPlainUpToTheirEnd(t *testing.T) {
	onBackends(t, func(t *testing.T, b backend) {
		for _, start := range []uint64{0, 99_990, 99_999_999_999_990, 999_999_999_999_990, seed, 1<<52 - 10, maxToken - 20} {
			b.flush(t)
			r := pairOf("r")
			b.put(t, r.fence, text(decimal(start), -1))
			for n := start + 1; n < min(start+20, maxToken); n++ {
				owner := decimal(n)
				lines := b.run(t, true, r.acquire(owner, ttlMS, keepMS, "1"), r.raise(owner, decimal(n)),
					r.extend(owner, ttlMS, keepMS, decimal(n)), r.extend(owner, ttlMS, keepMS, decimal(n-1)), r.release(owner))
				require.Equal(t, []string{"g " + decimal(n), "g " + decimal(n), "g " + decimal(n), "t " + decimal(n), "g 0"}, grants(lines...))
				b.requireCell(t, text(decimal(n), keepMS), r.fence)
			}
		}
		// At its end, where the last round has left it, it counts no further, and certainly not down.
		r := pairOf("r")
		line := b.run(t, true, r.acquire(own, ttlMS, keepMS, "1"))[0]
		require.Equal(t, failed, parseAnswer(line).vote, line)
		b.requireCell(t, none, r.lock)
		b.requireCell(t, text(decimal(maxToken-1), keepMS), r.fence)
	})
}

func TestARefusalTellsTheLease(t *testing.T) {
	onBackends(t, func(t *testing.T, b backend) {
		r := pairOf("r")
		leases := []int64{-1, 1000, 3_600_000, maxTTL.Milliseconds()}
		if t.Name() == "TestARefusalTellsTheLease/redis" { // miniredis counts in nanoseconds
			// What others may take for "for ever". Doubles of that size are up to a second off.
			leases = append(leases, 1<<53-1, 1<<53+1, 9_223_000_000_000_000_000)
		}
		for _, fence := range []cell{none, text(decimal(seed), oldKeep)} {
			for _, lease := range leases {
				b.flush(t)
				b.put(t, r.lock, text(foreign, -1))
				if lease > 0 {
					b.command(t, "SET", r.lock, foreign, "PX", lease)
				}
				b.put(t, r.fence, fence)
				line := b.run(t, true, r.acquire(own, ttlMS, keepMS, decimal(seed)))[0]
				a := parseAnswer(line)
				require.Equal(t, refused, a.vote, "%s: %v", line, a.err)
				n, _ := fence.counted()
				require.Equal(t, n, a.fence, line)
				require.NotContains(t, line, "e+")
				if lease < 0 {
					require.Equal(t, lease, a.lease)
				} else {
					require.InDelta(t, lease, a.lease, 1000, line)
				}
				b.requireCell(t, fence, r.fence, "a refusal counts nothing up")
			}
		}
	})
}

func TestWithoutFencingNoFenceKeyExists(t *testing.T) {
	onBackends(t, func(t *testing.T, b backend) {
		r := pairOf("r")
		for _, token := range []string{"0", decimal(seed)} { // fencing is off, or the token is of another source
			lines := b.run(t, false, r.acquire(own, ttlMS, keepMS, "0"), r.extend(own, ttlMS, keepMS, token), r.acquire(foreign, ttlMS, keepMS, "0"))
			require.Equal(t, []string{"g 0", "g " + token}, grants(lines[:2]...))
			require.Equal(t, refused, parseAnswer(lines[2]).vote)
			require.Equal(t, []string{r.lock}, b.keys(t))
			lines = b.run(t, false, r.release(own), r.heal(own, ttlMS, keepMS, token))
			require.Equal(t, []string{"g 0", "g " + token}, lines)
			require.Equal(t, []string{r.lock}, b.keys(t))
			require.Equal(t, []string{"g 0"}, b.run(t, false, r.release(own)))
			require.Empty(t, b.keys(t))
		}
	})
}

// Owners and resources are bytes.
func TestKeysAndOwnersAreBinary(t *testing.T) {
	all := make([]byte, 256)
	for i := range all {
		all[i] = byte(i)
	}
	names := []string{"\n", "\x00", "a\nb", "a\x00b", "\r\n", " ", "%s%d", "g 5", "\xff\xfe", string(all), strings.Repeat("\n", 1000)}
	onBackends(t, func(t *testing.T, b backend) {
		for _, resource := range names {
			for _, owner := range names {
				r := pairOf(resource)
				lines := b.run(t, true,
					r.acquire(owner, ttlMS, keepMS, decimal(seed)),
					r.acquire(owner+"\n", ttlMS, keepMS, decimal(seed)),
					r.acquire(owner+"\x00", ttlMS, keepMS, decimal(seed)),
					r.release(owner+"\x00"),
					r.extend(owner, ttlMS, keepMS, decimal(maxToken-1)),
					r.release(owner),
					r.heal(owner, ttlMS, keepMS, decimal(maxToken-1)),
				)
				votes := make([]string, len(lines))
				for i, line := range lines {
					votes[i] = line[:1]
				}
				require.Equal(t, "g r r x e g g", strings.Join(votes, " "), "%q of %q: %q", resource, owner, lines)
				b.requireCell(t, text(owner, ttlMS), r.lock, "%q", owner)
				require.Equal(t, []string{r.lock, r.fence}, sorted2(b.keys(t), r), "%q", resource)
				b.flush(t)
			}
		}
	})
}

// sorted2 returns keys, with r's lock key first.
func sorted2(keys []string, r pair) []string {
	if len(keys) == 2 && keys[1] == r.lock {
		slices.Reverse(keys)
	}
	return keys
}

func TestNothingToDoIsAnEmptyAnswer(t *testing.T) {
	onBackends(t, func(t *testing.T, b backend) {
		for _, fenced := range []bool{true, false} {
			lines, err := b.eval(t.Context(), fenced)
			require.NoError(t, err)
			require.Equal(t, []string{""}, lines)
		}
		require.Empty(t, b.keys(t))
	})
}

// An operation that fails stands alone: those before and after it in its batch
// are answered as if it were not there.
func TestOneFaultFailsNoOtherOperation(t *testing.T) {
	onBackends(t, func(t *testing.T, b backend) {
		var ops []operation
		var want []verdict
		cells, granted := map[string]cell{}, map[string]cell{}
		for i := range maxBatch {
			r := pairOf(strconv.Itoa(i))
			switch i % 10 {
			case 3: // a lock key of another type
				cells[r.lock] = cell{"list", own, oldTTL}
				want = append(want, verdict{letters: "f", text: "WRONGTYPE"})
			case 5: // a fence key of another type
				cells[r.fence] = cell{"list", "7", oldKeep}
				want = append(want, verdict{letters: "f", text: "WRONGTYPE"})
			case 7: // a fence key that holds no number
				cells[r.fence] = text("1e3", oldKeep)
				want = append(want, verdict{letters: "f", text: "holds no token"})
			case 9:
				cells[r.lock] = text(foreign, oldTTL)
				want = append(want, verdict{letters: "r", lease: oldTTL})
			default:
				granted[r.lock], granted[r.fence] = text(own, ttlMS), text(decimal(seed), keepMS)
				want = append(want, verdict{letters: "g", fence: seed})
			}
			ops = append(ops, r.acquire(own, ttlMS, keepMS, decimal(seed)))
		}
		b.putAll(t, cells)
		lines := b.run(t, true, ops...)
		for i, line := range lines {
			requireLine(t, want[i], line, i)
		}
		maps.Copy(cells, granted)
		keys := b.keys(t)
		require.Equal(t, slices.Sorted(maps.Keys(cells)), keys)
		for key, c := range b.lookAll(t, keys) {
			requireSame(t, cells[key], c, key)
		}
	})
}

// A batch is its operations one by one, in their order, whatever they are.
func TestABatchIsItsOperationsOneByOne(t *testing.T) {
	onBackends(t, func(t *testing.T, b backend) {
		owners := []string{own, foreign, ""}
		var resources []pair
		for i := range 12 {
			resources = append(resources, pairOf(strconv.Itoa(i)))
		}
		prepare := func() {
			b.flush(t)
			b.put(t, resources[0].lock, cell{"list", own, oldTTL})
			b.put(t, resources[1].fence, cell{"list", "7", oldKeep})
			b.put(t, resources[2].fence, text("nan", oldKeep))
			b.put(t, resources[3].fence, text(decimal(maxToken-1), oldKeep))
			b.put(t, resources[4].lock, text(foreign, -1))
		}
		shape := regexp.MustCompile(`^([re] \d+) -?\d+$`) // without the lease, which runs
		for _, fenced := range []bool{true, false} {
			var ops []operation
			for len(ops) < 200 {
				r, owner := resources[rand.N(len(resources))], owners[rand.N(len(owners))]
				s := decimal(seed + rand.Uint64N(50))
				switch rand.N(8) {
				case 0, 1, 2:
					ops = append(ops, r.acquire(owner, ttlMS, keepMS, s))
				case 3:
					if fenced {
						ops = append(ops, r.raise(owner, s))
					}
				case 4:
					ops = append(ops, r.extend(owner, ttlMS, keepMS, s))
				case 5:
					ops = append(ops, r.heal(owner, ttlMS, keepMS, s))
				case 6:
					ops = append(ops, r.release(owner))
				case 7:
					ops = append(ops, r.shorten(owner, soon, oldKeep, s))
				}
			}
			look := func() map[string]cell {
				cells := b.lookAll(t, b.keys(t))
				for key, c := range cells {
					for _, asked := range []int64{keepMS, oldKeep, oldTTL, ttlMS, soon} {
						if c.ttl > asked-slack && c.ttl <= asked {
							c.ttl = asked
						}
					}
					cells[key] = c
				}
				return cells
			}

			prepare()
			together := b.run(t, fenced, ops...)
			wantCells := look()
			prepare()
			kinds := map[string]bool{}
			for i, o := range ops {
				alone := b.run(t, fenced, o)[0]
				require.Equal(t, shape.ReplaceAllString(alone, "$1"), shape.ReplaceAllString(together[i], "$1"), "%d: %q", i, o.args)
				kinds[o.letter()+alone[:1]] = true
			}
			require.Equal(t, wantCells, look())
			require.Greater(t, len(kinds), 8, "the schedule has too little in it: %v", kinds)
		}
	})
}

// The script is known to servers by the name that the library computes.
func TestTheScriptsNameIsTheServers(t *testing.T) {
	onBackends(t, func(t *testing.T, b backend) {
		require.Equal(t, b.command(t, "SCRIPT", "LOAD", batchText), string(batchSHA))
	})
}

// What the library sends is what these tests send.
func TestRoundsSpeakTheBatchFormat(t *testing.T) {
	p := pairOf("r")
	for _, fenced := range []bool{true, false} {
		k := &Lock{key: p.lock, owner: own}
		if fenced {
			k.fence = p.fence
		}
		for _, c := range []struct {
			op      op
			shorter bool
			want    operation
		}{
			{opAcquire, false, p.acquire(own, ttlMS, keepMS, decimal(seed))},
			{opRaise, false, p.raise(own, decimal(seed))},
			{opExtend, false, p.extend(own, ttlMS, keepMS, decimal(seed))},
			{opExtend, true, p.shorten(own, ttlMS, keepMS, decimal(seed))},
			{opHeal, false, p.heal(own, ttlMS, keepMS, decimal(seed))},
			{opRelease, false, p.release(own)},
		} {
			op := c.op
			r := &round{op: op, lock: k, ttl: ttlMS, keep: keepMS, token: seed, shorter: c.shorter}
			var keys, args []string
			for _, key := range r.appendKeys(nil) {
				keys = append(keys, *key.(*string))
			}
			for _, arg := range r.appendArgs(nil, nil) {
				switch arg := arg.(type) {
				case *string:
					args = append(args, *arg)
				case *int64:
					args = append(args, strconv.FormatInt(*arg, 10))
				case *uint64:
					args = append(args, decimal(*arg))
				default:
					require.Fail(t, "an argument that is boxed", "%T", arg)
				}
			}
			wantKeys := []string{p.lock}
			if fenced && op != opRelease {
				wantKeys = append(wantKeys, p.fence)
			}
			require.Equal(t, wantKeys, keys, "%v", op)
			require.Equal(t, c.want.args, args, "%v", op)
			require.Equal(t, op == opAcquire || op == opHeal, op.grants(), "%v", op)
		}
	}
}

// From here on: what only a real server does.

// A holder can extend and release on an instance that is full; a new one gets no
// half of a lock there.
func TestAHolderCanExtendOnAFullInstance(t *testing.T) {
	b := connect(t, redistest.Start(t).Addr(), "")
	held, other, third := pairOf("held"), pairOf("other"), pairOf("third")
	require.Equal(t, []string{"g " + decimal(seed)}, b.run(t, true, held.acquire(own, ttlMS, oldKeep, decimal(seed))))
	b.command(t, "CONFIG", "SET", "maxmemory-policy", "noeviction")
	b.command(t, "CONFIG", "SET", "maxmemory", "1")

	line := b.run(t, true, other.acquire(foreign, ttlMS, keepMS, decimal(seed)))[0]
	require.Regexp(t, `^f OOM `, line)
	line = b.run(t, false, other.acquire(foreign, ttlMS, keepMS, decimal(seed)))[0]
	require.Regexp(t, `^f OOM `, line)
	line = b.run(t, true, other.heal(foreign, ttlMS, keepMS, decimal(seed)))[0]
	require.Regexp(t, `^f OOM `, line)
	require.Len(t, b.keys(t), 2)

	require.Regexp(t, "^e "+decimal(seed)+" ", b.run(t, true, held.extend(own, oldTTL, keepMS, decimal(seed)))[0])
	b.requireCell(t, text(own, oldTTL), held.lock)
	b.requireCell(t, text(decimal(seed), keepMS), held.fence)
	// One that would have to write the fence can't.
	for _, o := range []operation{held.extend(own, oldTTL+ttlMS, keepMS+ttlMS, decimal(seed+1)), held.extend(own, soon, oldKeep, decimal(seed+1)), held.shorten(own, soon, oldKeep, decimal(seed+1))} {
		require.Regexp(t, `^f OOM `, b.run(t, true, o)[0], "%q", o.args)
		b.requireCell(t, text(own, oldTTL), held.lock)
		b.requireCell(t, text(decimal(seed), keepMS), held.fence)
	}

	// The server looks at its memory only until a script's first write: what
	// follows an extend may be granted. But never a half.
	lines := b.run(t, true, other.acquire(foreign, ttlMS, keepMS, decimal(seed)), held.extend(own, oldTTL+ttlMS, keepMS, decimal(seed)),
		third.acquire(foreign, ttlMS, keepMS, decimal(seed)))
	require.Regexp(t, `^f OOM `, lines[0])
	require.Equal(t, []string{"g " + decimal(seed)}, grants(lines[1]))
	b.requireCell(t, none, other.lock)
	b.requireCell(t, none, other.fence)
	if parseAnswer(lines[2]).vote == granted {
		b.requireCell(t, text(foreign, ttlMS), third.lock)
		b.requireCell(t, text(decimal(seed), keepMS), third.fence)
	} else {
		b.requireCell(t, none, third.lock)
		b.requireCell(t, none, third.fence)
	}
	require.Equal(t, []string{"g 0"}, b.run(t, true, held.release(own)))
	b.requireCell(t, none, held.lock)
}

// A replica votes for nothing, also for what its master granted before: the key
// that it shows has been counted once.
func TestAReplicaNeverGrants(t *testing.T) {
	master := redistest.Start(t, "--repl-diskless-sync-delay", "0")
	host, port, err := net.SplitHostPort(master.Addr())
	require.NoError(t, err)
	m := connect(t, master.Addr(), "")
	r, free := pairOf("r"), pairOf("free")
	require.Equal(t, []string{"g " + decimal(seed)}, m.run(t, true, r.acquire(own, oldTTL, oldKeep, decimal(seed))))
	require.Equal(t, []string{"g 0"}, m.run(t, false, pairOf("unfenced").acquire(own, oldTTL, oldKeep, "0")))

	b := connect(t, redistest.Start(t, "--replicaof", host, port).Addr(), "")
	require.Eventually(t, func() bool { return b.Exists(t.Context(), r.lock, r.fence, "lock:unfenced").Val() == 3 }, 10*time.Second, 5*time.Millisecond)

	for name, o := range map[string]operation{
		"acquire, repeated":   r.acquire(own, ttlMS, keepMS, decimal(seed)), // what the master granted
		"acquire, taken":      r.acquire(foreign, ttlMS, keepMS, decimal(seed)),
		"acquire":             free.acquire(own, ttlMS, keepMS, decimal(seed)),
		"heal":                free.heal(own, ttlMS, keepMS, decimal(seed)),
		"raise":               r.raise(own, decimal(seed)),
		"extend":              r.extend(own, oldTTL+ttlMS, keepMS, decimal(seed)),
		"extend, other fence": r.extend(own, oldTTL+ttlMS, keepMS, decimal(seed+1)),
		"extend, no later":    r.extend(own, ttlMS, keepMS, decimal(seed)), // has nothing to write, and must all the same
		"shorten":             r.shorten(own, ttlMS, keepMS, decimal(seed)),
		"release":             r.release(own),
	} {
		t.Run(name, func(t *testing.T) {
			lines := b.run(t, true, free.release(foreign), o, free.release(foreign))
			require.Regexp(t, `^f READONLY `, lines[1], "%q", o.args)
			require.Equal(t, []string{"n", "n"}, []string{lines[0], lines[2]}, "the others of its batch")
		})
	}
	line := b.run(t, false, pairOf("unfenced").acquire(own, ttlMS, keepMS, "0"))[0]
	require.Regexp(t, `^f READONLY `, line)
	b.requireCell(t, text(own, oldTTL), r.lock)
	b.requireCell(t, text(decimal(seed), oldKeep), r.fence)
}

// allRights are the commands that the script and its client need.
var allRights = []string{"set", "get", "del", "pttl", "pexpire", "eval", "evalsha"}

// userWithout creates the user "u" with all rights to lock:* but those of missing,
// and returns a client of it.
func (b backend) userWithout(t *testing.T, addr string, missing ...string) backend {
	t.Helper()
	rules := []any{"ACL", "SETUSER", "u", "reset", "on", ">pw", "~lock:*"}
	for _, right := range allRights {
		if !slices.Contains(missing, right) {
			rules = append(rules, "+"+right)
		}
	}
	b.command(t, rules...)
	return connect(t, addr, "u")
}

func TestAUserOfFewRightsCanDoEverything(t *testing.T) {
	s := redistest.Start(t)
	admin := connect(t, s.Addr(), "")
	b := admin.userWithout(t, s.Addr())
	r := pairOf("r")
	for _, fenced := range []bool{true, false} {
		fence := "0"
		if fenced {
			fence = decimal(seed)
		}
		lines := b.run(t, fenced, r.acquire(own, ttlMS, keepMS, decimal(seed)), r.acquire(foreign, ttlMS, keepMS, decimal(seed)))
		require.Equal(t, "g "+fence, lines[0])
		require.Equal(t, refused, parseAnswer(lines[1]).vote)
		if fenced {
			require.Equal(t, []string{"g " + decimal(seed+1)}, b.run(t, true, r.raise(own, decimal(seed+1))))
		}
		token := decimal(seed + 2)
		require.Equal(t, []string{"g " + token, "g 0", "g " + token}, grants(b.run(t, fenced,
			r.extend(own, ttlMS, keepMS, token), r.release(own), r.heal(own, ttlMS, keepMS, token))...))
		admin.flush(t)
	}

	// And so can the library, the handshake of its client included.
	l, err := Open([]string{"redis://u:pw@" + s.Addr()}, WithKeyPrefix("lock:"), WithQuarantine(0))
	require.NoError(t, err)
	defer func() { require.NoError(t, l.Close()) }()
	k, err := l.TryAcquire(t.Context(), "r", 10*time.Second)
	require.NoError(t, err)
	_, err = l.TryAcquire(t.Context(), "r", 10*time.Second)
	require.ErrorIs(t, err, ErrTaken)
	require.NoError(t, k.Extend(t.Context(), 10*time.Second))
	require.NoError(t, k.Release(t.Context()))
	require.Equal(t, []string{r.fence}, admin.keys(t))
}

// denied is how servers say that a script's command is denied: 7.0 says ERR, later
// ones NOPERM.
const denied = `^f (NOPERM|ERR The user executing the script can't (run this command|access at least one of the keys)|ERR ACL failure in script)`

// Where a right is missing, the operation that needs it fails, and says why; its
// batch goes on, and no lock is left without its fence.
func TestAMissingRightFailsTheOperationAlone(t *testing.T) {
	s := redistest.Start(t)
	admin := connect(t, s.Addr(), "")
	r, other := pairOf("r"), pairOf("other")
	mine := world{text(own, oldTTL), text(decimal(seed), oldKeep)}
	less := world{text(own, oldTTL), text(decimal(seed-1), oldKeep)}
	theirs := world{text(foreign, oldTTL), text(decimal(seed), oldKeep)}
	free := world{none, none}
	gone := world{none, text(decimal(seed), oldKeep)}
	gone1 := world{none, text(decimal(seed-1), oldKeep)}

	acquire := r.acquire(own, ttlMS, keepMS, decimal(seed))
	raise := r.raise(own, decimal(seed))
	extend := r.extend(own, oldTTL+ttlMS, keepMS, decimal(seed))
	shorten := r.shorten(own, ttlMS, keepMS, decimal(seed))
	heal := r.heal(own, ttlMS, keepMS, decimal(seed))
	release := r.release(own)
	for _, c := range []struct {
		missing string
		before  world
		op      operation
		want    string
	}{
		{"set", free, acquire, "fails"},
		{"set", theirs, acquire, "fails"},
		{"set", mine, acquire, "fails"},
		{"set", less, raise, "fails"},
		{"set", mine, extend, "works"}, // writes no fence that is right
		{"set", less, extend, "fails"},
		{"set", gone, heal, "fails"},
		{"set", mine, release, "works"},

		{"get", free, acquire, "fails"},
		{"get", mine, raise, "fails"},
		{"get", mine, extend, "fails"},
		{"get", gone, heal, "fails"},
		{"get", mine, release, "fails"},

		{"del", free, acquire, "works"},
		{"del", less, raise, "works"},
		{"del", less, extend, "works"},
		{"del", gone, heal, "works"},
		{"del", mine, release, "fails"},
		{"del", theirs, release, "works"},

		{"pttl", free, acquire, "works"},
		{"pttl", mine, acquire, "works"},
		{"pttl", theirs, acquire, "fails"},
		{"pttl", less, raise, "works"},
		{"pttl", mine, extend, "either"},
		{"pttl", mine, shorten, "either"},
		{"pttl", free, heal, "either"},
		{"pttl", mine, release, "works"},

		{"pexpire", free, acquire, "works"},
		{"pexpire", less, raise, "works"},
		{"pexpire", mine, extend, "fails"},
		{"pexpire", less, extend, "fails"},
		{"pexpire", mine, shorten, "fails"},
		{"pexpire", free, heal, "fails"},
		{"pexpire", gone, heal, "fails"},
		{"pexpire", gone1, heal, "fails"},
		{"pexpire", mine, release, "works"},

		{"pexpire del", free, heal, "fails"}, // and it can't be undone
		{"pexpire del", gone, heal, "fails"},
		{"pexpire del", gone1, heal, "fails"},
		{"pexpire del", free, acquire, "works"},
	} {
		what := fmt.Sprintf("without %s: %s on %+v", c.missing, c.op.letter(), c.before)
		b := admin.userWithout(t, s.Addr(), strings.Fields(c.missing)...)
		admin.flush(t)
		admin.put(t, r.lock, c.before.lock)
		admin.put(t, r.fence, c.before.fence)

		line := b.run(t, true, other.release(own), c.op, other.release(own))[1] // whose others go on
		switch {
		case c.want == "works", c.want == "either" && line[0] == 'g':
			want, _ := c.before.after(c.op.letter(), true)
			requireLine(t, want, line, what)
		default:
			require.Regexp(t, denied, line, what)
			if c.missing != "pexpire del" { // undone, or never done
				require.Equal(t, c.before.lock.kind, admin.look(t, r.lock).kind, what)
			}
		}
		// No lock without a fence that counts.
		if admin.look(t, r.lock).kind != "none" {
			fence := admin.look(t, r.fence)
			n, fault := fence.counted()
			require.Empty(t, fault, what)
			require.NotZero(t, n, what)
			require.NotEqual(t, int64(-1), fence.ttl, what)
		}
	}
}

// A grant whose number can't be written is taken back in the same step.
func TestAFenceThatCannotBeWrittenUndoesTheLock(t *testing.T) {
	s := redistest.Start(t)
	admin := connect(t, s.Addr(), "")
	r := pairOf("r")
	// May write the lock key only; a selector of Redis 7 can say so.
	admin.command(t, "ACL", "SETUSER", "u", "reset", "on", ">pw", "~lock:*", "+get", "+del", "+pttl", "+pexpire", "+eval", "+evalsha", "(+set ~lock:r)")
	b := connect(t, s.Addr(), "u")
	for _, fence := range []cell{none, text("7", oldKeep), text(decimal(seed-1), oldKeep)} {
		for _, o := range []operation{r.acquire(own, ttlMS, keepMS, decimal(seed)), r.heal(own, ttlMS, keepMS, decimal(seed))} {
			admin.flush(t)
			admin.put(t, r.fence, fence)
			require.Regexp(t, denied, b.run(t, true, o)[0], "%s, %v", o.letter(), fence)
			admin.requireCell(t, none, r.lock)
			admin.requireCell(t, fence, r.fence)
		}
	}
	// The lock alone it may have.
	require.Equal(t, []string{"g 0"}, b.run(t, false, r.acquire(own, ttlMS, keepMS, "0")))
}

// Without the right to run scripts, or with one to other keys, nothing is done at
// all, and the caller reads why.
func TestWithoutTheRightToRunScriptsNothingIsDone(t *testing.T) {
	s := redistest.Start(t)
	admin := connect(t, s.Addr(), "")
	for _, missing := range []string{"eval", "evalsha", "eval evalsha"} {
		admin.userWithout(t, s.Addr(), strings.Fields(missing)...)
		l, err := Open([]string{"redis://u:pw@" + s.Addr()}, WithKeyPrefix("lock:"), WithInstanceTimeout(200*time.Millisecond), WithQuarantine(0))
		require.NoError(t, err)
		_, err = l.TryAcquire(t.Context(), "r", 10*time.Second)
		require.ErrorIs(t, err, ErrNoQuorum, missing)
		require.ErrorContains(t, err, "NOPERM", missing)
		require.NoError(t, l.Close())
		require.Empty(t, admin.keys(t), missing)
	}

	b := admin.userWithout(t, s.Addr())
	outside := pair{"other:r", "other:{other:r}:fence"}
	_, err := b.eval(t.Context(), true, pairOf("r").acquire(own, ttlMS, keepMS, decimal(seed)), outside.acquire(own, ttlMS, keepMS, decimal(seed)))
	require.ErrorContains(t, err, "NOPERM")
	require.Empty(t, admin.keys(t))
}

// Answers.

func TestAnswersAreReadToTheLetter(t *testing.T) {
	const max = "9007199254740991"
	for line, want := range map[string]answer{
		"g 0":                     {vote: granted},
		"g 1700000000000000":      {vote: granted, fence: 1_700_000_000_000_000},
		"g " + max:                {vote: granted, fence: maxToken - 1},
		"g 007":                   {vote: granted, fence: 7},
		"e 0 5":                   {vote: granted, lease: 5},
		"e " + max + " -1":        {vote: granted, fence: maxToken - 1, lease: -1},
		"r 0 5":                   {vote: refused, lease: 5, err: errForeign},
		"r 0 0":                   {vote: refused, err: errForeign},
		"r 1700000000000000 1000": {vote: refused, fence: 1_700_000_000_000_000, lease: 1000, err: errForeign},
		"r " + max + " -1":        {vote: refused, fence: maxToken - 1, lease: -1, err: errForeign},
		"m":                       {vote: granted, mute: true},
		"n":                       {vote: refused, lease: -1, err: errAbsent},
		"n m":                     {vote: refused, lease: -1, err: errAbsent, mute: true},
		"x":                       {vote: refused, lease: -1, err: errForeign},
		"f OOM command not allowed when used memory > 'maxmemory'.": {vote: failed, err: serverError("OOM command not allowed when used memory > 'maxmemory'.")},
		"t 1700000000000000": {vote: failed, fence: 1_700_000_000_000_000, err: errThin},
		"f ":                 {vote: failed, err: serverError("")},
	} {
		require.Equal(t, want, parseAnswer(line), "%q", line)
	}
}

// A refusal with a lease of any size is one: another client may have locked "for ever".
func TestALongLeaseIsARefusal(t *testing.T) {
	for _, lease := range []string{"9007199254740991", "9223370000000000000", "9223372036854774784"} {
		require.Equal(t, refused, parseAnswer("r 5 "+lease).vote, lease)
	}
}

func TestAnAnswerThatNobodyKnowsIsAFailure(t *testing.T) {
	for _, line := range []string{
		"", " ", "g", "g ", "g x", "g -1", "g +1", "g 1.5", "g 1e3", "g 0x10", "g nan", "g 5 ", "g  5", "g 5 6", "G 5", "gg 5", "g5",
		"g 9007199254740992", "g 18446744073709551615", "g 18446744073709551616", "g 99999999999999999999999",
		"e", "e 5", "e 5 ", "e x 5", "e 5 x", "e 5 6 7", "e -1 5", "e 5 1.5", "e 9007199254740992 5",
		"r", "r 5", "r 5 ", "r x 5", "r 5 x", "r 5 6 7", "r -1 5", "r 5 1.5", "r 5 1e3", "r 5 99999999999999999999",
		"m ", "m 1", "n ", "n x", "n m ", "n 5",
		"t", "t ", "t x", "t -1", "t 5 6", "t 9007199254740992",
		"y", "N", "X", "OK", "+OK", "-ERR", "\x00", "\xff", "q 5", "granted 5",
		strings.Repeat("x", 1<<20),
	} {
		a := parseAnswer(line)
		require.Equal(t, failed, a.vote, "%.40q", line)
		require.Error(t, a.err, "%.40q", line)
		require.Less(t, len(a.err.Error()), 500, "%.40q", line)
		require.NotContains(t, a.err.Error(), "\n")
		require.Zero(t, a.fence, "%.40q", line)
	}
}

// No number reaches the rest of the library that is no token, in a refusal neither:
// seeds follow it.
func TestAFenceBeyondAllTokensIsAFailure(t *testing.T) {
	for _, fence := range []string{"9007199254740992", "9223372036854775808", "18446744073709551615"} {
		for _, line := range []string{"g " + fence, "t " + fence, "r " + fence + " 1000"} {
			a := parseAnswer(line)
			require.Equal(t, failed, a.vote, line)
			require.Zero(t, a.fence, line)
		}
	}
}

func FuzzParseAnswer(f *testing.F) {
	for _, line := range []string{"", "g 5", "g 9007199254740991", "g 9007199254740992", "r 5 1000", "r 0 -1", "r 5", "t 5", "e 5 1000", "m", "n", "n m", "x", "f", "f OOM", "q", "g\n5", "r 5 \x00"} {
		f.Add(line)
	}
	f.Fuzz(func(t *testing.T, line string) {
		a := parseAnswer(line)
		require.Less(t, a.fence, uint64(maxToken))
		kind, _, _ := strings.Cut(line, " ")
		switch a.vote {
		case granted:
			require.Contains(t, []string{"e", "g", "m"}, kind)
			require.NoError(t, a.err)
			require.Equal(t, kind == "m", a.mute)
			if kind == "g" {
				require.Equal(t, "g "+decimal(a.fence), regexp.MustCompile(`^g 0+(\d)`).ReplaceAllString(line, "g $1"))
			}
		case refused:
			require.Contains(t, []string{"r", "n", "x"}, kind)
			require.Contains(t, []error{errForeign, errAbsent}, a.err)
			require.Equal(t, kind == "n", errors.Is(a.err, errAbsent))
			require.Equal(t, line == "n m", a.mute)
		case failed:
			require.Error(t, a.err)
			require.True(t, a.fence == 0 || kind == "t" && errors.Is(a.err, errThin))
		default:
			require.Fail(t, "no vote", "%v", a.vote)
		}
	})
}

func TestOperationsHaveNames(t *testing.T) {
	require.Equal(t, "acquire raise extend heal release", fmt.Sprint(opAcquire, opRaise, opExtend, opHeal, opRelease))
}

// What the script says of those that wait, as a Locker would have it.

func (b backend) waiting(t *testing.T, me string, ops ...operation) []string {
	t.Helper()
	var keys []string
	args := []any{"0", "p" + waitSuffix, batchNumber, me}
	for _, o := range ops {
		keys = append(keys, o.lock)
		for _, arg := range o.args {
			args = append(args, arg)
		}
	}
	reply, err := batchScript.Run(t.Context(), b, keys, args...).Text()
	require.NoError(t, err)
	return strings.Split(reply, "\n")[1:]
}

func (p pair) wait(owner string, since int64) operation {
	o := p.acquire(owner, ttlMS, keepMS, decimal(seed))
	o.args[0] = "w"
	o.args = append(o.args, strconv.FormatInt(since, 10))
	return o
}

func (p pair) peek(since string) operation { return operation{p, []string{"q", since}} }

func (p pair) tell(owner, tell string) operation { return operation{p, []string{"d", owner, tell}} }

func TestTheQueueIsInTheOrderOfWaitingAndBounded(t *testing.T) {
	b := connect(t, redistest.Start(t).Addr(), "")
	p := pairOf("r")
	since := int64(1_700_000_000_000_000)
	line := func(n int) string { return fmt.Sprintf("%d LOCKER%02d\n", since+int64(n), n) }
	stand := func(n int) string {
		lines := b.waiting(t, fmt.Sprintf("LOCKER%02d", n), p.wait(own+strconv.Itoa(n), since+int64(n)))
		return lines[0]
	}
	queue := func() string {
		s, _ := b.command(t, "GET", p.lock+waitSuffix).(string)
		return s
	}
	require.Equal(t, "g 0", stand(0), "who gets it does not wait")
	require.Empty(t, queue())
	require.Nil(t, b.command(t, "GET", "p"+waitSuffix))
	for _, n := range []int{3, 1, 2, 3, 5, 4} {
		require.Regexp(t, "^r 0 ", stand(n))
	}
	require.Equal(t, line(1)+line(2)+line(3)+line(4)+line(5), queue())
	require.Equal(t, "1", b.command(t, "GET", "p"+waitSuffix))
	for _, key := range []string{p.lock + waitSuffix, "p" + waitSuffix} {
		left, _ := b.command(t, "PTTL", key).(int64)
		require.InDelta(t, 2000, left, 1000)
	}
	for n := 99; n > 20; n-- {
		stand(n)
	}
	q := queue()
	require.Len(t, q, 64*26)
	require.True(t, strings.HasPrefix(q, line(1)+line(2)+line(3)+line(4)+line(5)+line(21)))
	require.True(t, strings.HasSuffix(q, line(79)))

	// What is no time, or no queue, changes nothing.
	b.waiting(t, "LOCKER00", p.peek("0"), p.wait("x", 12))
	require.Equal(t, q, queue())
	b.command(t, "SET", p.lock+waitSuffix, "foreign")
	stand(1)
	require.Equal(t, line(1), queue())
}

func TestAReleaseTellsTheFirstInTheQueue(t *testing.T) {
	b := connect(t, redistest.Start(t).Addr(), "")
	p := pairOf("r")
	since := strconv.FormatInt(1_700_000_000_000_000, 10)
	const holder = "HOLDERSLOCK"
	names := []string{"LOCKER-A", "LOCKER-B", "LOCKER-C", "LOCKER-D"}
	queue := func() (names string) {
		s, _ := b.command(t, "GET", p.lock+waitSuffix).(string)
		for i := 0; i < len(s); i += 26 {
			names += s[i+24 : i+25]
		}
		return names
	}
	for _, c := range []struct {
		name      string
		listening string // of those in the queue
		release   string
		answer    string
		messages  []string // who: what
		left      string
	}{
		{"wakes the first", "ABCD", "1", "g 1", []string{"A now"}, "BCD"},
		{"wakes the second later", "ABCD", "2", "g 1", []string{"A now", "B later"}, "BCD"},
		{"wakes nobody", "ABCD", "0", "g 0", nil, "ABCD"},
		{"passes over those that do not listen", "BD", "2", "g 1", []string{"B now"}, "CD"},
		{"finds nobody", "", "1", "g 0", nil, ""},
	} {
		t.Run(c.name, func(t *testing.T) {
			b.flush(t)
			require.Equal(t, []string{"g 0"}, b.waiting(t, "HOLDER--", p.acquire(holder, ttlMS, keepMS, decimal(seed))))
			for _, name := range names {
				require.Regexp(t, "^r 0 ", b.waiting(t, name, p.peek(since))[0])
			}
			// The holder's Locker had to wait, too; the lock is for others first.
			b.waiting(t, "HOLDER--", p.peek("1600000000000000"))
			channels := []string{"p" + waitSuffix + ":HOLDER--"}
			for _, who := range c.listening {
				channels = append(channels, "p"+waitSuffix+":LOCKER-"+string(who))
			}
			client := redis.NewClient(&redis.Options{Addr: b.Options().Addr})
			defer client.Close()
			sub := client.Subscribe(t.Context(), append(channels, "end")...)
			defer sub.Close()
			for range len(channels) + 1 {
				_, err := sub.Receive(t.Context())
				require.NoError(t, err)
			}
			require.Equal(t, []string{c.answer}, b.waiting(t, "HOLDER--", p.tell(holder, c.release)))
			b.command(t, "PUBLISH", "end", "")
			var messages []string
			for {
				m, err := sub.ReceiveMessage(t.Context())
				require.NoError(t, err)
				if m.Channel == "end" {
					break
				}
				kind, release, key := readMessage(m.Payload)
				require.Equal(t, holder[:8], release)
				require.Equal(t, p.lock, key)
				messages = append(messages, m.Channel[len(m.Channel)-1:]+" "+kind)
			}
			require.Equal(t, c.messages, messages)
			if c.release == "0" {
				require.Equal(t, "-"+c.left, queue())
			} else {
				require.Equal(t, c.left, queue())
			}
		})
	}
}

// Also who releases a lock that is gone would tell those that wait.
func TestAReleaseSaysThatNobodyMayBeTold(t *testing.T) {
	b := connect(t, redistest.Start(t).Addr(), "")
	p := pairOf("r")
	const holder = "HOLDERSLOCK"
	require.Equal(t, []string{"g 0"}, b.waiting(t, "HOLDER--", p.acquire(holder, ttlMS, keepMS, decimal(seed))))
	require.Regexp(t, "^r 0 ", b.waiting(t, "LOCKER-A", p.peek("1700000000000000"))[0])
	b.command(t, "ACL", "SETUSER", "default", "-publish")
	for _, want := range []struct{ tell, answer string }{{"1", "m"}, {"1", "n m"}, {"2", "n m"}, {"0", "n"}} {
		require.Equal(t, []string{want.answer}, b.waiting(t, "HOLDER--", p.tell(holder, want.tell)))
	}
	b.command(t, "ACL", "SETUSER", "default", "+publish")
	require.Equal(t, []string{"n"}, b.waiting(t, "HOLDER--", p.tell(holder, "1")))
}
