package faults

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/quorumlock/redlock/chaos/history"
	"github.com/quorumlock/redlock/internal/redistest"
)

// An instance is one of the quorum's servers, behind a proxy.
type instance struct {
	name   string
	server *redistest.Server
	clock  *redistest.Clock // the same server; nil: it has the machine's clock
	proxy  *redistest.Proxy

	// Where it has a replica: that, and the proxy through which it follows.
	replica *redistest.Server
	link    *redistest.Proxy
}

// An arena is all processes of a scenario.
type arena struct {
	dir       string
	instances []*instance
	data      *redistest.Server // the resources'
	clients   []*process

	mu     sync.Mutex
	faults []history.Fault
	hits   int // of which so many have hit something
}

// start starts everything. What it has started it ends again if it fails.
func start(ctx context.Context, s *scenario, c Config) (_ *arena, err error) {
	a := &arena{}
	if a.dir, err = os.MkdirTemp("", "redlock-faults-"); err != nil {
		return nil, err
	}
	defer func() {
		if err != nil {
			err = errors.Join(err, a.close())
		}
	}()
	if a.data, err = redistest.Launch(); err != nil {
		return nil, err
	}
	for i := range s.instances {
		in, err := startInstance(ctx, i, s, c.Port)
		if in != nil {
			a.instances = append(a.instances, in)
		}
		if err != nil {
			return a, err
		}
	}
	if s.arrange != nil {
		if err := s.arrange(ctx, a); err != nil {
			return a, err
		}
	}
	var endpoints []string
	for _, in := range a.instances {
		endpoints = append(endpoints, in.proxy.Addr())
	}
	for id := range c.Processes {
		p, err := startClient(clientConfig{
			ID: id, Endpoints: endpoints, Resources: a.data.Addr(), Each: s.each, Goroutines: c.Goroutines,
			TTL: s.ttl, Long: s.long, Think: s.think, Quarantine: s.quarantine, Seed: c.Seed,
		}, a.dir)
		if err != nil {
			return a, err
		}
		a.clients = append(a.clients, p)
	}
	return a, nil
}

func startInstance(ctx context.Context, i int, s *scenario, port int) (in *instance, err error) {
	in = &instance{name: fmt.Sprintf("instance %d", i)}
	switch {
	case s.clocks:
		if in.clock, err = redistest.LaunchWithClock(s.servers...); err == nil {
			in.server = in.clock.Server
		}
	case port > 0:
		in.server, err = redistest.LaunchOn(net.JoinHostPort("127.0.0.1", strconv.Itoa(port+i)), s.servers...)
	default:
		in.server, err = redistest.Launch(s.servers...)
	}
	if err == nil {
		in.proxy, err = redistest.LaunchProxy(in.server.Addr())
	}
	if err != nil || !s.replicas {
		return in, err
	}
	if in.link, err = redistest.LaunchProxy(in.server.Addr()); err != nil {
		return in, err
	}
	in.replica, err = redistest.Launch(append(slices.Clone(s.servers), follow(in.link)...)...)
	if err == nil {
		err = inSync(ctx, in.replica)
	}
	return in, err
}

// follow returns the arguments of a replica that follows what link leads to.
func follow(link *redistest.Proxy) []string {
	return []string{"--replicaof", "127.0.0.1 " + port(link.Addr())}
}

func port(addr string) string {
	_, p, _ := strings.Cut(addr, ":")
	return p
}

// syncPatience is how long a replica may take until it follows.
const syncPatience = 10 * time.Second

// inSync waits until the replica follows.
func inSync(ctx context.Context, replica *redistest.Server) error {
	for deadline := time.Now().Add(syncPatience); ; {
		if info(replica, "replication")["master_link_status"] == "up" {
			return nil
		}
		if time.Now().After(deadline) {
			return fmt.Errorf("the replica on %s does not follow within %v", replica.Addr(), syncPatience)
		}
		if err := sleep(ctx, 5*time.Millisecond); err != nil {
			return err
		}
	}
}

// close ends every process and removes every file; it may be called again.
func (a *arena) close() error {
	var errs []error
	for _, p := range a.clients {
		errs = append(errs, p.close())
	}
	for _, in := range a.instances {
		if in.proxy != nil {
			in.proxy.Close()
		}
		if in.link != nil {
			in.link.Close()
		}
		if in.server != nil {
			errs = append(errs, in.server.Close())
		}
		if in.replica != nil {
			errs = append(errs, in.replica.Close())
		}
	}
	if a.data != nil {
		errs = append(errs, a.data.Close())
	}
	return errors.Join(append(errs, os.RemoveAll(a.dir))...)
}

