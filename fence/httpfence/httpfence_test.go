package httpfence_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net/http"
	"net/http/httptest"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/quorumlock/redlock/fence"
	"github.com/quorumlock/redlock/fence/httpfence"
)

// serve returns the URL of handler behind a guard that takes the resource from the
// client.
func serve(t *testing.T, checker httpfence.Checker, handler http.HandlerFunc, opts ...httpfence.Option) (string, *httpfence.Guard) {
	t.Helper()
	guard, err := httpfence.New(checker, httpfence.FromHeader, opts...)
	require.NoError(t, err)
	server := httptest.NewServer(guard.Handler(handler))
	t.Cleanup(server.Close)
	return server.URL, guard
}

func get(t *testing.T, url string, resource string, tokens ...string) *http.Response {
	t.Helper()
	r, err := http.NewRequestWithContext(t.Context(), http.MethodGet, url, nil)
	require.NoError(t, err)
	r.Header.Set(httpfence.ResourceHeader, resource)
	r.Header[httpfence.TokenHeader] = tokens
	response, err := http.DefaultClient.Do(r)
	require.NoError(t, err)
	t.Cleanup(func() { _ = response.Body.Close() })
	return response
}

func ok(http.ResponseWriter, *http.Request) {}

func TestWhatIsNoTokenIsABadRequest(t *testing.T) {
	served := false
	url, guard := serve(t, &fence.HighWater{}, func(http.ResponseWriter, *http.Request) { served = true })
	for _, tokens := range [][]string{
		nil,
		{""},
		{"0"},
		{"-1"},
		{"+1"},
		{"1.0"},
		{"1e3"},
		{"0x1"},
		{"1_0"},
		{"1,2"},
		{"x"},
		{"1", "2"},
		{"1", "1"},
		{"9007199254740992"},
		{"18446744073709551615"},
		{"18446744073709551616"},
	} {
		response := get(t, url, "r", tokens...)
		require.Equal(t, http.StatusBadRequest, response.StatusCode, "%q", tokens)
		text, err := io.ReadAll(response.Body)
		require.NoError(t, err)
		require.Contains(t, string(text), "no token")
		require.Less(t, len(text), 200)
	}
	for _, resource := range []string{"", "%", "%zz"} {
		require.Equal(t, http.StatusBadRequest, get(t, url, resource, "1").StatusCode)
	}
	require.False(t, served)
	require.Zero(t, guard.Counts())
}

func TestAMissingTokenPassesOnlyWhereThatIsAllowed(t *testing.T) {
	url, guard := serve(t, &fence.HighWater{}, ok, httpfence.AllowMissing())
	require.Equal(t, http.StatusOK, get(t, url, "r").StatusCode)
	require.Equal(t, http.StatusBadRequest, get(t, url, "r", "0").StatusCode)
	require.Equal(t, http.StatusOK, get(t, url, "r", "2").StatusCode)
	require.Equal(t, http.StatusPreconditionFailed, get(t, url, "r", "1").StatusCode)
	require.Equal(t, fence.Counts{Accepted: 1, Stale: 1}, guard.Counts())
}

func TestAStaleTokenIsToldTheLargerOne(t *testing.T) {
	url, guard := serve(t, &fence.HighWater{}, ok)
	require.Equal(t, http.StatusOK, get(t, url, "r", "7").StatusCode)
	response := get(t, url, "r", "6")
	require.Equal(t, http.StatusPreconditionFailed, response.StatusCode)
	require.Equal(t, "7", response.Header.Get(httpfence.CurrentHeader))
	text, err := io.ReadAll(response.Body)
	require.NoError(t, err)
	require.Equal(t, "fence: stale: \"r\": token 6 is smaller than 7\n", string(text))
	require.Equal(t, http.StatusOK, get(t, url, "r", "7").StatusCode)
	guard.CountDuplicate()
	require.Equal(t, fence.Counts{Accepted: 2, Stale: 1, Duplicates: 1}, guard.Counts())
}

