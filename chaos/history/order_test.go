package history

import (
	"bytes"
	"math/rand/v2"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

func acquire(call, ret int64, token uint64) Op {
	return Op{Resource: "r", Kind: Acquire, Call: call, Return: ret, Token: token}
}

func extend(call, ret int64, token uint64) Op {
	return Op{Resource: "r", Kind: Extend, Call: call, Return: ret, Token: token}
}

func TestCheckAndPorcupineAgree(t *testing.T) {
	for name, c := range map[string]struct {
		ops []Op
		ok  bool
	}{
		"nothing":                      {nil, true},
		"one after the other":          {[]Op{acquire(0, 1, 5), acquire(2, 3, 6)}, true},
		"at one time":                  {[]Op{acquire(0, 5, 6), acquire(1, 4, 5)}, true},
		"of two resources":             {[]Op{acquire(0, 1, 6), {Resource: "s", Kind: Acquire, Call: 2, Return: 3, Token: 5}}, true},
		"one token twice":              {[]Op{acquire(0, 5, 5), acquire(1, 4, 5)}, false},
		"backwards":                    {[]Op{acquire(0, 1, 6), acquire(2, 3, 5)}, false},
		"backwards over a third":       {[]Op{acquire(0, 1, 6), acquire(0, 9, 7), acquire(2, 3, 5)}, false},
		"extend of the current":        {[]Op{acquire(0, 1, 5), extend(2, 3, 5)}, true},
		"extend while the next begins": {[]Op{acquire(0, 1, 5), acquire(2, 6, 6), extend(3, 4, 5)}, true},
		"extend after the next":        {[]Op{acquire(0, 1, 5), acquire(2, 3, 6), extend(4, 5, 5)}, false},
	} {
		t.Run(name, func(t *testing.T) {
			require.Equal(t, c.ok, len(Check(c.ops)) == 0, Check(c.ops))
			var picture bytes.Buffer
			ok, err := Linearizable(c.ops, time.Minute, &picture)
			require.NoError(t, err)
			require.Equal(t, c.ok, ok)
			require.Equal(t, !c.ok, picture.Len() > 0)
		})
	}
}

// Of acquisitions alone, sorting finds exactly what porcupine does.
func TestSortingIsAsGoodAsPorcupine(t *testing.T) {
	good, bad := 0, 0
	for range 3_000 {
		var ops []Op
		for range 2 + rand.N(5) {
			call := rand.Int64N(20)
			ops = append(ops, acquire(call, call+rand.Int64N(8), uint64(1+call/2+rand.Int64N(4))))
		}
		ok, err := Linearizable(ops, time.Minute, nil)
		require.NoError(t, err)
		require.Equal(t, ok, len(Check(ops)) == 0, "%v", ops)
		if ok {
			good++
		} else {
			bad++
		}
	}
	require.Greater(t, min(good, bad), 100, "both kinds occur")
}
