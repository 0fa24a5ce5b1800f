package main

import (
	"context"
	"errors"
	"fmt"
	"regexp"
	"slices"
	"strconv"
	"sync"
	"time"

	"github.com/quorumlock/redlock/internal/redistest"
	"github.com/redis/go-redis/v9"
)

// servers are the redis-server processes of a run. The first n of them are the instances of a cell with N = n.
type servers []*redistest.Server

func launch(n int) (servers, error) {
	var ss servers
	for range n {
		s, err := redistest.Launch()
		if err != nil {
			return nil, errors.Join(fmt.Errorf("start a redis-server: %w", err), ss.close())
		}
		ss = append(ss, s)
	}
	return ss, nil
}

func (ss servers) close() error {
	return ss.each(func(_ int, s *redistest.Server) error { return s.Close() })
}

// flush empties every server, so that each cell starts with the same.
func (ss servers) flush() error {
	return ss.each(func(_ int, s *redistest.Server) error {
		_, err := s.Do("FLUSHALL")
		return err
	})
}

// each calls f for every server at once.
func (ss servers) each(f func(int, *redistest.Server) error) error {
	errs := make([]error, len(ss))
	var all sync.WaitGroup
	for i, s := range ss {
		all.Go(func() { errs[i] = f(i, s) })
	}
	all.Wait()
	return errors.Join(errs...)
}

// A census says which keys there are.
type census struct {
	locks   int           // lock keys, on all servers
	fences  int           // fence keys of different names
	longest time.Duration // the longest expiry of a fence key
	forever int           // fence keys without an expiry
}

// Both scripts take fence keys by their names: no resource of this module ends like one.
var (
	countLocks = redis.NewScript(`
local n = 0
for _, key in ipairs(redis.call('KEYS', '*')) do
  if string.sub(key, -6) ~= ':fence' and string.sub(key, -10) ~= '{}:waiting' then n = n + 1 end
end
return n`)
	listFences = redis.NewScript(`
local longest, forever, names = 0, 0, {}
for _, key in ipairs(redis.call('KEYS', '*:fence')) do
  local left = redis.call('PTTL', key)
  if left == -1 then forever = forever + 1 end
  if left > longest then longest = left end
  names[#names + 1] = key
end
return {longest, forever, names}`)
)

// count takes the census once no more lock keys disappear: it waits up to limit for none.
func (ss servers) count(ctx context.Context, limit time.Duration) (census, error) {
	var n census
	cs := clients(redistest.Addrs(ss), redis.Options{ReadTimeout: time.Minute, MaxRetries: -1}) // many keys take long
	defer func() { _ = closeAll(cs) }()                                                         // the census is what counts
	for deadline := time.Now().Add(limit); ; {
		n.locks = 0
		for _, c := range cs {
			locks, err := countLocks.Run(ctx, c, nil).Int()
			if err != nil {
				return n, fmt.Errorf("count the keys: %w", err)
			}
			n.locks += locks
		}
		if n.locks == 0 || time.Now().After(deadline) {
			break
		}
		if err := sleep(ctx, 20*time.Millisecond); err != nil {
			return n, err
		}
	}
	// An instance that is late may never have heard of a lock that was released meanwhile: the names are put together.
	names := make(map[any]struct{})
	for _, c := range cs {
		reply, err := listFences.Run(ctx, c, nil).Slice()
		if err != nil {
			return n, fmt.Errorf("list the fence keys: %w", err)
		}
		n.longest = max(n.longest, time.Duration(reply[0].(int64))*time.Millisecond)
		n.forever += int(reply[1].(int64))
		for _, name := range reply[2].([]any) {
			names[name] = struct{}{}
		}
	}
	n.fences = len(names)
	return n, nil
}

// work is what servers have done since they started, all together.
type work struct {
	requests float64 // commands that clients sent
	commands float64 // commands executed, those in scripts included
	cpu      time.Duration
	memory   float64 // bytes in use now
}

var (
	callsLine   = regexp.MustCompile(`(?m)^cmdstat_([^:]+):calls=(\d+),`)
	cpuLine     = regexp.MustCompile(`(?m)^used_cpu_(?:sys|user):([\d.]+)`)
	memoryLine  = regexp.MustCompile(`(?m)^used_memory:(\d+)`)
	versionLine = regexp.MustCompile(`redis_version:(\S+)`)
)

// work asks the servers what they have done. scripted are the commands that the client sends in scripts only: Redis
// counts a script's commands as if they had been sent. Our own INFO does not count.
func (ss servers) work(scripted []string) (work, error) {
	works := make([]work, len(ss))
	err := ss.each(func(i int, s *redistest.Server) error {
		reply, err := s.Do("INFO", "everything")
		if err != nil {
			return err
		}
		info := fmt.Sprint(reply)
		w := &works[i]
		for _, m := range callsLine.FindAllStringSubmatch(info, -1) {
			if m[1] == "info" {
				continue
			}
			w.commands += number(m[2])
			if !slices.Contains(scripted, m[1]) {
				w.requests += number(m[2])
			}
		}
		for _, m := range cpuLine.FindAllStringSubmatch(info, -1) {
			w.cpu += time.Duration(number(m[1]) * float64(time.Second))
		}
		if m := memoryLine.FindStringSubmatch(info); m != nil {
			w.memory = number(m[1])
		}
		return nil
	})
	var sum work
	for _, w := range works {
		sum = work{sum.requests + w.requests, sum.commands + w.commands, sum.cpu + w.cpu, sum.memory + w.memory}
	}
	return sum, err
}

// number parses what a regular expression has found to be a number.
func number(s string) float64 {
	x, _ := strconv.ParseFloat(s, 64)
	return x
}

func (w work) since(before work) work {
	return work{w.requests - before.requests, w.commands - before.commands, w.cpu - before.cpu, w.memory - before.memory}
}

// serve divides what n instances did among the locks.
func (f *figures) serve(w work, n int) {
	if f.Locks == 0 {
		return
	}
	each := float64(n * f.Locks)
	f.Requests, f.Commands = w.requests/each, w.commands/each
	f.ServerCPU = time.Duration(float64(w.cpu) / each)
}

// version returns what the first server calls itself.
func (ss servers) version() string {
	info, _ := ss[0].Do("INFO", "server")
	if m := versionLine.FindStringSubmatch(fmt.Sprint(info)); m != nil {
		return m[1]
	}
	return "unknown"
}

// sleep waits for d, or returns the reason why ctx ended before.
func sleep(ctx context.Context, d time.Duration) error {
	select {
	case <-ctx.Done():
		return context.Cause(ctx)
	case <-time.After(d):
		return nil
	}
}
