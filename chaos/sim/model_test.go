package sim

import (
	"fmt"
	"math/rand/v2"
	"os"
	"strconv"
	"strings"
	"testing"
	"time"

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

func nobody(string, string) int { return 0 }

// randomBatch returns the arguments of a batch on few resources, owners and tokens.
func randomBatch(r *rand.Rand, text string, most int) []string {
	fenced := r.IntN(4) > 0
	mark := pick(r, "", "{}:waiting")
	var keys, argv []string
	for range 1 + r.IntN(most) {
		resource := pick(r, "r0", "r1")
		owner := pick(r, "OWNERA-LONG-ENOUGH", "OWNERB-LONG-ENOUGH", "C")
		token := strconv.Itoa(1000 + r.IntN(6))
		ttl, keep := pick(r, "20005", "40005"), "70005"
		letter := pick(r, "a", "a", "a", "w", "r", "e", "e", "h", "d", "d")
		if !fenced && letter == "r" {
			letter = "e"
		}
		keys = append(keys, resource)
		if fenced && letter != "d" {
			keys = append(keys, "{"+resource+"}:fence")
		}
		argv = append(argv, letter, owner)
		switch letter {
		case "a", "w", "h":
			argv = append(argv, ttl, keep, token)
		case "e":
			argv = append(argv, ttl, keep, token, pick(r, "0", "1"))
		case "r":
			argv = append(argv, token)
		case "d":
			argv = append(argv, pick(r, "0", "3 SOMEBODY"))
		}
	}
	args := append([]string{"EVAL", text, strconv.Itoa(len(keys))}, keys...)
	return append(append(args, map[bool]string{true: "1", false: "0"}[fenced], mark, "7"), argv...)
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

// disturb makes a key vanish, or a fence unusable.
func disturb(r *rand.Rand, on ...setter) {
	key := pick(r, "r0", "r1", "{r0}:fence", "{r1}:fence")
	value := pick(r, "0x10", "1e3", "nan", "", "9007199254740991", "9007199254740992", "12345678901234567", "999", "1004")
	for _, s := range on {
		if strings.Contains(key, "fence") && value != "" {
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
	var a engine = newModel(nobody)
	b := newMini(nobody)
	defer b.close()
	clock := firstDay
	kinds := map[byte]int{}
	for i := range 2000 {
		// Never in the millisecond in which a key expires: there the two differ.
		clock = clock.Add(time.Duration(r.IntN(3)) * 5 * time.Second)
		if r.IntN(6) == 0 {
			disturb(r, a.(*model), b)
		}
		args := randomBatch(r, text, 4)
		want := b.do(args, clock)
		require.Equal(t, string(want), string(a.do(args, clock)), "batch %d: %q", i, args[2:])
		_, lines, _ := strings.Cut(bulkText(want), "\n")
		for line := range strings.Lines(lines) {
			kinds[line[0]]++
		}
		for _, key := range b.keys(clock) {
			owner, expiry := b.holder(key, clock)
			same, _ := a.holder(key, clock)
			require.Equal(t, owner, same, key)
			require.True(t, expiry.After(clock) || b.redis.TTL(key) == 0)
		}
		require.ElementsMatch(t, b.keys(clock), a.keys(clock))
	}
	require.Len(t, kinds, 8, "every answer but m: %v", kinds)
}

// The model answers as the script does in redis-server. What is left of an expiry
// differs by the time that the test takes.
func TestTheModelAnswersAsTheScriptInRedis(t *testing.T) {
	text := script(t)
	s := redistest.Start(t)
	r := rand.New(rand.NewPCG(*firstSeed, 8))
	m := newModel(nobody)
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
	}
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
