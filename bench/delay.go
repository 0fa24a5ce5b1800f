package main

import (
	"context"
	"errors"
	"time"

	"github.com/quorumlock/redlock/internal/redistest"
	"github.com/redis/go-redis/v9"
)

const (
	distant       = "acquire"
	distantWaiter = "hand-over, one waiter"
)

var distantLoads = []int{1, 64}

// delayed measures locks on instances that are a network away.
func delayed(p *plan) []trial {
	var trials []trial
	for _, g := range distantLoads {
		for _, c := range p.quorumLocks() {
			trials = append(trials, p.far(key{Scenario: "delay", Case: distant, N: usual, Load: g, Contender: c.name}, c,
				func(s setting, rs []*resources, ctxs []context.Context, l locker) (figures, error) {
					return p.steady(ctxs, l, s, rs)
				}))
		}
	}
	for _, c := range p.quorumLocks() {
		trials = append(trials, p.far(key{Scenario: "delay", Case: distantWaiter, N: usual, Load: 1, Contender: c.name}, c,
			func(_ setting, _ []*resources, ctxs []context.Context, l locker) (figures, error) {
				return relays(ctxs, l, p.duration), nil
			}))
	}
	return trials
}

// far returns a trial on the far side of proxies, with the round trip measured in it.
func (p *plan) far(k key, c contender, do func(setting, []*resources, []context.Context, locker) (figures, error)) trial {
	return trial{
		cells: []*cell{{key: k, contender: c}},
		run: func(ctx context.Context, ss servers) ([]figures, error) {
			callers := k.Load
			if k.Case == distantWaiter {
				callers++ // the first holder
			}
			s, rs := p.loaded(c, ss, k.N, callers, ownResources)
			if k.Case == distantWaiter {
				s.distinct = one
			}
			addrs, closeAll, err := lines(s.addrs, p.delay)
			if err != nil {
				return nil, err
			}
			defer closeAll()
			s.addrs = addrs
			return p.measure(ctx, s, func(ctxs []context.Context, l locker) ([]figures, error) {
				rtt, err := roundTrip(ctx, s.addrs)
				if err != nil {
					return nil, err
				}
				f, err := do(s, rs, ctxs, l)
				f.RoundTrip = rtt
				return []figures{f}, err
			})
		},
	}
}

// lines puts a proxy before each address; a round trip through it takes delay longer.
func lines(addrs []string, delay time.Duration) (far []string, closeAll func(), err error) {
	var proxies []*redistest.Proxy
	closeAll = func() {
		for _, p := range proxies {
			p.Close()
		}
	}
	for _, addr := range addrs {
		p, err := redistest.LaunchProxy(addr)
		if err != nil {
			closeAll()
			return nil, nil, err
		}
		p.Delay(delay / 2)
		proxies = append(proxies, p)
		far = append(far, p.Addr())
	}
	return far, closeAll, nil
}

// pings is how many PINGs to each instance make a round trip's p50.
const pings = 20

// roundTrip returns the p50 of a PING to the instances, asked one after the other on connections that are open.
func roundTrip(ctx context.Context, addrs []string) (p50 time.Duration, err error) {
	cs := clients(addrs, redis.Options{MaxRetries: -1})
	defer func() { err = errors.Join(err, closeAll(cs)) }()
	var times []time.Duration
	for _, c := range cs {
		for i := range pings + 1 {
			begin := time.Now()
			if err := c.Ping(ctx).Err(); err != nil {
				return 0, err
			}
			if i > 0 { // the first one connects
				times = append(times, time.Since(begin))
			}
		}
	}
	p50, _ = percentiles(times)
	return p50, nil
}
