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
	Partition: func(ops []porcupine.Operation) [][]porcupine.Operation {
		byResource := map[string][]porcupine.Operation{}
		var names []string
		for _, o := range ops {
			name := o.Input.(Op).Resource
			if byResource[name] == nil {
				names = append(names, name)
			}
			byResource[name] = append(byResource[name], o)
		}
		parts := make([][]porcupine.Operation, 0, len(names))
		for _, name := range names {
			parts = append(parts, byResource[name])
		}
		return parts
	},
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
// error; a picture of a history that has none goes to picture, if that is not nil.
func Linearizable(ops []Op, limit time.Duration, picture io.Writer) (bool, error) {
	operations := make([]porcupine.Operation, len(ops))
	for i, o := range ops {
		operations[i] = porcupine.Operation{ClientId: o.Client, Input: o, Call: o.Call, Return: o.Return}
	}
	result, info := porcupine.CheckOperationsVerbose(model, operations, limit)
	switch result {
	case porcupine.Ok:
		return true, nil
	case porcupine.Illegal:
		if picture != nil {
			return false, porcupine.Visualize(model, info, picture)
		}
		return false, nil
	}
	return false, fmt.Errorf("not decided within %v", limit)
}
