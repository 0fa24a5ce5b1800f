package redlock

import "time"

// OneFlight has one batch out to an instance at a time, however far away it is: what
// is queued meanwhile stays queued, for tests of that.
func OneFlight() Option {
	return func(c *config) error {
		c.flights = 1
		return nil
	}
}

// LongVotes makes every vote wait for as long as that of a long lock does. The race detector,
// beside other tests, makes a round trip take longer than the tenth of a short ttl: tests of
// other things would find no quorum then. Those of the time-out run without it, or set theirs.
func LongVotes() Option {
	if RaceDetector {
		return WithInstanceTimeout(time.Second)
	}
	return func(*config) error { return nil }
}
