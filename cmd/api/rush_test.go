package main

import (
	"bufio"
	"context"
	"net/http"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/holdfast-stock/holdfast/internal/testenv"
)

// progress is the progress of a rush of the console.
type progress struct {
	State, Detail                     string
	Sold, Available, Oversold, Failed int64
}

// TestConsoleRush starts rushes as the console does, at a service on every address, with TLS and a
// rate limit. They must not change the service's own stock and metrics.
func TestConsoleRush(t *testing.T) {
	t.Parallel()
	const token = "0123456789abcdef0123"
	folder := t.TempDir()
	certFile, keyFile := filepath.Join(folder, "cert.pem"), filepath.Join(folder, "key.pem")
	issueCertificate(t, certFile, keyFile, 1)
	admin := []string{"Authorization", "Bearer " + token}
	api := serveHere(t, "--listen", "0.0.0.0:0", "--admin-token", token, "--tls-cert", certFile, "--tls-key", keyFile, "--rate-limit", "5")
	url := api.URL() + "/console/rush"
	mustCall(t, http.StatusUnauthorized, http.MethodPost, url, `{}`)
	events := streamed(t, api.URL()+"/console/stream", admin...)
	run := func(strategy string) progress {
		t.Helper()
		mustCall(t, http.StatusAccepted, http.MethodPost, url, `{"strategy":"`+strategy+`","clients":16,"units":50}`, admin...)
		var p progress
		testenv.Await(t, "the rush ends", func() bool {
			p = decoded[struct{ Current progress }](t, mustCall(t, 200, http.MethodGet, url, "", admin...)).Current
			return p.State != "preparing" && p.State != "running"
		})
		return p
	}
	p := run("none")
	for range 7 { // on a busy machine, the clients of a rush may not overlap
		if p.Oversold > 0 {
			break
		}
		p = run("none")
	}
	if p.State != "ended" || p.Oversold <= 0 || p.Available >= 0 {
		t.Errorf("none: %+v", p)
	}
	events.await(t, "event: rush", `"state":"ended"`)
	for sold := int64(0); sold < 50; sold = p.Sold { // on a busy machine, the time for a rush may end before all units are sold
		if p = run("lua"); p.State != "ended" || p.Oversold != 0 || p.Available != 50-p.Sold || p.Sold < 50 && p.Detail == "" {
			t.Fatalf("lua: %+v", p)
		}
	}
	if a, err := audited(t.Context(), api.URL(), "10001"); err != nil || a.Sold != 0 || a.Drift != 0 {
		t.Errorf("the service's own stock: %+v %v", a, err)
	}
	metrics := mustCall(t, 200, http.MethodGet, api.URL()+"/metrics", "", admin...)
	if counted := regexp.MustCompile(`(?m)^holdfast_orders_total.* [1-9].*$`).Find(metrics); counted != nil || !strings.Contains(string(metrics), "holdfast_") {
		t.Errorf("the rush counted as orders of the service: %s", counted)
	}
	mustCall(t, http.StatusAccepted, http.MethodPost, url, `{"strategy":"lock","clients":64,"units":10000}`, admin...)
	api.Interrupt()
	if code := api.Wait(); code != 0 { // the code would be 1 if the rush continued
		t.Errorf("exit code %d: %s", code, api.Output())
	}
}

// lines are the lines that a stream sends.
type lines <-chan string

// streamed opens a stream of the console.
func streamed(t *testing.T, url string, headers ...string) lines {
	t.Helper()
	request, err := http.NewRequestWithContext(t.Context(), http.MethodGet, url, nil)
	if err != nil {
		t.Fatal(err)
	}
	for i := 0; i+1 < len(headers); i += 2 {
		request.Header.Set(headers[i], headers[i+1])
	}
	response, err := (&http.Client{Transport: client.Transport}).Do(request) // no timeout, because a stream does not end
	if err != nil || response.StatusCode != http.StatusOK {
		t.Fatal(response, err)
	}
	sent := make(chan string, 10_000)
	go func() {
		defer response.Body.Close()
		defer close(sent)
		for scanner := bufio.NewScanner(response.Body); scanner.Scan(); {
			sent <- scanner.Text()
		}
	}()
	return sent
}

// await waits for lines that contain the texts, one after the other.
func (l lines) await(t *testing.T, texts ...string) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), testenv.Patience)
	defer cancel()
	for _, text := range texts {
		for found := false; !found; {
			select {
			case line, open := <-l:
				if !open {
					t.Fatalf("the stream ended before %q", text)
				}
				found = strings.Contains(line, text)
			case <-ctx.Done():
				t.Fatalf("the stream did not send %q", text)
			}
		}
	}
}
