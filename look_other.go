//go:build !linux

package redlock

import "net"

// A looker would read from a socket without waiting. Here callers sleep at once.
type looker struct{}

func newLooker(net.Conn) *looker { return nil }

func (*looker) look([]byte) (n int, err error) { return 0, nil }

func letOthersRun() {}
