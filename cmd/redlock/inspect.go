package main

import (
	"cmp"
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"slices"
	"strconv"
	"strings"
	"sync"
	"text/tabwriter"
	"time"

	"github.com/quorumlock/redlock"
	"github.com/redis/go-redis/v9"
)

const inspectUsage = `Usage: redlock inspect [flags] NAME

Says who holds the lock of NAME on which instance, for how long, and at what its
fence stands. It only reads, with GET and PTTL. The owner is shown as a digest: who
knows the owner can release the lock.

  held     one owner has it on a majority of the instances
  free     a majority has no owner: the next one who asks gets it
  split    the instances answer, and neither is the case: nobody holds it
  unknown  too few instances answer to tell

Exit codes: 0; 69 if it is unknown; 64 if a flag, an endpoint or the name is wrong.

Examples:

  redlock inspect nightly-backup
  redlock inspect --json nightly-backup | jq -r .verdict
`

// An inspection is what is known of a lock.
type inspection struct {
	Name      string     `json:"name"`
	Verdict   string     `json:"verdict"` // "held", "free", "split" or "unknown"
	Quorum    int        `json:"quorum"`
	Owner     string     `json:"owner,omitempty"`   // a digest of whom a majority has
	LeftMS    int64      `json:"left_ms,omitempty"` // until that is no majority any more; -1: it does not end
	Token     uint64     `json:"fencing_token,omitempty"`
	Instances []*holding `json:"instances"`
}

// A holding is what one instance says.
type holding struct {
	Instance string `json:"instance"`
	State    string `json:"state"`             // "held", "free" or "failed"
	Owner    string `json:"owner,omitempty"`   // a digest
	LeftMS   int64  `json:"left_ms,omitempty"` // -1: it does not end
	Fence    uint64 `json:"fence,omitempty"`
	Error    string `json:"error,omitempty"`
}

const (
	stateHeld    = "held"
	stateFree    = "free"
	stateSplit   = "split"
	stateUnknown = "unknown"
	stateFailed  = "failed"
	forEver      = -1
)

// inspect prints what the instances know of a lock.
func inspect(flags *flag.FlagSet) action {
	s := endpointFlags(flags)
	var prefix string
	prefixFlag(flags, &prefix)
	asJSON := jsonFlag(flags)
	return func(ctx context.Context, operands []string, stdout, stderr io.Writer) int {
		name := operands[0]
		endpoints, err := s.named()
		if err == nil {
			err = checkName(name)
		}
		var clients []*redis.Client
		if err == nil {
			clients, err = openClients(endpoints, prefix, name)
		}
		if err != nil {
			fmt.Fprintln(stderr, "redlock inspect:", printable(strings.ReplaceAll(err.Error(), "redlock: ", "")))
			return exitUsage
		}
		defer closeAll(clients)
		i := look(ctx, clients, prefix, name)
		switch {
		case ctx.Err() != nil:
			fmt.Fprintln(stderr, "redlock inspect: interrupted")
			return interrupted(ctx)
		case *asJSON:
			printJSON(stdout, i)
		default:
			i.print(stdout)
		}
		if i.Verdict == stateUnknown {
			return exitUnavailable
		}
		return exitOK
	}
}

// look asks all instances at once.
func look(ctx context.Context, clients []*redis.Client, prefix, name string) *inspection {
	i := &inspection{Name: name, Quorum: len(clients)/2 + 1, Instances: make([]*holding, len(clients))}
	var wg sync.WaitGroup
	for n, c := range clients {
		wg.Go(func() { i.Instances[n] = ask(ctx, c, prefix+name, fenceKey(prefix, name)) })
	}
	wg.Wait()
	i.judge()
	return i
}

func ask(ctx context.Context, c *redis.Client, key, fence string) *holding {
	h := &holding{Instance: c.Options().Addr, State: stateFree}
	var owner, token *redis.StringCmd
	var left *redis.Cmd // with PTTL, as -1 and -2 are no durations
	_, err := c.Pipelined(ctx, func(p redis.Pipeliner) error {
		owner, left, token = p.Get(ctx, key), p.Do(ctx, "PTTL", key), p.Get(ctx, fence)
		return nil
	})
	if err != nil && !errors.Is(err, redis.Nil) {
		h.State, h.Error = stateFailed, printable(err.Error())
		return h
	}
	h.Fence, _ = strconv.ParseUint(token.Val(), 10, 64)
	// It may have ended between the two questions.
	if ms, _ := left.Int64(); owner.Err() == nil && (ms > 0 || ms == forEver) {
		h.State, h.Owner, h.LeftMS = stateHeld, redlock.OwnerDigest(owner.Val()), ms
	}
	return h
}

