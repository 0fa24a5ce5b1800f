package main

import (
	"fmt"
	"strconv"
)

// A workload says which resources the goroutines of a cell lock.
type workload struct {
	each   int  // of every goroutine, which locks them in turn; 0: a new one for every lock
	shared bool // all goroutines have the same
}

var (
	ownResources   = workload{each: 100} // a service's everyday: callers do not meet, and each comes back to its resources
	freshResources = workload{}
	oneResource    = workload{each: 1, shared: true}
)

// resources are those of one goroutine.
type resources struct {
	prefix string
	own    []string
	used   int
	buf    []byte
}

// resources returns those of each goroutine.
func (w workload) resources(goroutines int) []*resources {
	rs := make([]*resources, goroutines)
	for g := range rs {
		r := &resources{prefix: fmt.Sprintf("bench/%d/", g)}
		if w.shared {
			r.prefix = "bench/all/"
		}
		for i := range w.each {
			r.own = append(r.own, r.prefix+strconv.Itoa(i))
		}
		rs[g] = r
	}
	return rs
}

// next returns the resource to lock now. A new one costs one allocation, for every contender alike.
func (r *resources) next() string {
	i := r.used
	r.used++
	if len(r.own) > 0 {
		return r.own[i%len(r.own)]
	}
	r.buf = strconv.AppendInt(append(r.buf[:0], r.prefix...), int64(i), 10)
	return string(r.buf)
}

// distinct returns how many resources were locked.
func (w workload) distinct(rs []*resources) int {
	n, most := 0, 0
	for _, r := range rs {
		used := r.used
		if w.each > 0 {
			used = min(used, w.each)
		}
		n += used
		most = max(most, used)
	}
	if w.shared {
		return most
	}
	return n
}
