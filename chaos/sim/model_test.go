package sim

import (
	"fmt"
	"math/rand/v2"
	"os"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/quorumlock/redlock/internal/redistest"
)

// script is the text of lua/batch.lua.
func script(t *testing.T) string {
	t.Helper()
	text, err := os.ReadFile("../../lua/batch.lua")
	require.NoError(t, err)
	return string(text)
}

// The Lockers of random batches. Two of them listen.
var lockers = []string{"AAAAAAAA", "BBBBBBBB", "CCCCCCCC", "DDDDDDDD"}

const mark = "{}:waiting"

// An audience takes the messages, and counts who hears them.
type audience []string

func (a *audience) publish(topic, message string) int {
	*a = append(*a, topic+" "+message)
	if name := strings.TrimPrefix(topic, mark+":"); name == lockers[1] || name == lockers[3] {
		return 1
	}
	return 0
}

// heard returns the messages that somebody has heard since it was asked last.
func (a *audience) heard() []string {
	messages := slices.DeleteFunc(*a, func(m string) bool {
		return !strings.HasPrefix(m, mark+":"+lockers[1]) && !strings.HasPrefix(m, mark+":"+lockers[3])
	})
	*a = nil
	return messages
}

// randomBatch returns the arguments of a batch on few resources, owners and tokens.
func randomBatch(r *rand.Rand, text string, most int) []string {
	fenced := r.IntN(4) > 0
	mark := pick(r, "", mark, mark, mark)
	var keys, argv []string
	for range 1 + r.IntN(most) {
		resource := pick(r, "r0", "r1")
		owner := pick(r, "OWNERA-LONG-ENOUGH", "OWNERB-LONG-ENOUGH", "C")
		token := strconv.Itoa(1000 + r.IntN(6))
		ttl, keep := pick(r, "20005", "40005"), "70005"
		// Seldom as long as it has to be.
		since := pick(r, "", "17", "000000000000000") + strconv.Itoa(r.IntN(5))
		if r.IntN(8) > 0 {
			since = "176000000000000" + strconv.Itoa(r.IntN(5))
		}
		letter := pick(r, "a", "a", "a", "w", "w", "w", "q", "r", "e", "e", "h", "d", "d", "d")
		if !fenced && letter == "r" {
			letter = "e"
		}
		keys = append(keys, resource)
		if fenced && letter != "d" {
			keys = append(keys, "{"+resource+"}:fence")
		}
		argv = append(argv, letter)
		switch letter {
		case "a", "h":
			argv = append(argv, owner, ttl, keep, token)
		case "w":
			argv = append(argv, owner, ttl, keep, token, since)
		case "q":
			argv = append(argv, since)
		case "e":
			argv = append(argv, owner, ttl, keep, token, pick(r, "0", "1"))
		case "r":
			argv = append(argv, owner, token)
		case "d":
			argv = append(argv, owner, pick(r, "0", "1", "2"))
		}
	}
	args := append([]string{"EVAL", text, strconv.Itoa(len(keys))}, keys...)
	return append(append(args, map[bool]string{true: "1", false: "0"}[fenced], mark, "7", pick(r, lockers...)), argv...)
}

// A setter changes keys behind the script's back.
type setter interface {
	set(key, value string)
	remove(key string)
}

func (m *model) set(key, value string) { m.data[key] = entry{value: value} }
func (m *model) remove(key string)     { delete(m.data, key) }

func (m *mini) set(key, value string) {
	if err := m.redis.Set(key, value); err != nil {
		panic(err)
	}
}
func (m *mini) remove(key string) { m.redis.Del(key) }

// disturb makes a key vanish, a fence or a queue unusable, or a queue full.
func disturb(r *rand.Rand, on ...setter) {
	key := pick(r, "r0", "r1", "{r0}:fence", "{r1}:fence", "r0{}:waiting", "r1{}:waiting")
	value := pick(r, "0x10", "1e3", "nan", "", "9007199254740991", "9007199254740992", "12345678901234567", "999", "1004")
	if full := strings.Repeat("1760000000000002 XXXXXXXX\n", 64); strings.Contains(key, "waiting") && r.IntN(3) > 0 {
		value = full
	}
	for _, s := range on {
		if strings.Contains(key, "}") && value != "" {
			s.set(key, value)
		} else {
			s.remove(key)
		}
	}
}

