package httpfence

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"strconv"

	"github.com/quorumlock/redlock/fence"
)

// A Checker compares a token with the mark of a resource and runs fn, in one
// atomic step: until fn has returned, no other token of the resource passes. A
// *[fence.HighWater] is one. A smaller token gets a *[fence.StaleError].
type Checker interface {
	Do(ctx context.Context, resource string, token uint64, fn func(ctx context.Context) error) error
}

// A Guard is the middleware. It is safe for concurrent use.
type Guard struct {
	checker  Checker
	resource func(*http.Request) string
	missing  bool
	tally    fence.Tally
}

// An Option configures a [Guard].
type Option func(*Guard)

// AllowMissing lets requests without a token pass, unguarded, as long as clients
// that send none are still in use. A malformed token is refused all the same.
func AllowMissing() Option { return func(g *Guard) { g.missing = true } }

// New returns a guard that asks checker about the resource of each request, which
// resource names: the service knows best what a request touches. [FromHeader]
// leaves that to the client. An empty name is answered with 400.
func New(checker Checker, resource func(*http.Request) string, opts ...Option) (*Guard, error) {
	if checker == nil || resource == nil {
		return nil, errors.New("httpfence: New: the checker or the resource function is nil")
	}
	g := &Guard{checker: checker, resource: resource}
	for _, opt := range opts {
		opt(g)
	}
	return g, nil
}

// FromHeader returns the resource that a [Transport] has sent, or "".
func FromHeader(r *http.Request) string {
	resource, err := url.PathUnescape(r.Header.Get(ResourceHeader))
	if err != nil {
		return ""
	}
	return resource
}

// Handler returns next behind the guard, for every method: a holder's first read
// raises the mark, too. It runs next inside the check, with the checker's context.
// If the checker fails after that (its transaction can't be committed, say), the
// answer is cut off: the client must not take it for a success.
func (g *Guard) Handler(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		sent := r.Header.Values(TokenHeader)
		if len(sent) == 0 && g.missing {
			next.ServeHTTP(w, r)
			return
		}
		resource := g.resource(r)
		token, err := parseToken(sent)
		if err == nil {
			err = fence.Validate(resource, token)
		}
		if err != nil {
			http.Error(w, err.Error(), http.StatusBadRequest)
			return
		}
		passed := false
		err = g.checker.Do(r.Context(), resource, token, func(ctx context.Context) error {
			passed = true
			_ = g.tally.Compare(resource, token, token)
			next.ServeHTTP(w, r.WithContext(ctx))
			return nil
		})
		var stale *fence.StaleError
		switch {
		case err == nil:
		case passed:
			panic(http.ErrAbortHandler)
		case errors.As(err, &stale):
			_ = g.tally.Compare(resource, token, stale.Current)
			w.Header().Set(CurrentHeader, strconv.FormatUint(stale.Current, 10))
			http.Error(w, stale.Error(), http.StatusPreconditionFailed)
		default:
			http.Error(w, "httpfence: the token could not be compared", http.StatusServiceUnavailable)
		}
	})
}

// CountDuplicate counts a request that the service found to be a duplicate.
func (g *Guard) CountDuplicate() { g.tally.CountDuplicate() }

// Counts returns what was counted.
func (g *Guard) Counts() fence.Counts { return g.tally.Counts() }

// parseToken returns the token in the values of a header: one, in decimal.
func parseToken(values []string) (uint64, error) {
	switch len(values) {
	case 0:
		return 0, fmt.Errorf("%w: no %s header", fence.ErrNoToken, TokenHeader)
	case 1:
		token, err := strconv.ParseUint(values[0], 10, 64)
		if err != nil {
			return 0, fmt.Errorf("%w: %.40q is no decimal number", fence.ErrNoToken, values[0])
		}
		return token, nil
	}
	return 0, fmt.Errorf("%w: %d of them", fence.ErrNoToken, len(values))
}
