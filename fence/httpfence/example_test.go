package httpfence_test

import (
	"context"
	"errors"
	"fmt"
	"log"
	"net/http"
	"net/http/httptest"
	"strings"

	"github.com/quorumlock/redlock/fence"
	"github.com/quorumlock/redlock/fence/httpfence"
)

// Token 33 is that of a holder that was paused, 34 that of the one after it.
func Example() {
	// The service: it knows which resource a request touches.
	var marks fence.HighWater
	guard, err := httpfence.New(&marks, func(r *http.Request) string { return r.PathValue("invoice") })
	if err != nil {
		log.Fatal(err)
	}
	mux := http.NewServeMux()
	mux.Handle("PUT /invoices/{invoice}", guard.Handler(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
		fmt.Println("written:", r.PathValue("invoice")) // and finished when it returns
	})))
	service := httptest.NewServer(mux)
	defer service.Close()

	// A holder.
	client := &http.Client{Transport: &httpfence.Transport{}}
	put := func(token uint64) error {
		ctx := httpfence.NewContext(context.Background(), "42", token)
		request, err := http.NewRequestWithContext(ctx, http.MethodPut, service.URL+"/invoices/42", strings.NewReader("paid"))
		if err != nil {
			return err
		}
		response, err := client.Do(request)
		if err != nil {
			return err
		}
		return response.Body.Close()
	}
	fmt.Println(put(34))
	var stale *fence.StaleError
	if err := put(33); errors.As(err, &stale) {
		fmt.Println(stale)
	}
	// Output:
	// written: 42
	// <nil>
	// fence: stale: "42": token 33 is smaller than 34
}
