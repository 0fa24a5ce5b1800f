package httpfence

import (
	"context"
	"io"
	"net/http"
	"net/url"
	"strconv"

	"github.com/quorumlock/redlock/fence"
)

// The headers.
const (
	ResourceHeader = "Fencing-Resource"
	TokenHeader    = "Fencing-Token"
	CurrentHeader  = "Fencing-Current"
)

type contextKey struct{}

type pass struct {
	resource string
	token    uint64
}

// NewContext returns a context whose requests a [Transport] sends with token.
func NewContext(ctx context.Context, resource string, token uint64) context.Context {
	return context.WithValue(ctx, contextKey{}, pass{resource, token})
}

// A Transport sends requests with a fencing token: that of [NewContext] in the
// request's context, and otherwise its own. Without a token nothing is sent, and
// the error matches [fence.ErrNoToken]: a client that must not forget it should
// not be able to.
//
// The answer of a [Guard] that the token is stale becomes a *[fence.StaleError],
// which errors.As finds in the error of an http.Client; other answers are left
// alone, also a 412 of the service's own. A lost reply tells nothing: the request
// may have been served.
type Transport struct {
	Base     http.RoundTripper // nil: http.DefaultTransport
	Resource string
	Token    uint64
}

// RoundTrip implements http.RoundTripper.
func (t *Transport) RoundTrip(r *http.Request) (*http.Response, error) {
	p, ok := r.Context().Value(contextKey{}).(pass)
	if !ok {
		p = pass{t.Resource, t.Token}
	}
	if err := fence.Validate(p.resource, p.token); err != nil {
		if r.Body != nil {
			_ = r.Body.Close()
		}
		return nil, err
	}
	r = r.Clone(r.Context()) // a RoundTripper may not change its request
	r.Header.Set(ResourceHeader, url.PathEscape(p.resource))
	r.Header.Set(TokenHeader, strconv.FormatUint(p.token, 10))

	base := t.Base
	if base == nil {
		base = http.DefaultTransport
	}
	response, err := base.RoundTrip(r)
	if err != nil || response.StatusCode != http.StatusPreconditionFailed {
		return response, err
	}
	current, err := parseToken(response.Header.Values(CurrentHeader))
	if err != nil || current <= p.token {
		return response, nil //nolint:nilerr // another 412
	}
	_, _ = io.CopyN(io.Discard, response.Body, 4<<10) // so that the connection can be used again
	_ = response.Body.Close()
	return nil, &fence.StaleError{Resource: p.resource, Token: p.token, Current: current}
}
