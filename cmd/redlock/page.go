package main

import (
	"errors"
	"fmt"
	"io"
	"os"
	"strings"
	"unicode"
	"unicode/utf8"

	"github.com/quorumlock/redlock"
)

const (
	pageWidth = 88
	nameWidth = 36 // of an instance, in a table of votes
	indent    = "    "
)

// A page is what the demo prints on: short sentences, numbered, with tables of
// votes.
type page struct {
	out   io.Writer
	color bool
	step  int // the number of the last one
}

func newPage(out io.Writer) *page { return &page{out: out, color: isTerminal(out)} }

// isTerminal reports whether colours make sense on w.
func isTerminal(w io.Writer) bool {
	f, ok := w.(*os.File)
	if !ok || os.Getenv("NO_COLOR") != "" || os.Getenv("TERM") == "dumb" {
		return false
	}
	info, err := f.Stat()
	return err == nil && info.Mode()&os.ModeCharDevice != 0
}

// begin prints the sentence of the next step.
func (p *page) begin(format string, args ...any) {
	p.step++
	number := fmt.Sprintf("%2d. ", p.step)
	text := strings.TrimPrefix(wrap(indent, fmt.Sprintf(format, args...)), indent)
	fmt.Fprintf(p.out, "\n%s%s\n", p.paint(bold, number), text)
}

// say prints a sentence at the margin, and note one below a step.
func (p *page) say(format string, args ...any) {
	fmt.Fprintln(p.out, wrap("", fmt.Sprintf(format, args...)))
}

func (p *page) note(format string, args ...any) {
	fmt.Fprintln(p.out, wrap(indent, fmt.Sprintf(format, args...)))
}

// failure prints the error that a client got, with a line for each instance that
// it names.
func (p *page) failure(client string, err error) {
	head := client + "'s error: " + err.Error()
	var causes []error
	var votes *redlock.QuorumError
	if errors.As(err, &votes) && votes.Errs != nil {
		head, _, _ = strings.Cut(head, votes.Errs.Error())
		causes = votes.Errs.Errors
	}
	fmt.Fprintln(p.out, p.paint(red, wrap(indent, head)))
	for _, cause := range causes {
		fmt.Fprintln(p.out, p.paint(red, wrap(indent+"  ", cause.Error())))
	}
}

// votes prints a table of what each instance answered, and at what its fence
// stands or why it did not grant.
func (p *page) votes(e redlock.RoundEvent) {
	width := 0
	for _, v := range e.Votes {
		width = max(width, utf8.RuneCountInString(shorten(v.Instance)))
	}
	for _, v := range e.Votes {
		text := ""
		switch {
		case v.Err != nil:
			text = strings.TrimPrefix(v.Err.Error(), "dial tcp "+v.Instance+": ")
		case v.Fence > 0:
			text = fmt.Sprintf("fence %d", v.Fence)
		case v.Vote == "pending":
			text = "not asked: it was decided"
		}
		name := fmt.Sprintf("%-*s", width, shorten(v.Instance))
		vote := fmt.Sprintf("%-7s", v.Vote)
		margin := strings.Repeat(" ", utf8.RuneCountInString(indent+name+"  "+vote+"  "))
		text = strings.TrimPrefix(wrap(margin, text), margin)
		fmt.Fprintln(p.out, strings.TrimRight(indent+name+"  "+p.paint(voteColor(v.Vote), vote)+"  "+text, " "))
	}
}

// shorten returns the end of a name that is too long for a table.
func shorten(name string) string {
	if r := []rune(name); len(r) > nameWidth {
		return "…" + string(r[len(r)-nameWidth+1:])
	}
	return name
}

const (
	bold   = "1"
	red    = "31"
	green  = "32"
	yellow = "33"
)

func voteColor(vote string) string {
	switch vote {
	case "granted":
		return green
	case "refused":
		return yellow
	}
	return red
}

func (p *page) paint(color, s string) string {
	if !p.color {
		return s
	}
	return "\x1b[" + color + "m" + s + "\x1b[0m"
}

// wrap breaks text into lines of the page's width that each start with margin. A
// word that is longer than a line stays whole. What a server answered may stand
// in text: nothing in it gets at the terminal.
func wrap(margin, text string) string {
	var b strings.Builder
	column := 0
	for word := range strings.FieldsSeq(printable(text)) {
		n := utf8.RuneCountInString(word)
		switch {
		case column == 0:
			b.WriteString(margin)
			column = utf8.RuneCountInString(margin)
		case column+1+n > pageWidth:
			b.WriteString("\n" + margin)
			column = utf8.RuneCountInString(margin)
		default:
			b.WriteByte(' ')
			column++
		}
		b.WriteString(word)
		column += n
	}
	return b.String()
}

// printable replaces what is neither to be seen nor a space.
func printable(s string) string {
	return strings.Map(func(r rune) rune {
		if unicode.IsPrint(r) || unicode.IsSpace(r) {
			return r
		}
		return '?'
	}, s)
}
