package main

import (
	"bytes"
	"context"
	"runtime/pprof"
	"strings"

	"github.com/google/pprof/profile"
)

// shares are the parts of the client's CPU time, 1 together.
type shares struct {
	Kernel    float64 `json:"system_calls"`
	Scheduler float64 `json:"scheduler"` // and channels, timers, locks
	Memory    float64 `json:"memory"`    // allocation and garbage collection
	Redis     float64 `json:"redis_client"`
	Rest      float64 `json:"rest"` // the lock library, for one
}

// profiled measures where the client's time goes, with few callers and with many.
func profiled(p *plan) []trial {
	var trials []trial
	for _, g := range []int{1, 64} {
		for _, c := range p.quorumLocks() {
			trials = append(trials, trial{
				cells: []*cell{{key: key{Scenario: "profile", N: usual, Load: g, Contender: c.name}, contender: c}},
				run: func(ctx context.Context, ss servers) ([]figures, error) {
					s, rs := p.loaded(c, ss, usual, g, ownResources)
					return p.measure(ctx, s, func(ctxs []context.Context, l locker) ([]figures, error) {
						var samples bytes.Buffer
						if err := pprof.StartCPUProfile(&samples); err != nil {
							return nil, err
						}
						f, err := p.steady(ctxs, l, s, rs)
						pprof.StopCPUProfile()
						if err != nil {
							return nil, err
						}
						taken, err := profile.Parse(&samples)
						if err != nil {
							return nil, err
						}
						f.Shares = sharesOf(taken)
						return []figures{f}, nil
					})
				},
			})
		}
	}
	return trials
}

// sharesOf divides the samples of a profile.
func sharesOf(p *profile.Profile) shares {
	var s shares
	total := 0.0
	for _, sample := range p.Sample {
		n := float64(sample.Value[0])
		*s.part(sample) += n
		total += n
	}
	for _, part := range []*float64{&s.Kernel, &s.Scheduler, &s.Memory, &s.Redis, &s.Rest} {
		if total > 0 {
			*part /= total
		}
	}
	return s
}

// part returns what a sample belongs to: the innermost of its functions that tells.
func (s *shares) part(sample *profile.Sample) *float64 {
	for _, at := range sample.Location { // from the innermost
		for _, line := range at.Line {
			if line.Function == nil {
				continue
			}
			name := line.Function.Name
			for _, c := range []struct {
				part     *float64
				prefixes []string
			}{
				{&s.Kernel, kernelFuncs}, {&s.Memory, memoryFuncs}, {&s.Scheduler, schedulerFuncs}, {&s.Redis, redisFuncs}, {&s.Rest, restFuncs},
			} {
				for _, prefix := range c.prefixes {
					if strings.HasPrefix(name, prefix) {
						return c.part
					}
				}
			}
		}
	}
	return &s.Rest
}

var (
	kernelFuncs = []string{"internal/runtime/syscall", "syscall.", "runtime.futex", "runtime.epoll", "runtime.netpoll", "runtime.usleep", "runtime.vdso", "runtime.write"}
	memoryFuncs = []string{"runtime.malloc", "runtime.newobject", "runtime.gc", "runtime.bg", "runtime.sweep", "runtime.(*mheap)", "runtime.(*mcache)", "runtime.scan", "runtime.growslice", "runtime.wbBuf"}

	schedulerFuncs = []string{
		"runtime.schedule", "runtime.findRunnable", "runtime.mcall", "runtime.park", "runtime.gopark", "runtime.gosched", "runtime.Gosched", "runtime.ready", "runtime.goready",
		"runtime.selectgo", "runtime.chan", "runtime.send", "runtime.recv", "runtime.mstart", "runtime.mPark", "runtime.wakep", "runtime.startm", "runtime.newproc", "runtime.goexit0",
		"runtime.(*timer", "runtime.time", "time.", "sync.", "internal/sync.", "runtime.sem", "runtime.lock", "runtime.unlock",
	}
	redisFuncs = []string{"github.com/redis/", "github.com/go-redsync/redsync/v4/redis", "internal/poll.", "net.", "bufio."}
	restFuncs  = []string{"github.com/", "main."}
)
