package redlock

import (
	"crypto/sha1" //nolint:gosec // Redis names scripts by their SHA-1; nothing rests on it
	_ "embed"
	"encoding/hex"
	"errors"
	"fmt"
	"strconv"
	"strings"
)

//go:embed lua/batch.lua
var batchText []byte

// batchSHA is the name under which Redis caches the script.
var batchSHA = func() []byte {
	sum := sha1.Sum(batchText) //nolint:gosec // see above
	return hex.AppendEncode(nil, sum[:])
}()

// An op is what a round asks of every instance.
type op uint8

const (
	opAcquire op = iota
	opLook       // in place of an acquire, by one that waits: whether the lock is held
	opRaise
	opExtend
	opHeal
	opRelease
)

func (o op) String() string {
	return [...]string{"acquire", "acquire", "raise", "extend", "heal", "release"}[o]
}

// grants reports whether o can make the lock the owner's on an instance, and
// so leave something behind there when its reply is lost.
func (o op) grants() bool { return o == opAcquire || o == opHeal }

// prolongs reports whether o sets the expiry of a lock that is held.
func (o op) prolongs() bool { return o == opExtend || o == opHeal }

// The letters under which lua/batch.lua knows the operations. They are
// variables because an argument that is a pointer is not boxed.
var letters = [...]string{opAcquire: "a", opLook: "q", opRaise: "r", opExtend: "e", opHeal: "h", opRelease: "d"}

// waits is the letter of an acquire that queues up where it is refused.
var waits = "w"

var yes, no, blank = "1", "0", ""

// hedged tells a release to wake a second one, too.
var hedged = "2"

func flag(b bool) *string {
	if b {
		return &yes
	}
	return &no
}

// appendKeys appends the KEYS of r's operation.
func (r *round) appendKeys(args []any) []any {
	args = append(args, &r.lock.key)
	if r.lock.fence != "" && r.op != opRelease {
		args = append(args, &r.lock.fence)
	}
	return args
}

// size returns about how many bytes r's operation takes in a batch.
func (r *round) size() int { return 128 + len(r.lock.key) + len(r.lock.fence) }

// appendArgs appends the ARGV of r's operation for in; nil where nobody can be told.
func (r *round) appendArgs(args []any, in *instance) []any {
	queues := r.since != 0 && in != nil && in.ear.hears.Load()
	switch {
	case r.op == opLook && queues:
		return append(args, &letters[opLook], &r.since)
	case r.op == opLook:
		return append(args, &letters[opLook], &no)
	case queues:
		return append(args, &waits, &r.lock.owner, &r.ttl, &r.keep, &r.token, &r.since)
	}
	args = append(args, &letters[r.op], &r.lock.owner)
	switch r.op {
	case opAcquire, opHeal:
		args = append(args, &r.ttl, &r.keep, &r.token)
	case opExtend:
		args = append(args, &r.ttl, &r.keep, &r.token, flag(r.shorter))
	case opRaise:
		args = append(args, &r.token)
	case opRelease:
		switch {
		case in == nil, !r.tell, r.next != nil && r.next.phase.Load() != over:
			args = append(args, &no)
		case in.index == r.hedge:
			args = append(args, &hedged)
		default:
			args = append(args, &yes)
		}
	}
	return args
}

// cutNumber takes the number of its batch from an answer of the script.
func cutNumber(reply string) (n uint64, lines string, err error) {
	head, lines, _ := strings.Cut(reply, "\n")
	if n, err = strconv.ParseUint(head, 10, 64); err != nil {
		err = fmt.Errorf("unexpected answer %.40q", reply)
	}
	return n, lines, err
}

// An answer is what one instance says to one operation.
type answer struct {
	vote  vote
	fence uint64 // granted or refused: the instance's fence value
	lease int64  // how many a release has told, -1: not known. In ms: refused: how long the other owner still has; of an extend: how long we still had; -1: for ever, or not known
	err   error  // refused or failed: why
	mute  bool   // of a release: the instance lets nobody publish
}

// Why an instance refuses. They match no exported error: whether a lock is
// taken is for the quorum to say, not for one instance.
var (
	errForeign = errors.New("held by another owner")
	errAbsent  = errors.New("the key is gone")
	errThin    = errors.New("its fence is beyond our token")
)

// parseAnswer reads one line of the script's answer.
func parseAnswer(line string) answer {
	kind, rest, _ := strings.Cut(line, " ")
	switch kind {
	case "g":
		if fence, err := strconv.ParseUint(rest, 10, 64); err == nil && fence < maxToken {
			return answer{vote: granted, fence: fence}
		}
	case "m":
		if line == "m" {
			return answer{vote: granted, mute: true}
		}
	case "e":
		if fence, number, ok := twoNumbers(rest); ok {
			return answer{vote: granted, fence: fence, lease: number}
		}
	case "r":
		if fence, left, ok := twoNumbers(rest); ok {
			return answer{vote: refused, fence: fence, lease: left, err: errForeign}
		}
	case "n":
		if line == "n" || line == "n m" {
			return answer{vote: refused, lease: -1, err: errAbsent, mute: line != "n"}
		}
	case "x":
		return answer{vote: refused, lease: -1, err: errForeign}
	case "t":
		if fence, err := strconv.ParseUint(rest, 10, 64); err == nil && fence < maxToken {
			return answer{vote: failed, fence: fence, err: errThin}
		}
	case "f":
		return answer{vote: failed, err: serverError(rest)}
	}
	return answer{vote: failed, err: fmt.Errorf("unexpected answer %.40q", line)}
}

func twoNumbers(text string) (fence uint64, other int64, ok bool) {
	first, second, _ := strings.Cut(text, " ")
	fence, err1 := strconv.ParseUint(first, 10, 64)
	other, err2 := strconv.ParseInt(second, 10, 64)
	return fence, other, err1 == nil && err2 == nil && fence < maxToken
}

// serverError is an error that the server answered to one operation of a
// batch. It implements redis.Error.
type serverError string

func (e serverError) Error() string { return string(e) }

// RedisError marks e as an answer of the server.
func (serverError) RedisError() {}
