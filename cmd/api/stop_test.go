package main

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"net"
	"net/http"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/holdfast-stock/holdfast/internal/testenv"
)

// slack is what a busy machine may add to a time that is promised.
const slack = time.Second

// notReady waits until /readyz is 503.
func notReady(t *testing.T, url string, within time.Duration) {
	t.Helper()
	deadline := time.Now().Add(within)
	for {
		status, _, err := call(t.Context(), http.MethodGet, url+"/readyz", "")
		if err == nil && status == http.StatusServiceUnavailable {
			return
		}
		if time.Now().After(deadline) {
			t.Fatalf("/readyz of %s after %v: %d, %v", url, within, status, err)
		}
		time.Sleep(5 * time.Millisecond)
	}
}

// TestDrainDelay: after SIGTERM /readyz is 503 at once, while orders are
// accepted for --drain-delay, over connections that are not kept.
func TestDrainDelay(t *testing.T) {
	t.Parallel()
	t.Run("ItEnds", func(t *testing.T) {
		t.Parallel()
		const delay = 3 * time.Second
		api := testenv.API(t, "--drain-delay", delay.String())
		start := time.Now()
		api.Interrupt()
		notReady(t, api.URL(), delay)
		r, err := client.Post(api.URL()+"/orders", "application/json", strings.NewReader(orderBody("u", "10001", 1)))
		if err != nil {
			t.Fatalf("%v after SIGTERM: %v", time.Since(start), err)
		}
		defer r.Body.Close()
		if r.StatusCode != http.StatusCreated || !r.Close {
			t.Errorf("%d, the connection is closed: %v", r.StatusCode, r.Close)
		}
		if code := api.Wait(); code != 0 || time.Since(start) < delay {
			t.Errorf("exit code %d after %v: %s", code, time.Since(start), api.Output())
		}
	})
	t.Run("ASecondSignalEndsIt", func(t *testing.T) {
		t.Parallel()
		api := testenv.API(t, "--drain-delay", "1h")
		api.Interrupt()
		notReady(t, api.URL(), 5*time.Second)
		mustCall(t, http.StatusCreated, http.MethodPost, api.URL()+"/orders", orderBody("u", "10001", 1))
		start := time.Now()
		api.Interrupt()
		if code := api.Wait(); code != 1 || time.Since(start) > 5*time.Second {
			t.Errorf("exit code %d after %v", code, time.Since(start))
		}
	})
}

// TestEndWithin: what does not end keeps nobody waiting.
func TestEndWithin(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		const limit = 15 * time.Second
		ctx, stop := context.WithCancel(t.Context())
		forever := make(chan struct{})
		defer close(forever)
		start := time.Now()
		go func() {
			time.Sleep(time.Hour)
			stop()
		}()
		if err := endWithin(ctx, limit, func() error { <-forever; return nil }); err == nil || time.Since(start) != time.Hour+limit {
			t.Errorf("%v after %v", err, time.Since(start))
		}
		for _, want := range []error{nil, errNotReady} {
			if err := endWithin(t.Context(), limit, func() error { return want }); err != want { //nolint:errorlint // the same one
				t.Errorf("%v, want %v", err, want)
			}
			if err := endWithin(ctx, limit, func() error { time.Sleep(limit - 1); return want }); err != want { //nolint:errorlint // the same one
				t.Errorf("%v, want %v", err, want)
			}
		}
	})
}

// TestFrozenDatabase: while the database is stopped, /readyz is 503 within 2 s,
// and SIGTERM ends the service within 15 s.
func TestFrozenDatabase(t *testing.T) {
	t.Parallel()
	for _, d := range []struct {
		name string
		own  func(t testenv.T, args ...string) *testenv.DatabaseServer
	}{{"MariaDB", testenv.OwnMariaDB}, {"PostgreSQL", testenv.OwnPostgres}} {
		t.Run(d.name, func(t *testing.T) {
			t.Parallel()
			database := d.own(t)
			api := testenv.API(t, migrated(t, []string{"--db", database.URL(), "--redis", testenv.Redis(t)})...)
			lay(t, api.URL(), "hot", 100_000)
			c := rush(t.Context(), 16, "hot", api.URL())
			c.whileSelling(t, 100)
			database.Stop()
			defer database.Cont()
			readyFalls(t, api.URL())
			start := time.Now()
			api.Interrupt()
			api.Wait() // 1 if something was left to recovery
			if log := api.Output(); strings.Contains(log, "WARN slow statement") {
				t.Errorf("slow statements are logged as text, beside the service's log: %s", log)
			}
			if took := time.Since(start); took > 15*time.Second+slack {
				t.Errorf("ended %v after SIGTERM: %s", took, api.Output())
			}
		})
	}
}

