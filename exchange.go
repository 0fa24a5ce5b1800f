package redlock

import (
	"context"
	"encoding"
	"errors"
	"fmt"
	"io"
	"net"
	"slices"
	"strings"
	"time"

	"github.com/redis/go-redis/v9"
)

// This is the only file that knows an error of the client.

// A result is what became of a batch.
type result struct {
	sent      time.Time // not after it was sent
	lines     string    // the script's answer
	err       error     // why there is none
	again     bool      // it was not run, and is to be sent once more
	notRun    bool      // it was not run, and will not be
	ambiguous bool      // the server may still run it, or run it again
}

// exchange sends one batch and waits for its answer, about sendLimit at most. It is
// called with the pen, and while nothing else is out.
func (in *instance) exchange(batch []*round, text bool, now time.Time) result {
	in.setSentAt(now)
	defer in.setSentAt(time.Time{})
	in.mu.Lock()
	mute := in.mute
	in.sent++
	number := in.sent
	in.mu.Unlock()
	command := in.command(batch, number, text, mute)
	defer func() { clear(in.args) }()
	if in.wire == nil {
		reply, err := in.call(command)
		if err == nil {
			var n uint64
			if n, reply, err = cutNumber(reply); err == nil && n != number {
				err = fmt.Errorf("it is the answer to batch %d, not to %d", n, number)
			}
		}
		return in.judge(batch, now, reply, err, in.script.written)
	}
	in.mu.Lock()
	in.readUntilLocked(time.Now().Add(in.locker.sendLimit()))
	in.mu.Unlock()
	reply, err := in.wire.call(command, number, in.locker.sendLimit())
	if err != nil && !isReply(err) {
		in.dropWire()
	}
	return in.judge(batch, now, reply, err, 1)
}

// judge tells what became of a batch that was written so many times, from the answer
// or the error that came back.
func (in *instance) judge(batch []*round, sent time.Time, reply string, err error, written int) result {
	if isReply(err) && (written == 1 || len(batch) == 0) && in.canRepeat(err, batch) {
		return result{sent: sent, again: true}
	}
	// Written more than once: the client tried again behind our back, and an
	// earlier copy may still be under way.
	res := result{sent: sent, lines: reply, err: in.explain(err), ambiguous: written > 1}
	switch {
	case err == nil:
		in.cold = false
		if in.backoff > 0 {
			in.setUp()
		}
		if in.wire == nil {
			in.prove(sent)
		}
	case isReply(err) && written > 0:
		// The instance is there, and refuses. If it is for want of the script, a probe
		// brings it.
		in.cold = strings.HasPrefix(err.Error(), "NOSCRIPT")
		res.notRun = written == 1
	default:
		res.ambiguous, res.notRun = written > 0, written == 0
		// A connection that broke says little of the instance: the next one is
		// tried with a probe. No new connection, or silence, says that it is down.
		if written == 0 || isTimeout(err) || in.cold {
			in.setDown(res.err, in.locker.now())
		}
		in.cold = true
		in.mu.Lock()
		in.leftovers.broken()
		in.mu.Unlock()
	}
	return res
}

// canRepeat reports whether err says that nothing was run and the batch is to be
// sent in another way.
func (in *instance) canRepeat(err error, batch []*round) bool {
	in.mu.Lock()
	defer in.mu.Unlock()
	switch text := err.Error(); {
	case strings.HasPrefix(text, "NOSCRIPT"): // restarted, or its scripts were flushed
		in.sendText = true
		return true
	case strings.HasPrefix(text, "NOPERM"): // perhaps for the keys of one operation
		if len(batch) > 1 {
			in.alone = len(batch)
		}
		return len(batch) > 1
	case strings.HasPrefix(text, "CROSSSLOT"): // a node of a cluster, behind a plain client
		in.sharded.Store(true)
		return slices.ContainsFunc(batch, func(r *round) bool { return r.lock.key != batch[0].lock.key })
	}
	return false
}

// The commands that run the script, boxed once for all.
var evalsha, eval any = "evalsha", "eval"

// command returns the command that runs the script for batch. It is called with the
// pen, and valid while that is held.
func (in *instance) command(batch []*round, number uint64, text, mute bool) []any {
	command := evalsha
	in.script = scriptArg{text: batchSHA}
	if text {
		command = eval
		in.script.text = batchText
	}
	args := append(in.args[:0], command, &in.script, nil)
	for _, r := range batch {
		args = r.appendKeys(args)
	}
	in.numKeys = len(args) - 3
	args[2] = &in.numKeys
	sharded := in.sharded.Load()
	if sharded && in.numKeys > 0 {
		args[2], args[3] = in.numKeys, batch[0].lock.key
	}
	args = append(args, flag(in.locker.fenced()))
	to := in
	if mute || sharded {
		to = nil
		args = append(args, &blank)
	} else {
		args = append(args, &in.locker.mark)
	}
	in.number = number
	args = append(args, &in.number, &in.locker.name)
	for _, r := range batch {
		args = r.appendArgs(args, to)
	}
	in.args = args
	return args
}

// takeText reports whether the next batch goes with the text of the script.
func (in *instance) takeText() bool {
	in.mu.Lock()
	defer in.mu.Unlock()
	text := in.sendText
	in.sendText = false
	return text
}

