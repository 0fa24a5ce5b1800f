package sim

import (
	"context"
	"fmt"
	"math"
	"net"
	"reflect"
	"runtime"
	"strconv"
	"strings"
	"time"
	"unsafe"

	"github.com/redis/go-redis/v9"

	"github.com/quorumlock/redlock"
)

// A client is a process: a Locker with clocks of its own, and its workers.
type client struct {
	w      *world
	id     int
	locker *redlock.Locker
}

func (w *world) newClient(id int) *client {
	c := &client{w: w, id: id}
	var endpoints []string
	for i := range w.Instances {
		endpoints = append(endpoints, address(i).String())
	}
	opts := []redlock.Option{
		seams(map[string]any{"now": c.now, "jitter": c.jitter, "yield": c.yield, "woken": c.woken, "prompt": true}),
		redlock.WithClientOptions(func(o *redis.Options) {
			o.ReadBufferSize, o.WriteBufferSize = 4<<10, 16<<10 // the script fits in
			o.Dialer = func(ctx context.Context, _, addr string) (net.Conn, error) {
				_, port, err := net.SplitHostPort(addr)
				if err != nil {
					return nil, err
				}
				i, err := strconv.Atoi(port)
				if err != nil {
					return nil, err
				}
				if subscribes() {
					return w.open(id, i-1), nil
				}
				return w.dial(ctx, id, i-1)
			}
		}),
	}
	if w.Quarantine > 0 {
		opts = append(opts, redlock.WithQuarantine(w.Quarantine))
	}
	if w.Eager {
		opts = append(opts, redlock.WithRetryDelay(time.Millisecond, 60*time.Millisecond))
	}
	if w.Unfenced {
		opts = append(opts, redlock.WithoutFencing())
	}
	l, err := redlock.Open(endpoints, opts...)
	if err != nil {
		panic("sim: " + err.Error())
	}
	c.locker = l
	return c
}

// holdOne acquires a lock of the client's own, which lives for longer than a close takes.
func (c *client) holdOne() *redlock.Lock {
	ttl := max(c.w.TTLs[0], 200*time.Millisecond)
	lock, err := c.locker.Acquire(context.Background(), fmt.Sprintf("own%d", c.id), ttl, redlock.WithMaxWait(time.Second))
	if err != nil {
		return nil
	}
	return lock
}

// subscribes reports whether it is called for a connection for subscriptions. Nothing
// else tells these apart.
func subscribes() bool {
	var pcs [32]uintptr
	frames := runtime.CallersFrames(pcs[:runtime.Callers(2, pcs[:])])
	for {
		frame, more := frames.Next()
		if strings.Contains(frame.Function, "go-redis/v9.(*PubSub)") {
			return true
		}
		if !more {
			return false
		}
	}
}

// now is the time on the client's clocks. Its monotonic clock is that of the timers, but
// for the time that the machine was asleep; so a client whose clock runs fast is one whose instances' clocks run slow. It wobbles
// by microseconds, slowly: two timers that were set at different moments for the end of
// one window would otherwise end at one instant.
func (c *client) now() time.Time {
	now := c.w.now()
	last := uint64(now / wobble)
	a, b := c.wobble(last), c.wobble(last+1)
	now += a + time.Duration(float64(b-a)*float64(now%wobble)/float64(wobble))
	wall, mono := now+c.w.Offsets[c.id], now
	for i := range c.w.Faults {
		f := &c.w.Faults[i]
		switch {
		case f.Client != c.id || now < f.From:
		case f.Kind == ClientJump:
			wall += f.Amount
		case f.Kind == Sleep:
			mono -= min(now, f.To) - f.From
		}
	}
	return instant(wall, mono)
}

// wobble is how long it takes until a clock is ahead by as much or as little as it can
// be.
const wobble = 200 * time.Microsecond

func (c *client) wobble(n uint64) time.Duration {
	return c.w.dice.of(aboutClock, uint64(c.id), n).between(0, 10*time.Microsecond)
}

// jumped returns when the wall clock last jumped between from and to; from if it did not.
func (c *client) jumped(from, to time.Duration) (at time.Duration) {
	at = from
	for _, f := range c.w.Faults {
		if f.Kind == ClientJump && f.Client == c.id && f.From <= to {
			at = max(at, f.From)
		}
	}
	return at
}

// jitter is what is random in the library. It depends on the instant, and not on how
// many have asked before.
func (c *client) jitter(d time.Duration) time.Duration {
	return c.w.dice.of(aboutJitter, uint64(c.id), uint64(c.w.now()), uint64(d)).between(0, d)
}

// setForward returns when the wall clock is first set forward, from then on: at the end of
// time if it never is.
func (c *client) setForward(from time.Duration) (at time.Duration) {
	at = math.MaxInt64
	for _, f := range c.w.Faults {
		if f.Kind == ClientJump && f.Client == c.id && f.Amount > 0 && f.From >= from {
			at = min(at, f.From)
		}
	}
	return at
}

// epoch has a monotonic clock, which a bubble's time has not.
var (
	epoch  = time.Now()
	toDay1 = firstDay.Sub(epoch.Round(0))
)

// instant returns the time at which the wall clock shows wall after firstDay, and the
// monotonic clock mono.
func instant(wall, mono time.Duration) time.Time {
	moved, t := epoch.Add(toDay1+wall), epoch.Add(mono)
	type fields struct { // of time.Time in Go 1.26: a flag, 33 bits of seconds and 30 of nanoseconds; the monotonic clock
		wall uint64
		ext  int64
		loc  *time.Location
	}
	(*fields)(unsafe.Pointer(&t)).wall = (*fields)(unsafe.Pointer(&moved)).wall
	return t
}

// yield lets everybody go on whom this instant has woken.
func (c *client) yield() { time.Sleep(lanes) }

// woken has a goroutine of the library go on in its lane.
func (c *client) woken(who any) {
	switch who := who.(type) {
	case context.Context: // of a caller; Close has one without a lane
		if lane, ok := who.Value(laneKey{}).(time.Duration); ok {
			c.w.keep(lane)
		}
	case int: // an instance, by its worker
		c.w.keep(workerLanes + time.Duration(who))
	case nil:
		c.w.keep(keeperLane)
	default:
		panic(fmt.Sprintf("sim: %T was woken", who))
	}
}

// laneKey is where the context of a worker has its lane.
type laneKey struct{}

// seams is the option that sets a Locker's clock, its jitter and how its workers yield.
//
// It writes unexported fields of the Locker's configuration. The other ways in would
// be there for every user of the library: an exported option, a variable that a
// package below both of them holds and that anybody in the program may set, or an
// Option whose type shows an internal package. Tests beside the library could set the
// fields, but then all of this would have to be there too. When a field is renamed,
// this panics at the first schedule.
func seams(values map[string]any) redlock.Option {
	option := reflect.TypeFor[redlock.Option]()
	made := reflect.MakeFunc(option, func(args []reflect.Value) []reflect.Value {
		for name, value := range values {
			f := args[0].Elem().FieldByName(name)
			reflect.NewAt(f.Type(), f.Addr().UnsafePointer()).Elem().Set(reflect.ValueOf(value))
		}
		return []reflect.Value{reflect.Zero(option.Out(0))}
	})
	return made.Interface().(redlock.Option)
}
