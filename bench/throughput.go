package main

import "context"

// callersApart measures callers that do not meet, at every size.
func callersApart(name string, load workload) func(p *plan) []trial {
	return func(p *plan) []trial {
		var trials []trial
		for _, n := range p.sizes {
			for _, g := range p.goroutines {
				for _, c := range p.contenders { // innermost, so that those who are compared run side by side
					if c.single && n > 1 {
						continue
					}
					trials = append(trials, trial{
						cells: []*cell{{key: key{Scenario: name, N: n, Load: g, Contender: c.name}, contender: c}},
						run: func(ctx context.Context, ss servers) ([]figures, error) {
							return p.apart(ctx, ss, c, n, g, load)
						},
					})
				}
			}
		}
		return trials
	}
}

func (p *plan) apart(ctx context.Context, ss servers, c contender, n, callers int, load workload) ([]figures, error) {
	s, rs := p.loaded(c, ss, n, callers, load)
	if err := s.instances.flush(); err != nil {
		return nil, err
	}
	empty, err := s.instances.work(nil)
	if err != nil {
		return nil, err
	}
	fs, err := p.measure(ctx, s, func(ctxs []context.Context, l locker) ([]figures, error) {
		f, err := p.steady(ctxs, l, s, rs)
		return []figures{f}, err
	})
	if err != nil {
		return nil, err
	}
	full, err := s.instances.work(nil)
	f := &fs[0]
	if f.FenceKeys >= enoughKeys {
		f.KeyBytes = full.since(empty).memory / float64(n*f.FenceKeys)
	}
	return fs, err
}

// enoughKeys is how many fence keys outweigh what else an instance keeps in memory.
const enoughKeys = 10_000
