package sim

import (
	"strconv"
	"strings"
)

// A batch is what lua/batch.lua is asked to do.
type batch struct {
	fenced bool
	mark   string
	number string
	me     string // the Locker that asks
	ops    []operation
}

// An operation is one of a batch. Its letters are those of lua/batch.lua.
type operation struct {
	letter     byte
	lock       string
	fence      string // empty without fencing
	owner      string // empty of a look
	ttl, keep  string
	token      string // or the seed of an acquire
	since      string // of those that wait
	flag       string // of an extend: shorter; of a release: tell
	answer     string
	answerKind byte
}

// parseBatch reads the arguments of an EVAL or EVALSHA of the script; nil if they are
// not such.
func parseBatch(args []string) *batch {
	n, err := strconv.Atoi(args[2])
	if err != nil || len(args) < 3+n+4 {
		return nil
	}
	keys, argv := args[3:3+n], args[3+n:]
	b := &batch{fenced: argv[0] == "1", mark: argv[1], number: argv[2], me: argv[3]}
	argv = argv[4:]
	next := func(list *[]string) string {
		s := (*list)[0]
		*list = (*list)[1:]
		return s
	}
	for len(argv) > 0 {
		letter := next(&argv)
		o := operation{letter: letter[0], lock: next(&keys)}
		if b.fenced && o.letter != 'd' {
			o.fence = next(&keys)
		}
		if o.letter != 'q' {
			o.owner = next(&argv)
		}
		switch o.letter {
		case 'a', 'w', 'h', 'e':
			o.ttl, o.keep, o.token = next(&argv), next(&argv), next(&argv)
			switch o.letter {
			case 'w':
				o.since = next(&argv)
			case 'e':
				o.flag = next(&argv)
			}
		case 'q':
			o.since = next(&argv)
		case 'r':
			o.token = next(&argv)
		case 'd':
			o.flag = next(&argv)
		}
		b.ops = append(b.ops, o)
	}
	return b
}

// answered notes the lines of the script's reply.
func (b *batch) answered(reply string) {
	_, reply, _ = strings.Cut(reply, "\n") // the number
	for i := range b.ops {
		b.ops[i].answer, reply, _ = strings.Cut(reply, "\n")
		b.ops[i].answerKind = b.ops[i].answer[0]
	}
}

var letters = map[byte]string{'a': "acquire", 'w': "acquire, waiting", 'q': "look, waiting", 'r': "raise", 'e': "extend", 'h': "heal", 'd': "release"}

func (o operation) String() string {
	s := letters[o.letter] + " " + o.lock
	if o.owner != "" {
		s += " of " + o.owner
	}
	if o.ttl != "" {
		s += " for " + o.ttl + " ms"
	}
	if o.token != "" && o.fence != "" {
		s += " token " + o.token
	}
	if o.since != "" {
		s += " since " + o.since
	}
	if o.letter == 'e' && o.flag == "1" {
		s += " (shorter)"
	}
	if o.letter == 'd' && o.flag != "0" {
		s += ", telling " + o.flag
	}
	return s + ": " + o.answer
}
