package faults

import (
	"context"
	_ "embed"
	"encoding/json"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/quorumlock/redlock/chaos/history"
	"github.com/quorumlock/redlock/fence"
	"github.com/quorumlock/redlock/fence/redisfence"
	"github.com/quorumlock/redlock/internal/redistest"
)

//go:embed access.lua
var accessText string

// logKey is where the resources log what they applied.
const logKey = "log"

// resources are what the locks guard: values on a server of their own, which no fault
// befalls, half of them behind a guard that checks tokens.
type resources struct {
	client   *redis.Client
	guard    *redisfence.Guard
	fenced   *redisfence.Script
	plain    *redis.Script
	recorder *history.Recorder
}

func openResources(addr string, connections int, r *history.Recorder) (*resources, error) {
	client := redis.NewClient(&redis.Options{Addr: addr, MaxRetries: -1, PoolSize: connections})
	guard, err := redisfence.New(client)
	if err != nil {
		return nil, err
	}
	fenced, err := redisfence.NewScript(accessText)
	if err != nil {
		return nil, err
	}
	return &resources{client, guard, fenced, redis.NewScript(accessText), r}, nil
}

// access does what a says and returns the value before. What was applied is in the
// resources' own log; what was not, or perhaps was, is recorded here.
func (r *resources) access(a history.Access) (before uint64, err error) {
	a.Sent = time.Now().UnixNano()
	text, err := json.Marshal(a)
	if err != nil {
		return 0, err
	}
	set := "read"
	if a.Kind != history.Read {
		set = strconv.FormatUint(a.Value, 10)
	}
	ctx, keys := context.Background(), []string{"value:" + a.Resource, logKey}
	var cmd *redis.Cmd
	if a.Fenced {
		cmd = r.guard.Run(ctx, a.Resource, a.Token, r.fenced, keys, set, text)
	} else {
		cmd = r.plain.Run(ctx, r.client, keys, set, text)
	}
	if before, err = cmd.Uint64(); err == nil {
		return before, nil
	}
	a.Answered, a.Result = history.Open, history.Unknown
	if errors.Is(err, fence.ErrStale) {
		a.Answered, a.Result = time.Now().UnixNano(), history.Refused
	}
	r.recorder.Access(a)
	return 0, err
}

// readLog adds what the resources applied to h, and what they did not know of remains
// only where they have not applied it.
func readLog(server *redistest.Server, h *history.History) error {
	const most = 20_000
	type sent struct {
		client int
		at     int64
	}
	applied := map[sent]bool{}
	var log []history.Access
	seq := map[string]int64{}
	for from := 0; ; from += most {
		reply, err := server.Do("LRANGE", logKey, strconv.Itoa(from), strconv.Itoa(from+most-1))
		if err != nil {
			return err
		}
		lines, _ := reply.([]any)
		for _, l := range lines {
			text, _ := l.(string)
			a, err := parseAccess(text)
			if err != nil {
				return fmt.Errorf("the log of the resources: %q: %w", text, err)
			}
			seq[a.Resource]++
			a.Seq = seq[a.Resource]
			applied[sent{a.Client, a.Sent}] = true
			log = append(log, a)
		}
		if len(lines) < most {
			break
		}
	}
	for _, a := range h.Accesses {
		if !applied[sent{a.Client, a.Sent}] {
			log = append(log, a)
		}
	}
	h.Accesses = log
	return nil
}

// parseAccess reads a line of the log.
func parseAccess(line string) (history.Access, error) {
	var a history.Access
	micros, rest, _ := strings.Cut(line, " ")
	before, text, _ := strings.Cut(rest, " ")
	at, err := strconv.ParseInt(micros, 10, 64)
	if err != nil {
		return a, err
	}
	if err := json.Unmarshal([]byte(text), &a); err != nil {
		return a, err
	}
	a.Committed = at * 1000
	a.Answered, a.Result = a.Committed, history.OK
	if a.Kind == history.Read {
		a.Value, err = strconv.ParseUint(before, 10, 64)
	}
	return a, err
}