// readyFalls asks /readyz, which must not answer 200, nor take its time.
func readyFalls(t *testing.T, url string) {
	t.Helper()
	start := time.Now()
	status, _, err := call(t.Context(), http.MethodGet, url+"/readyz", "")
	if took := time.Since(start); err != nil || status != http.StatusServiceUnavailable || took > 2*time.Second+slack {
		t.Errorf("/readyz over a stopped store: %d, %v after %v", status, err, took)
	}
}

// TestAwayRedis: while Redis is stopped, /readyz is 503 within 2 s. While it
// is gone, requests are refused, and the log tells that once and counts.
func TestAwayRedis(t *testing.T) {
	t.Parallel()
	redis := testenv.OwnRedis(t)
	api := testenv.API(t, migrated(t, []string{"--db", testenv.MariaDB(t), "--redis", redis.URL()})...)
	lay(t, api.URL(), "a", 1)
	redis.Stop()
	readyFalls(t, api.URL())
	redis.Cont()
	redis.Kill()
	before := strings.Count(api.Output(), `"level":"WARN"`)
	var all sync.WaitGroup
	for n := range 8 {
		all.Go(func() {
			for range 100 {
				status, _, err := call(t.Context(), http.MethodPost, api.URL()+"/orders", orderBody(fmt.Sprint("u-", n), "a", 1))
				if err != nil || status != http.StatusServiceUnavailable {
					t.Errorf("without Redis: %d, %v", status, err)
					return
				}
			}
		})
	}
	all.Wait()
	api.Interrupt()
	if code := api.Wait(); code != 0 {
		t.Errorf("exit code %d", code)
	}
	log := api.Output()
	if lines := strings.Count(log, `"level":"WARN"`) - before; lines > 20 {
		t.Errorf("%d warnings of 800 refusals", lines)
	}
	for _, says := range []string{"refusing requests as", `"count":`, `"since":`} {
		if !strings.Contains(log, says) {
			t.Errorf("the log does not say %s:\n%s", says, log)
		}
	}
}

// TestSuperseded: an instance whose stock another strategy has taken over says
// so, and cuts nothing.
func TestSuperseded(t *testing.T) {
	t.Parallel()
	flags := migrated(t, mariaDBAndRedis.flags(t))
	old := testenv.API(t, append([]string{"--strategy", "lua"}, flags...)...)
	lay(t, old.URL(), "a", 2)
	next := testenv.API(t, append([]string{"--strategy", "merged"}, flags...)...)
	mustCall(t, http.StatusCreated, http.MethodPost, next.URL()+"/orders", orderBody("u", "a", 1))
	for _, ask := range []struct{ method, path, body string }{
		{http.MethodPost, "/orders", orderBody("u", "a", 1)},
		{http.MethodPut, "/stock/a", `{"kind":"product","total":3}`},
		{http.MethodGet, "/readyz", ""},
	} {
		status, answer, err := call(t.Context(), ask.method, old.URL()+ask.path, ask.body)
		if err != nil || status != http.StatusServiceUnavailable || !strings.Contains(string(answer), `"/problems/superseded"`) {
			t.Errorf("%s %s: %d %s %v", ask.method, ask.path, status, answer, err)
		}
	}
}

// TestPausedProcess: a body that arrived while the process was stopped is read,
// although it is past its deadline when the process goes on.
func TestPausedProcess(t *testing.T) {
	t.Parallel()
	const clients = 20
	api := testenv.API(t)
	body := orderBody("u", "10001", 1)
	var conns []net.Conn
	for range clients {
		conn, err := (&net.Dialer{}).DialContext(t.Context(), "tcp", strings.TrimPrefix(api.URL(), "http://"))
		if err != nil {
			t.Fatal(err)
		}
		defer conn.Close()
		conns = append(conns, conn)
		if _, err := fmt.Fprintf(conn, "POST /orders HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n%s", len(body), body[:10]); err != nil {
			t.Fatal(err)
		}
	}
	// All of them are being read when this is answered.
	mustCall(t, http.StatusOK, http.MethodGet, api.URL()+"/healthz", "")
	api.Stop()
	for _, conn := range conns {
		if _, err := io.WriteString(conn, body[10:]); err != nil {
			t.Fatal(err)
		}
	}
	ctx, cancel := context.WithTimeout(t.Context(), 10500*time.Millisecond) // longer than a body may take
	defer cancel()
	<-ctx.Done()
	api.Cont()
	for _, conn := range conns {
		r, err := http.ReadResponse(bufio.NewReader(conn), nil)
		if err != nil {
			t.Error(err)
			continue
		}
		answer, _ := io.ReadAll(r.Body)
		r.Body.Close()
		if r.StatusCode != http.StatusCreated {
			t.Errorf("%d %s", r.StatusCode, answer)
		}
	}
}
