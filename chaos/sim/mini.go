package sim

import (
	"bufio"
	"bytes"
	"time"

	"github.com/alicebob/miniredis/v2"
	miniserver "github.com/alicebob/miniredis/v2/server"
)

// A mini is the engine of the whole stack: a miniredis, which runs the real script. Its
// commands are run in place, without a connection, so that they take no time.
type mini struct {
	redis *miniredis.Miniredis
	peer  *miniserver.Peer
	out   bytes.Buffer
}

func newMini(publish func(topic, message string) int) *mini {
	m := &mini{redis: miniredis.NewMiniRedis()}
	c, err := m.redis.Dial() // this starts it, without a listener
	if err != nil {
		panic("sim: " + err.Error())
	}
	_ = c.Close()
	m.redis.SetTime(firstDay)
	m.redis.ClockTTL(true)
	m.redis.Server().SetPreHook(func(p *miniserver.Peer, cmd string, args ...string) bool {
		if cmd != "PUBLISH" {
			return false
		}
		p.WriteInt(publish(args[0], args[1]))
		return true
	})
	m.peer = miniserver.NewPeer(bufio.NewWriter(&m.out))
	return m
}

func (m *mini) close() { m.redis.Close() }

func (m *mini) do(args []string, clock time.Time) []byte {
	m.redis.SetTime(clock)
	m.out.Reset()
	m.redis.Server().Dispatch(m.peer, args)
	m.peer.Flush()
	return bytes.Clone(m.out.Bytes())
}

func (m *mini) holder(key string, clock time.Time) (string, time.Time) {
	m.redis.SetTime(clock)
	if !m.redis.Exists(key) {
		return "", clock
	}
	owner, err := m.redis.Get(key)
	if err != nil {
		panic("sim: " + err.Error())
	}
	return owner, clock.Add(m.redis.TTL(key))
}

func (m *mini) keys(clock time.Time) []string {
	m.redis.SetTime(clock)
	return m.redis.Keys()
}

func (m *mini) restart(kept bool, clock time.Time) {
	if !kept {
		m.redis.FlushAll()
	}
	m.do([]string{"SCRIPT", "FLUSH"}, clock)
}
