package main

import (
	"net/http"
	"net/http/httptest"
	"testing"
)

// TestCheck checks that only the answer 200 counts as healthy.
func TestCheck(t *testing.T) {
	t.Parallel()
	status := http.StatusOK
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(status) }))
	defer server.Close()
	if err := check(server.URL); err != nil {
		t.Error(err)
	}
	status = http.StatusServiceUnavailable
	if err := check(server.URL); err == nil {
		t.Error("the check accepts 503")
	}
	if err := check("http://127.0.0.1:1"); err == nil {
		t.Error("the check succeeds without a server")
	}
}
