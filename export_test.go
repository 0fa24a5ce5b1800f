package redlock

// OneFlight has one batch out to an instance at a time, however far away it is: what
// is queued meanwhile stays queued, for tests of that.
func OneFlight() Option {
	return func(c *config) error {
		c.flights = 1
		return nil
	}
}
