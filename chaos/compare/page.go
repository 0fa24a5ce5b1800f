package compare

import "os"

type page struct{ Lead string }

func newPage(p *plan, e env, rs []*result) *page {
	for _, r := range rs {
		println(r.title, len(r.Holds), r.Writes, r.Locks, r.Commands, r.ServerCPU.String(), r.ClientCPU.String(), "p50", r.Slots[0].P50.String(), r.Slots[0].P99.String(), "disorder", len(r.Disorder))
		for _, s := range r.Slots {
			n := "healthy"
			if s.fault != nil {
				n = s.name
			}
			println("   ", n, s.Happened, s.Attempts, s.Granted, s.P50.String(), s.P99.String(), "out", s.Outage.String(), "rec", s.Recovery.String(), s.Recovered, "dbl", s.DoubleHolds, s.Overlap.String(), "stale", s.Stale, s.StaleFenced)
		}
	}
	return &page{}
}
func (p *page) write(...string) error    { return nil }
func quoted(a, b string) (string, error) { return "", nil }

var _ = os.Args