func TestTheClientGetsAStaleErrorAndOtherAnswersAsTheyAre(t *testing.T) {
	var answer func(w http.ResponseWriter)
	url, _ := serve(t, &fence.HighWater{}, func(w http.ResponseWriter, _ *http.Request) {
		if answer != nil {
			answer(w)
		}
	})
	client := func(token uint64) *http.Client {
		return &http.Client{Transport: &httpfence.Transport{Resource: "a b/ü\n", Token: token}}
	}
	response, err := client(7).Get(url)
	require.NoError(t, err)
	require.NoError(t, response.Body.Close())
	_, err = client(6).Get(url)
	var stale *fence.StaleError
	require.ErrorAs(t, err, &stale)
	require.Equal(t, &fence.StaleError{Resource: "a b/ü\n", Token: 6, Current: 7}, stale)
	require.ErrorIs(t, err, fence.ErrStale)

	for _, current := range []string{"", "x", "7", "6"} { // another 412, or one that makes no sense
		answer = func(w http.ResponseWriter) {
			if current != "" {
				w.Header().Set(httpfence.CurrentHeader, current)
			}
			w.WriteHeader(http.StatusPreconditionFailed)
			_, _ = io.WriteString(w, "the etag differs")
		}
		response, err := client(7).Get(url)
		require.NoError(t, err)
		require.Equal(t, http.StatusPreconditionFailed, response.StatusCode)
		text, err := io.ReadAll(response.Body)
		require.NoError(t, err)
		require.Equal(t, "the etag differs", string(text))
		require.NoError(t, response.Body.Close())
	}
}

// closer notes that it was closed.
type closer struct {
	io.Reader
	closed bool
}

func (c *closer) Close() error { c.closed = true; return nil }

func TestNothingIsSentWithoutAToken(t *testing.T) {
	client := &http.Client{Transport: &httpfence.Transport{}}
	body := &closer{Reader: strings.NewReader("x")}
	r, err := http.NewRequestWithContext(t.Context(), http.MethodPut, "http://127.0.0.1:1", body)
	require.NoError(t, err)
	_, err = client.Do(r)
	require.Error(t, err)
	require.True(t, body.closed)

	for _, token := range []uint64{0, 1 << 53} {
		r, err := http.NewRequestWithContext(httpfence.NewContext(t.Context(), "r", token), http.MethodGet, "http://127.0.0.1:1", nil)
		require.NoError(t, err)
		_, err = client.Do(r)
		require.ErrorIs(t, err, fence.ErrNoToken)
	}
}

func TestTheContextsTokenGoesBeforeTheTransports(t *testing.T) {
	url, _ := serve(t, &fence.HighWater{}, func(w http.ResponseWriter, r *http.Request) {
		_, _ = io.WriteString(w, r.Header.Get(httpfence.TokenHeader)+" "+httpfence.FromHeader(r))
	})
	client := &http.Client{Transport: &httpfence.Transport{Resource: "fixed", Token: 3}}
	r, err := http.NewRequestWithContext(httpfence.NewContext(t.Context(), "own", 4), http.MethodGet, url, nil)
	require.NoError(t, err)
	response, err := client.Do(r)
	require.NoError(t, err)
	defer response.Body.Close()
	text, err := io.ReadAll(response.Body)
	require.NoError(t, err)
	require.Equal(t, "4 own", string(text))
	require.Empty(t, r.Header, "the caller's request is not changed")
}