// call runs a command of the script through the client.
func (in *instance) call(command []any) (string, error) {
	ctx := in.locker.ctx
	if !in.locker.owned {
		// The client may dial for long. Those that Open built have their limits.
		c, cancel := context.WithTimeout(ctx, in.locker.sendLimit())
		defer cancel()
		ctx = c
	}
	cmd := redis.NewStringCmd(ctx, command...)
	sent := in.perform(ctx, cmd)
	reply, err := cmd.Result()
	if err == nil {
		err = sent // of a client that does not set it on the command
	}
	return reply, err
}

// perform runs one command. A client panics at some replies that no Redis sends:
// that is an error of this instance, like every other one.
func (in *instance) perform(ctx context.Context, cmd redis.Cmder) (err error) {
	defer func() {
		if p := recover(); p != nil {
			err = fmt.Errorf("the client panicked: %v", p)
			cmd.SetErr(err)
		}
	}()
	return in.client.Process(ctx, cmd)
}

// A scriptArg is the script or its hash in a command, and counts how often the
// client writes that command: not at all if it found no connection, more than
// once if it tried again.
type scriptArg struct {
	text    []byte
	written int
}

var _ encoding.BinaryMarshaler = (*scriptArg)(nil)

// MarshalBinary is called for each time that the command is written.
func (s *scriptArg) MarshalBinary() ([]byte, error) {
	s.written++
	return s.text, nil
}

// land takes back a batch: it is to be sent again, or answered.
func (in *instance) land(batch []*round, res result) {
	if !res.again {
		in.deliver(batch, res)
	}
	in.mu.Lock()
	if res.again {
		in.redo = append(in.redo, batch...)
		clear(batch)
	}
	in.batches = append(in.batches, batch[:0])
	in.mu.Unlock()
}

// deliver hands out the answers of a batch.
func (in *instance) deliver(batch []*round, res result) {
	now := in.locker.now()
	if res.err == nil {
		in.memory.answered = now
	}
	lines := res.lines
	if res.err == nil && strings.Count(lines, "\n") != len(batch)-1 {
		res.err = fmt.Errorf("unexpected answer %.40q", lines)
		res.ambiguous = true
	}
	for i, r := range batch {
		var line string
		line, lines, _ = strings.Cut(lines, "\n")
		a := answer{vote: failed, err: res.err}
		if res.err == nil {
			a = parseAnswer(line)
		}
		in.settle(r)
		if a.mute {
			in.silence()
		}
		if r.op == opRelease && a.vote == granted {
			a = in.told(r, a)
		}
		if r.op.prolongs() {
			a = in.compareClocks(r, a, res, now)
		}
		a = in.weigh(r, a, now)
		if res.ambiguous && r.op.grants() {
			in.remember(r.lock, now)
		}
		if res.ambiguous && r.op == opExtend && r.shorter {
			r.lock.doubt(in.index)
		}
		if r.op == opRelease && errors.Is(a.err, errAbsent) && (res.ambiguous || r.lock.listed(in.index)) {
			// An earlier copy or the clean-up may have deleted it: no sign of a loss.
			a = answer{vote: granted}
		}
		if r.op == opAcquire && res.notRun {
			r.lock.untouched(in.index)
		}
		if a.vote == failed {
			in.undelivered(r, now)
		}
		r.answer(in, a)
		r.leave()
		batch[i] = nil
	}
}

// told takes what a release says of those that it woke.
func (in *instance) told(r *round, a answer) answer {
	told := int64(a.fence)
	if !r.tell || in.mute || in.sharded.Load() {
		told = -1
	}
	return answer{vote: granted, lease: told}
}

// silence notes that the instance lets nobody publish. (It is written by who has the
// turn, who may read it without mu.)
func (in *instance) silence() {
	in.mu.Lock()
	in.mute = true
	in.mu.Unlock()
}

// settle notes that r's operation is not on its way any more.
func (in *instance) settle(r *round) {
	if r.op.prolongs() {
		r.lock.arrives(in.index)
	}
}

// undelivered notes a release that this instance did not confirm.
func (in *instance) undelivered(r *round, now time.Time) {
	if r.op == opRelease && !r.cleaning && r.lock.mayBeOn(in.index) {
		in.remember(r.lock, now)
	}
}

func (in *instance) setSentAt(t time.Time) {
	in.mu.Lock()
	in.sentAt = t
	in.mu.Unlock()
}

// isReply reports whether err is an answer of the server.
func isReply(err error) bool {
	if err == nil {
		return false // without a place for what there is not
	}
	var reply redis.Error
	return errors.As(err, &reply)
}

// isTimeout reports whether err is a time-out, of the socket or of a context.
func isTimeout(err error) bool {
	var t net.Error
	return errors.As(err, &t) && t.Timeout() || errors.Is(err, context.DeadlineExceeded)
}

const argsFollow = ", with args beginning with"

// explain turns an error of the client into the cause that a caller reads.
func (in *instance) explain(err error) error {
	switch {
	case err == nil:
		return nil
	case isReply(err) && strings.Contains(err.Error(), "unauthenticated multibulk length"):
		// How a server that wants a password answers a request of more than ten
		// arguments.
		return serverError("NOAUTH Authentication required. (" + err.Error() + ")")
	case isReply(err) && strings.Contains(err.Error(), argsFollow):
		// A server that does not know AUTH or HELLO repeats the password.
		text, _, _ := strings.Cut(err.Error(), argsFollow)
		return serverError(text)
	case errors.Is(err, context.DeadlineExceeded), errors.Is(err, context.Canceled):
		// Of our own context: it must not look like the caller's.
		return &timeoutError{in.locker.sendLimit()}
	case errors.Is(err, io.EOF):
		return fmt.Errorf("the connection ended: %w", err)
	}
	return err
}