// working waits until the clients have worked on resources, from now on: no quarantine
// is in their way, and no majority out of reach.
func (a *arena) working(ctx context.Context) error {
	const enough = 200
	from := int64(-1)
	for deadline := time.Now().Add(workPatience); ; {
		reply, err := a.data.Do("LLEN", logKey)
		if err != nil {
			return err
		}
		n, _ := reply.(int64)
		if from < 0 {
			from = n
		}
		if n >= from+enough {
			return nil
		}
		for _, p := range a.clients {
			select {
			case <-p.Done():
				return p.explain(errors.New("it ended"))
			default:
			}
		}
		if time.Now().After(deadline) {
			return fmt.Errorf("the clients do not get to work within %v", workPatience)
		}
		if err := sleep(ctx, 5*time.Millisecond); err != nil {
			return err
		}
	}
}

const workPatience = 30 * time.Second

// record notes a fault.
func (a *arena) record(f history.Fault) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.faults = append(a.faults, f)
	if f.Hits != 0 {
		a.hits++
	}
}

// hit returns how many faults have hit something.
func (a *arena) hit() int {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.hits
}

// clean waits until no lock key is on any server, and returns those that are there
// when patience is over.
func (a *arena) clean(ctx context.Context, patience time.Duration) ([]history.Leftover, error) {
	for deadline := time.Now().Add(patience); ; {
		var left []history.Leftover
		for _, in := range a.instances {
			keys, err := lockKeys(in.server)
			if err != nil {
				return nil, err
			}
			for _, key := range keys {
				ttl, _ := in.server.Do("PTTL", key)
				if ms, _ := ttl.(int64); ms >= 0 { // else it is gone by now
					left = append(left, history.Leftover{Server: in.name, Key: key, Left: ms * int64(time.Millisecond)})
				}
			}
		}
		if len(left) == 0 || time.Now().After(deadline) {
			return left, nil
		}
		if err := sleep(ctx, 20*time.Millisecond); err != nil {
			return nil, err
		}
	}
}

func lockKeys(s *redistest.Server) ([]string, error) {
	reply, err := s.Do("KEYS", "*")
	if err != nil {
		return nil, err
	}
	var keys []string
	all, _ := reply.([]any)
	for _, k := range all {
		if key, _ := k.(string); isLockKey(key) {
			keys = append(keys, key)
		}
	}
	return keys, nil
}

// collect returns the history of the run.
func (a *arena) collect() (*history.History, error) {
	h := &history.History{}
	for _, p := range a.clients {
		if err := h.Load(p.log); err != nil {
			return nil, err
		}
	}
	if err := readLog(a.data, h); err != nil {
		return nil, err
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	h.Faults = a.faults
	for i, f := range h.Faults {
		if f.Hits == heldByTarget {
			h.Faults[i].Hits = locksHeld(h.Holds, f)
		}
	}
	return h, nil
}

// heldByTarget are the hits of a fault of a client: the locks that it held all the time.
const heldByTarget = -1

func locksHeld(holds []history.Hold, f history.Fault) int {
	n := 0
	for _, h := range holds {
		from, to, held := h.Held()
		if held && from < f.From && to > f.From && fmt.Sprintf("client %d", h.Client/perProcess) == f.Target {
			n++
		}
	}
	return n
}

// info asks for a section of INFO; what does not answer has nothing to tell.
func info(s *redistest.Server, section string) map[string]string {
	reply, _ := s.Do("INFO", section)
	text, _ := reply.(string)
	fields := map[string]string{}
	for line := range strings.Lines(text) {
		name, value, _ := strings.Cut(strings.TrimSpace(line), ":")
		fields[name] = value
	}
	return fields
}

// sleep returns early, with its error, when ctx ends.
func sleep(ctx context.Context, d time.Duration) error {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

// appendOnlyFile returns the path of the file to which the server appends.
func appendOnlyFile(s *redistest.Server) (string, error) {
	paths, err := filepath.Glob(filepath.Join(s.Dir(), "appendonlydir", "*.incr.aof"))
	if err == nil && len(paths) == 0 {
		err = fmt.Errorf("there is no append-only file in %s", s.Dir())
	}
	if err != nil {
		return "", err
	}
	return slices.Max(paths), nil
}
