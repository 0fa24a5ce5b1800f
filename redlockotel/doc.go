// Package redlockotel reports what locks do to OpenTelemetry: spans for acquire,
// hold and release, and the metrics of the table below.
//
//	tel, err := redlockotel.New()
//	...
//	locker, err := redlock.Open(endpoints, redlock.WithObserver(tel.Observer()))
//
// It uses the API of OpenTelemetry only; what becomes of spans and metrics is for the
// SDK that the program sets up. It works on the observer's goroutine of each Locker: an
// exporter that blocks or panics touches no lock. When it is too slow, events are
// dropped, and redlock.event.dropped counts them.
//
// # Metrics
//
// Durations are in seconds. Attributes are in brackets; redlock.class is on those
// that are about a resource, if [WithClass] tells it. The resource itself never is.
//
//	redlock.acquire.duration      from the call to its end [redlock.outcome]
//	redlock.acquire.rounds        that it took [redlock.outcome]
//	redlock.acquire.remaining     validity that was left when it was acquired
//	redlock.wait.duration         of calls that had to wait for their turn [redlock.outcome]
//	redlock.hold.duration         from the acquire to the call of Release [redlock.outcome]
//	redlock.hold.lease_used       share of the ttl that had gone by at the release since it was last set
//	redlock.hold.outlived         holds that outlived their lease: alert on it
//	redlock.hold.thin             holds that some instance has with a larger fence
//	redlock.lease.lost            leases that ended before their holder released them [redlock.reason]
//	redlock.extend.duration       extends; renewals are those of KeepAlive [redlock.outcome, redlock.renewal]
//	redlock.extend.remaining      validity that was left when an extend ended, without what it gained [redlock.renewal]
//	redlock.release.duration      releases that asked [redlock.outcome]
//	redlock.release.foreign       releases that found another owner where the lock had been granted
//	redlock.vote.duration         until an instance's vote was in [redlock.instance, redlock.op, redlock.vote]
//	redlock.held                  locks that are valid now
//	redlock.overdue               locks that are over now and not released
//	redlock.waiting               calls that wait now
//	redlock.instance.down         1 while an instance is known to be down [redlock.instance]
//	redlock.instance.quarantined  1 while it does not count after a restart [redlock.instance]
//	redlock.instance.cleanup      owners on its clean-up list [redlock.instance]
//	redlock.instance.changes      what happened to it [redlock.instance, redlock.change]
//	redlock.fence.accepted        writes that passed a guard [redlock.guard]
//	redlock.fence.stale           writes that a guard refused: damage that did not happen [redlock.guard]
//	redlock.fence.duplicates      executions that the application found to be duplicates [redlock.guard]
//	redlock.event.dropped         events that came too fast to be told
//
// # Spans
//
// redlock.acquire is a child of the caller's span and has an event for each of its last
// 32 rounds. redlock.hold goes from there to the call of Release, with an event for each
// extend; it is reported by that call, so that a lock that nobody releases has none.
// redlock.release follows. They carry the digest of the owner, which is in the logs of
// [redlock.SlogObserver] too, and the fencing token.
package redlockotel