// fenceKey returns where the instances keep the fence of a lock: see docs/fencing.md.
func fenceKey(prefix, name string) string {
	key := prefix + name
	if _, rest, found := strings.Cut(key, "{"); found && strings.Index(rest, "}") > 0 {
		return key + "::fence" // in the slot of its hash tag
	}
	return prefix + "{" + key + "}:fence"
}

// judge says who holds the lock, if anybody does.
func (i *inspection) judge() {
	free, silent := 0, 0
	owners := map[string][]*holding{}
	for _, h := range i.Instances {
		switch h.State {
		case stateFree:
			free++
		case stateFailed:
			silent++
		default:
			owners[h.Owner] = append(owners[h.Owner], h)
		}
	}
	most := 0 // what one owner may have
	for owner, has := range owners {
		most = max(most, len(has)+silent)
		if len(has) < i.Quorum {
			continue
		}
		// From the longest on: with the one that makes the majority it ends.
		slices.SortFunc(has, func(a, b *holding) int { return cmp.Compare(uint64(b.LeftMS), uint64(a.LeftMS)) })
		i.Verdict, i.Owner, i.LeftMS = stateHeld, owner, has[i.Quorum-1].LeftMS
		fences := map[uint64]int{}
		for _, h := range has {
			if fences[h.Fence]++; fences[h.Fence] >= i.Quorum {
				i.Token = h.Fence
			}
		}
		return
	}
	switch {
	case free >= i.Quorum:
		i.Verdict = stateFree
	case max(most, free+silent, silent) < i.Quorum:
		i.Verdict = stateSplit
	default:
		i.Verdict = stateUnknown
	}
}

func (i *inspection) print(w io.Writer) {
	table := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
	fmt.Fprintln(table, "INSTANCE\tSTATE\tOWNER\tLEFT\tFENCE")
	for _, h := range i.Instances {
		if h.State == stateFailed {
			fmt.Fprintf(table, "%s\t%s\t%s\n", h.Instance, h.State, h.Error)
			continue
		}
		left := ""
		if h.LeftMS != 0 {
			left = leftText(h.LeftMS)
		}
		fence := ""
		if h.Fence != 0 {
			fence = strconv.FormatUint(h.Fence, 10)
		}
		fmt.Fprintf(table, "%s\t%s\t%s\t%s\t%s\n", h.Instance, h.State, cmp.Or(h.Owner, "-"), cmp.Or(left, "-"), cmp.Or(fence, "-"))
	}
	table.Flush()
	fmt.Fprintf(w, "\n%s\n", i.sentence())
}

func leftText(ms int64) string {
	if ms == forEver {
		return "no end"
	}
	return (time.Duration(ms) * time.Millisecond).String()
}

// sentence says the verdict.
func (i *inspection) sentence() string {
	n := len(i.Instances)
	answered, has := n, 0
	for _, h := range i.Instances {
		switch {
		case h.State == stateFailed:
			answered--
		case h.State == stateHeld && (i.Owner == "" || h.Owner == i.Owner):
			has++
		}
	}
	switch i.Verdict {
	case stateHeld:
		text := fmt.Sprintf("Held by %s, on %d of %d instances, for %s", i.Owner, has, n, leftText(i.LeftMS))
		if i.LeftMS != forEver {
			text += " more unless it is renewed"
		}
		if i.Token != 0 {
			text += fmt.Sprintf(", with fencing token %d", i.Token)
		}
		return text + "."
	case stateFree:
		if has > 0 {
			return fmt.Sprintf("Free: %d of %d instances have an owner, which is no majority.", has, n)
		}
		return "Free."
	case stateSplit:
		return fmt.Sprintf("Split: nobody has the %d of %d instances that hold it.", i.Quorum, n)
	}
	return fmt.Sprintf("Unknown: %d of %d instances answer, which is too few to tell.", answered, n)
}
