package source

import "context"

// Func is a source of your own: a number from etcd or ZooKeeper, for instance.
type Func func(ctx context.Context, resource string) (uint64, error)

// Token implements redlock.FencingSource.
func (f Func) Token(ctx context.Context, resource string) (uint64, error) { return f(ctx, resource) }
