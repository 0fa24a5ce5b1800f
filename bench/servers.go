package main

import (
	"context"
	"errors"
	"fmt"
	"regexp"
	"strings"
	"time"

	"github.com/quorumlock/redlock/internal/redistest"
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
	var errs []error
	for _, s := range ss {
		errs = append(errs, s.Close())
	}
	return errors.Join(errs...)
}

// flush empties every server, so that each cell starts with the same.
func (ss servers) flush() error {
	var errs []error
	for _, s := range ss {
		_, err := s.Do("FLUSHALL")
		errs = append(errs, err)
	}
	return errors.Join(errs...)
}

// keysLeft returns how many lock keys are on the servers once no more disappear: it waits up to limit for none.
// Fence keys are meant to stay and do not count.
func (ss servers) keysLeft(ctx context.Context, limit time.Duration) (int, error) {
	for deadline := time.Now().Add(limit); ; {
		n, err := ss.lockKeys()
		if err != nil || n == 0 || time.Now().After(deadline) {
			return n, err
		}
		if err := sleep(ctx, 20*time.Millisecond); err != nil {
			return n, err
		}
	}
}

func (ss servers) lockKeys() (int, error) {
	n := 0
	for _, s := range ss {
		reply, err := s.Do("KEYS", "*")
		if err != nil {
			return 0, err
		}
		keys, ok := reply.([]any)
		if !ok {
			return 0, fmt.Errorf("KEYS answered %T", reply)
		}
		for _, key := range keys {
			if !strings.HasSuffix(fmt.Sprint(key), ":fence") {
				n++
			}
		}
	}
	return n, nil
}

var versionLine = regexp.MustCompile(`redis_version:(\S+)`)

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
