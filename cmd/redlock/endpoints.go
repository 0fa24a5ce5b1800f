package main

import (
	"bufio"
	"context"
	"errors"
	"flag"
	"fmt"
	"io/fs"
	"os"
	"strings"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/quorumlock/redlock"
)

const endpointsVariable = "REDLOCK_ENDPOINTS"

// source is where the endpoints come from.
type source struct {
	flags []string
	file  string
}

// endpointFlags adds the flags that say where the instances are.
func endpointFlags(flags *flag.FlagSet) *source {
	s := &source{}
	flags.Func("e", "`endpoint` of an instance, once for each: a redis://, rediss:// or unix:// URL (or one of\n"+
		"valkey:// and valkeys://), or host:port.\n"+
		"Everybody on this machine sees it in the output of ps: where there is a password\n"+
		"in it, use the environment variable or the file. Without -e and --endpoints, the\n"+
		"endpoints are those of the environment variable "+endpointsVariable+", separated by\n"+
		"commas (a comma in a password is written as %2C)", func(text string) error {
		s.flags = append(s.flags, text)
		return nil // an error here would be printed with the text
	})
	flags.StringVar(&s.file, "endpoints", "", "a `file` of endpoints, one on each line; blank lines and lines that begin with # don't count")
	return s
}

// list returns the endpoints; none at all if none are named. Whether they are good
// is for redlock.Open to say: its errors show no password, and neither do those of
// list.
func (s *source) list() ([]string, error) {
	switch env := os.Getenv(endpointsVariable); {
	case s.flags != nil && s.file != "":
		return nil, errors.New("-e and --endpoints exclude each other")
	case s.file != "":
		return readEndpoints(s.file)
	case s.flags == nil && env != "":
		return strings.Split(env, ","), nil
	}
	return s.flags, nil
}

func readEndpoints(name string) (endpoints []string, err error) {
	file, err := os.Open(name)
	if err != nil {
		var at *fs.PathError // which has the name: that may be an endpoint
		if errors.As(err, &at) {
			err = at.Err
		}
		return nil, fmt.Errorf("the file of --endpoints: %w", err)
	}
	defer file.Close()
	lines := bufio.NewScanner(file)
	for lines.Scan() {
		if line := strings.TrimSpace(lines.Text()); line != "" && !strings.HasPrefix(line, "#") {
			endpoints = append(endpoints, line)
		}
	}
	if err := lines.Err(); err != nil {
		return nil, errors.New("the file of --endpoints can't be read") // a PathError again, or what is no text
	}
	if endpoints == nil {
		return nil, errors.New("the file of --endpoints has no endpoint")
	}
	return endpoints, nil
}

// A setting is what has to be the same for all clients of a resource.
type setting struct {
	*source
	prefix     string
	quarantine []redlock.Option // none: the default
}

// lockerFlags adds the flags of a command that opens a Locker. The quarantine is
// usually what the text says.
func lockerFlags(flags *flag.FlagSet, usually string) *setting {
	s := &setting{source: endpointFlags(flags)}
	prefixFlag(flags, &s.prefix)
	flags.Func("quarantine", "how long an instance that restarted does not count, a `duration`: where others use a larger\n"+
		"ttl, the largest and 2s; 0 for servers that never lose a write (default: "+usually+")", func(text string) error {
		var d duration
		if err := d.Set(text); err != nil {
			return err
		}
		s.quarantine = []redlock.Option{redlock.WithQuarantine(time.Duration(d))}
		return nil
	})
	return s
}

// A duration is the value of a flag.
type duration time.Duration

func (d *duration) String() string { return time.Duration(*d).String() }

// Set takes the text of the flag.
func (d *duration) Set(text string) error {
	v, err := time.ParseDuration(text)
	if err != nil {
		return errors.New("it is a duration like 10s or 1m30s")
	}
	*d = duration(v)
	return nil
}

func prefixFlag(flags *flag.FlagSet, prefix *string) {
	flags.StringVar(prefix, "prefix", "", "`text` before the name in every key, as WithKeyPrefix sets it")
}

// open opens a Locker on the endpoints.
func (s *setting) open(opts ...redlock.Option) (*redlock.Locker, error) {
	endpoints, err := s.named()
	if err != nil {
		return nil, err
	}
	opts = append(opts, redlock.WithKeyPrefix(s.prefix))
	return redlock.Open(endpoints, append(opts, s.quarantine...)...)
}

// named returns the endpoints; it is an error if there are none.
func (s *source) named() ([]string, error) {
	endpoints, err := s.list()
	if err == nil && len(endpoints) == 0 {
		err = errors.New("there are no endpoints: set " + endpointsVariable + ", or use --endpoints or -e")
	}
	return endpoints, err
}

// openClients returns a client of our own for each endpoint, to be closed by the
// caller: redlock.Open reads the endpoints and the prefix, and says what is wrong with
// them. It is an error, too, if no lock can have that name.
func openClients(endpoints []string, prefix, name string) ([]*redis.Client, error) {
	var clients []*redis.Client
	locker, err := redlock.Open(endpoints, redlock.WithKeyPrefix(prefix), redlock.WithClientOptions(func(o *redis.Options) {
		own := *o
		own.ReadTimeout, own.WriteTimeout = own.DialTimeout, own.DialTimeout
		clients = append(clients, redis.NewClient(&own))
	}))
	if err == nil {
		err = errors.Join(refusal(locker, name), locker.Close())
	}
	if err != nil {
		closeAll(clients)
		return nil, err
	}
	return clients, nil
}

// refusal returns what the library says of a name before it asks anybody.
func refusal(locker *redlock.Locker, name string) error {
	ended, end := context.WithCancel(context.Background())
	end()
	if _, err := locker.TryAcquire(ended, name, runTTL); !errors.Is(err, context.Canceled) {
		return err
	}
	return nil
}

func closeAll(clients []*redis.Client) {
	for _, c := range clients {
		_ = c.Close()
	}
}

// checkName refuses a NAME that is an endpoint in the wrong place: it would be
// printed, and there may be a password in it.
func checkName(name string) error {
	scheme, _, found := strings.Cut(strings.ToLower(name), "://")
	if found {
		switch scheme {
		case "redis", "rediss", "valkey", "valkeys", "unix":
			return errors.New("the NAME is an endpoint: -e comes before each of those")
		}
	}
	return nil
}
