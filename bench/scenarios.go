package main

import (
	"fmt"
	"slices"
	"strings"
	"time"
)

// scenarios returns everything that can be measured.
func scenarios() []scenario {
	return []scenario{
		{
			name: "throughput", load: "callers", trials: callersApart("throughput", ownResources), columns: perLock,
			title: "Acquire and release, every caller its own 100 resources in turn",
		},
		{
			name: "fresh", load: "callers", trials: callersApart("fresh", freshResources), columns: append(slices.Clone(perLock), keyBytes),
			title: "Acquire and release, every lock a new resource",
		},
		{
			name: hung.name, load: "callers", trials: hung.trials, columns: perOutage,
			title: "One of three instances hung (SIGSTOP): the same Locker before, and from that moment on. " +
				"With its defaults redsync then takes ten seconds a lock and more: it gets one repetition, and none with -quick",
		},
		{
			name: killed.name, load: "callers", trials: killed.trials, columns: perOutage,
			title: "One of three instances killed (SIGKILL): the same Locker before, and from that moment on",
		},
		{
			name: "handover", load: "waiters", trials: handOvers, columns: perHandOver,
			title: "From a release until the next waiter of the process has the lock, each wanting it once",
		},
		{
			name: "local", load: "waiters", trials: localWaiters, columns: perWaiter,
			title: "Waiters in one process that want one resource over and over",
		},
		{
			name: "processes", load: "waiters", trials: acrossProcesses, columns: perProcess,
			title: "Waiters in many processes that want one resource over and over: from a release until another process has the lock",
		},
		{
			name: "renewals", load: "locks held", trials: renewals, columns: perRenewal,
			title: "Locks kept alive, each renewed at a third of its ttl",
		},
		{
			name: "delay", load: "callers", trials: delayed, columns: perDelay,
			title: "Instances a network away: proxies that delay each direction",
		},
		{
			name: "profile", load: "callers", trials: profiled, columns: perProfile,
			title: "Where the client's CPU time goes, in percent",
		},
	}
}

// pick returns those of all that the comma-separated list names, in all's order; an empty list names every one.
func pick[T any](all []T, list, what string, name func(T) string) ([]T, error) {
	if list == "" {
		return all, nil
	}
	known := names(all, name)
	wanted := strings.Split(list, ",")
	for _, w := range wanted {
		if !slices.Contains(known, w) {
			return nil, fmt.Errorf("no %s is called %q; there are %s", what, w, strings.Join(known, ", "))
		}
	}
	return slices.DeleteFunc(all, func(x T) bool { return !slices.Contains(wanted, name(x)) }), nil
}

func names[T any](all []T, name func(T) string) []string {
	var list []string
	for _, x := range all {
		list = append(list, name(x))
	}
	return list
}

func scenarioName(s scenario) string { return s.name }

// choose picks contenders.
func choose(all []contender, list string) ([]contender, error) {
	return pick(all, list, "contender", contenderName)
}

func contenderName(c contender) string { return c.name }

// A column is one figure in a scenario's table.
type column struct {
	head string
	text func(c *cell) string
}

var (
	p50     = column{"p50 µs", func(c *cell) string { return micros(c.Median.P50) }}
	p99     = column{"p99 µs", func(c *cell) string { return micros(c.Median.P99) }}
	rate    = column{"per second", func(c *cell) string { return digits(c.Median.PerSecond) }}
	allocs  = column{"allocs", func(c *cell) string { return digits(c.Median.Allocs) }}
	cpu     = column{"CPU µs", func(c *cell) string { return micros(c.Median.CPU) }}
	server  = column{"instance CPU µs", func(c *cell) string { return micros(c.Median.ServerCPU) }}
	asked   = column{"requests", func(c *cell) string { return digits(c.Median.Requests) }}
	ran     = column{"commands", func(c *cell) string { return digits(c.Median.Commands) }}
	fair    = column{"max / min", func(c *cell) string { return digits(c.Median.Fairness) }}
	errorsN = column{"errors", func(c *cell) string { return loud(c.Median.Errors, "ERRORS") }}
	left    = column{"keys left", func(c *cell) string { return loud(c.Median.KeysLeft, "LEFT") }}

	keyBytes = column{"bytes a fence key", func(c *cell) string { return orDash(c.Median.KeyBytes) }}
	routines = column{"goroutines", func(c *cell) string { return orDash(float64(c.Median.Goroutines)) }}
	network  = column{"round trip µs", func(c *cell) string { return micros(c.Median.RoundTrip) }}

	p50Trips        = column{"p50 in round trips", func(c *cell) string { return trips(c, c.Median.P50) }}
	p99Trips        = column{"p99 in round trips", func(c *cell) string { return trips(c, c.Median.P99) }}
	acquireP50Trips = column{"acquire p50 in round trips", func(c *cell) string { return trips(c, c.Median.AcquireP50) }}
	acquireP99Trips = column{"acquire p99 in round trips", func(c *cell) string { return trips(c, c.Median.AcquireP99) }}

	p50Ratio  = column{"p50 / redsync", func(c *cell) string { return orDash(c.Ratios.P50) }}
	rateRatio = column{"rate / redsync", func(c *cell) string { return orDash(c.Ratios.PerSecond) }}
	cpuRatio  = column{"CPU / redsync", func(c *cell) string { return orDash(c.Ratios.CPU) }}
	p50Plain  = column{"p50 / plain", func(c *cell) string { return orDash(c.Ratios.PlainP50) }}
)

var (
	perLock     = []column{p50, p99, rate, allocs, cpu, server, errorsN, left, p50Ratio, rateRatio, cpuRatio, p50Plain}
	perOutage   = []column{p50, p99, rate, routines, errorsN, left}
	perHandOver = []column{p50, p99, cpu, errorsN, left, p50Ratio, p50Plain}
	perWaiter   = []column{rate, cpu, server, asked, ran, fair, errorsN, left, rateRatio, cpuRatio}
	perProcess  = []column{p50, p99, rate, asked, ran, fair, errorsN, left, p50Ratio, p50Plain}
	perRenewal  = []column{rate, cpu, server, allocs, asked, errorsN, left, cpuRatio}
	perProfile  = []column{
		cpu,
		percent("system calls", func(s shares) float64 { return s.Kernel }),
		percent("scheduler, channels, timers", func(s shares) float64 { return s.Scheduler }),
		percent("memory", func(s shares) float64 { return s.Memory }),
		percent("client of Redis", func(s shares) float64 { return s.Redis }),
		percent("lock library and the rest", func(s shares) float64 { return s.Rest }),
	}
	perDelay = []column{network, acquireP50Trips, acquireP99Trips, p50Trips, p99Trips, rate, errorsN, left}
)

func percent(head string, of func(shares) float64) column {
	return column{head, func(c *cell) string { return fmt.Sprintf("%.0f", 100*of(c.Median.Shares)) }}
}

func trips(c *cell, d time.Duration) string { return orDash(ratio(d, c.Median.RoundTrip)) }