func TestNoSmallerTokenWritesAfterALarger(t *testing.T) {
	var applied []uint64 // guarded by nothing but the middleware: the race detector watches
	url, guard := serve(t, &fence.HighWater{}, func(_ http.ResponseWriter, r *http.Request) {
		token, _ := strconv.ParseUint(r.Header.Get(httpfence.TokenHeader), 10, 64)
		time.Sleep(time.Millisecond) // give the others every chance
		applied = append(applied, token)
	})
	client := &http.Client{Transport: &httpfence.Transport{}}
	var mu sync.Mutex
	var accepted, largest uint64
	var wg sync.WaitGroup
	for range 32 {
		wg.Go(func() {
			for range 10 {
				token := 1 + rand.Uint64N(1_000)
				r, _ := http.NewRequestWithContext(httpfence.NewContext(t.Context(), "r", token), http.MethodPut, url, nil)
				response, err := client.Do(r)
				if err == nil {
					_ = response.Body.Close()
				}
				mu.Lock()
				largest = max(largest, token)
				if err == nil {
					accepted++
				}
				mu.Unlock()
			}
		})
	}
	wg.Wait()
	require.True(t, slices.IsSorted(applied), "%v", applied)
	require.Equal(t, largest, applied[len(applied)-1])
	require.Len(t, applied, int(accepted))
	require.Equal(t, fence.Counts{Accepted: accepted, Stale: 320 - accepted}, guard.Counts())
}

// checker is a Checker of a user's own.
type checker func(ctx context.Context, fn func(context.Context) error) error

func (c checker) Do(ctx context.Context, _ string, _ uint64, fn func(context.Context) error) error {
	return c(ctx, fn)
}

func TestACheckerThatFailsIsNeverASuccess(t *testing.T) {
	url, guard := serve(t, checker(func(context.Context, func(context.Context) error) error {
		return errors.New("the secret address of the store")
	}), ok)
	response := get(t, url, "r", "1")
	require.Equal(t, http.StatusServiceUnavailable, response.StatusCode)
	text, err := io.ReadAll(response.Body)
	require.NoError(t, err)
	require.NotContains(t, string(text), "secret")
	require.Zero(t, guard.Counts())

	// After the handler: the answer is on its way, and is cut off.
	url, _ = serve(t, checker(func(ctx context.Context, fn func(context.Context) error) error {
		_ = fn(ctx)
		return errors.New("no commit")
	}), func(w http.ResponseWriter, _ *http.Request) { _, _ = fmt.Fprintln(w, "done") })
	_, err = (&http.Client{Transport: &httpfence.Transport{Resource: "r", Token: 1}}).Get(url)
	require.ErrorIs(t, err, io.EOF)
}

func TestTheHandlerHasTheCheckersContext(t *testing.T) {
	type key struct{}
	url, _ := serve(t, checker(func(ctx context.Context, fn func(context.Context) error) error {
		return fn(context.WithValue(ctx, key{}, "a transaction"))
	}), func(w http.ResponseWriter, r *http.Request) { _, _ = fmt.Fprint(w, r.Context().Value(key{})) })
	text, err := io.ReadAll(get(t, url, "r", "1").Body)
	require.NoError(t, err)
	require.Equal(t, "a transaction", string(text))
}

func TestAHandlerThatPanicsGivesTheTurnBack(t *testing.T) {
	first := true
	url, _ := serve(t, &fence.HighWater{}, func(http.ResponseWriter, *http.Request) {
		if first {
			first = false
			panic(http.ErrAbortHandler)
		}
	})
	client := &http.Client{Transport: &httpfence.Transport{Base: &http.Transport{DisableKeepAlives: true}, Resource: "r", Token: 1}}
	r, err := http.NewRequestWithContext(t.Context(), http.MethodPost, url, strings.NewReader("x"))
	require.NoError(t, err)
	_, err = client.Do(r)
	require.Error(t, err)
	response, err := client.Get(url)
	require.NoError(t, err)
	require.NoError(t, response.Body.Close())
}

func TestMisuseIsAnErrorOfNew(t *testing.T) {
	_, err := httpfence.New(nil, httpfence.FromHeader)
	require.Error(t, err)
	_, err = httpfence.New(&fence.HighWater{}, nil)
	require.Error(t, err)
}
