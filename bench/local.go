package main

import "context"

// localWaiters measures callers in one process that want one resource over and over.
func localWaiters(p *plan) []trial {
	var trials []trial
	for _, waiters := range p.waiters {
		for _, c := range p.quorumLocks() {
			trials = append(trials, trial{
				cells: []*cell{{key: key{Scenario: "local", N: usual, Load: waiters, Contender: c.name}, contender: c}},
				run: func(ctx context.Context, ss servers) ([]figures, error) {
					s, rs := p.loaded(c, ss, usual, waiters, oneResource)
					return p.measure(ctx, s, func(ctxs []context.Context, l locker) ([]figures, error) {
						f, err := p.steady(ctxs, l, s, rs)
						return []figures{f}, err
					})
				},
			})
		}
	}
	return trials
}
