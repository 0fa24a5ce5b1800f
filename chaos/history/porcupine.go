package history

import (
	"fmt"
	"io"
	"time"

	"github.com/anishathalye/porcupine"
)

// model is the order of tokens as a sequential object: an acquire with token t is
// legal if t is larger than the current token, and makes it the current one; an
// extend of t is legal if t is the current token.
var model = porcupine.Model{
	Init: func() any { return uint64(0) },
	Step: func(state, input, _ any) (bool, any) {
		current, o := state.(uint64), input.(Op)
		if o.Kind == Extend {
			return o.Token == current, current
		}
		return o.Token > current, o.Token
	},
	DescribeOperation: func(input, _ any) string {
		o := input.(Op)
		return fmt.Sprintf("%s %d", o.Kind, o.Token)
	},
	DescribeState: func(state any) string { return fmt.Sprint(state) },
}

// Linearizable reports whether ops have an order that respects real time in which
// every token is larger than the one before. It gives up after limit, with an
// error; a picture of the first resource that has none goes to picture, if that is
// not nil.
//
// It checks one resource after the other: porcupine's memory grows with the square
// of the operations, and if it is given all of them it checks them side by side.
func Linearizable(ops []Op, limit time.Duration, picture io.Writer) (bool, error) {
	end := time.Now().Add(limit)
	for _, ops := range byResource(ops) {
		operations := make([]porcupine.Operation, len(ops))
		for i, o := range ops {
			operations[i] = porcupine.Operation{ClientId: o.Client, Input: o, Call: o.Call, Return: o.Return}
		}
		left := max(time.Until(end), 1) // 0 would be without a limit
		result, info := porcupine.CheckOperationsVerbose(model, operations, left)
		switch {
		case result == porcupine.Unknown:
			return false, fmt.Errorf("not decided within %v", limit)
		case result == porcupine.Illegal && picture != nil:
			return false, porcupine.Visualize(model, info, picture)
		case result == porcupine.Illegal:
			return false, nil
		}
	}
	return true, nil
}