// The model answers as the script does in miniredis, also when keys expire.
func TestTheModelAnswersAsTheScriptInMiniredis(t *testing.T) {
	text := script(t)
	r := rand.New(rand.NewPCG(*firstSeed, 7))
	var toldA, toldB audience
	var a engine = newModel(toldA.publish)
	b := newMini(toldB.publish)
	defer b.close()
	clock := firstDay
	kinds := map[string]int{}
	for i := range 4000 {
		// Never in the millisecond in which a key expires: there the two differ.
		clock = clock.Add(pick(r, 0, 0, 0, 3*time.Millisecond, 5*time.Second, 10*time.Second))
		if r.IntN(6) == 0 {
			disturb(r, a.(*model), b)
		}
		args := randomBatch(r, text, 4)
		want := b.do(args, clock)
		require.Equal(t, string(want), string(a.do(args, clock)), "batch %d: %q", i, args[2:])
		_, lines, _ := strings.Cut(bulkText(want), "\n")
		for line := range strings.Lines(lines) {
			kinds[line[:1]]++
		}
		require.Equal(t, toldB, toldA, "batch %d: %q", i, args[2:])
		for _, m := range toldB {
			kinds[strings.Fields(m)[1]]++
		}
		toldA, toldB = nil, nil
		for _, key := range b.keys(clock) {
			owner, expiry := b.holder(key, clock)
			same, _ := a.holder(key, clock)
			require.Equal(t, owner, same, key)
			require.True(t, expiry.After(clock) || b.redis.TTL(key) == 0)
		}
		require.ElementsMatch(t, b.keys(clock), a.keys(clock))
	}
	require.Len(t, kinds, 9, "every answer but m, and both messages: %v", kinds)
}

// The model answers as the script does in redis-server. What is left of an expiry
// differs by the time that the test takes.
func TestTheModelAnswersAsTheScriptInRedis(t *testing.T) {
	text := script(t)
	s := redistest.Start(t)
	r := rand.New(rand.NewPCG(*firstSeed, 8))
	var told audience
	m := newModel(told.publish)
	client := redis.NewClient(&redis.Options{Addr: s.Addr()})
	defer client.Close()
	ear := client.Subscribe(t.Context(), mark+":"+lockers[1], mark+":"+lockers[3])
	defer ear.Close()
	for range 2 {
		_, err := ear.Receive(t.Context())
		require.NoError(t, err)
	}
	heard := 0
	begin := time.Now()
	for i := range 200 {
		if r.IntN(2) == 0 {
			disturb(r, m, real{t, s})
		}
		args := randomBatch(r, text, 40)
		reply, err := s.Do(args...)
		require.NoError(t, err)
		got := bulkText(m.do(args, firstDay.Add(time.Since(begin))))
		require.Equal(t, withoutLeft(fmt.Sprint(reply)), withoutLeft(got), "batch %d: %q", i, args[2:])
		for _, want := range told.heard() {
			m, err := ear.ReceiveMessage(t.Context())
			require.NoError(t, err)
			require.Equal(t, want, m.Channel+" "+m.Payload, "batch %d: %q", i, args[2:])
			heard++
		}
	}
	require.Greater(t, heard, 10)
	require.Less(t, time.Since(begin), 20*time.Second, "keys have begun to expire")
}

// withoutLeft takes off what is left of expiries: the third word of r and e.
func withoutLeft(answers string) string {
	lines := strings.Split(answers, "\n")
	for i, l := range lines {
		if words := strings.Fields(l); len(words) == 3 && (words[0] == "r" || words[0] == "e") && words[2] != "-1" {
			lines[i] = words[0] + " " + words[1]
		}
	}
	return strings.Join(lines, "\n")
}

// real is a redis-server.
type real struct {
	t *testing.T
	s *redistest.Server
}

func (r real) set(key, value string) { r.do("SET", key, value) }
func (r real) remove(key string)     { r.do("DEL", key) }

func (r real) do(args ...string) {
	r.t.Helper()
	_, err := r.s.Do(args...)
	require.NoError(r.t, err)
}
