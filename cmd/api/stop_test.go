package main

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/holdfast-stock/holdfast/internal/httpapi"
	"github.com/holdfast-stock/holdfast/internal/testenv"
)

// waitNotReady waits until /readyz is 503.
func waitNotReady(t *testing.T, url string) {
	t.Helper()
	testenv.Await(t, url+" is not ready", func() bool {
		status, _, err := call(t.Context(), http.MethodGet, url+"/readyz", "")
		return err == nil && status == http.StatusServiceUnavailable
	})
}

// TestDrainDelay checks that after SIGTERM /readyz is 503 immediately, and that
// orders are accepted for --drain-delay, over connections that are then closed.
func TestDrainDelay(t *testing.T) {
	t.Parallel()
	t.Run("ItEnds", func(t *testing.T) {
		t.Parallel()
		const delay = time.Second
		api := serveHere(t, "--drain-delay", delay.String())
		start := time.Now()
		api.Interrupt()
		if code := api.Wait(); code != 0 || time.Since(start) < delay {
			t.Errorf("exit code %d after %v: %s", code, time.Since(start), api.Output())
		}
	})
	t.Run("ASecondSignalEndsIt", func(t *testing.T) {
		t.Parallel()
		api := startProcess(t, "--drain-delay", "1h")
		api.Interrupt()
		waitNotReady(t, api.URL())
		r, err := client.Post(api.URL()+"/orders", "application/json", strings.NewReader(orderBody("u", "10001", 1)))
		if err != nil {
			t.Fatal(err)
		}
		defer r.Body.Close()
		if r.StatusCode != http.StatusCreated || !r.Close {
			t.Errorf("%d, Connection: close is %v", r.StatusCode, r.Close)
		}
		api.Interrupt()
		if code := api.Wait(); code != 1 || !strings.Contains(api.Output(), "api: "+errSecondSignal.Error()) {
			t.Errorf("exit code %d: %s", code, api.Output())
		}
	})
}

// TestStoresAreClosed checks that serve, reconcile and drain close the stores when they end.
func TestStoresAreClosed(t *testing.T) {
	t.Parallel()
	server := testenv.OwnRedis(t)
	observer := redis.NewClient(&redis.Options{Addr: server.Addr()})
	t.Cleanup(func() { _ = observer.Close() })
	args := migrated(t, []string{"--db", testenv.SQLite(t), "--redis", server.URL()})
	for _, end := range []func(){
		func() {
			api := serveHere(t, args...)
			api.Interrupt()
			api.Wait()
		},
		func() { ran(t, 0, append([]string{"reconcile"}, args...), "") },
		func() { ran(t, 0, append([]string{"drain"}, args...), "none is left") },
	} {
		end()
		for range 100 { // Redis notices the ends of connections before later commands
			observer.Ping(t.Context())
		}
		if clients := observer.ClientList(t.Context()).Val(); strings.Count(clients, "\n") != 1 {
			t.Errorf("besides the observer there is still connected: %s", clients)
		}
	}
}

// pipeListener accepts the connections that a test sends it.
type pipeListener struct {
	conns  chan net.Conn
	closed chan struct{}
	close  func()
}

func newPipeListener() *pipeListener {
	l := &pipeListener{conns: make(chan net.Conn), closed: make(chan struct{})}
	l.close = sync.OnceFunc(func() { close(l.closed) })
	return l
}

func (l *pipeListener) Accept() (net.Conn, error) {
	select {
	case c := <-l.conns:
		return c, nil
	case <-l.closed:
		return nil, net.ErrClosed
	}
}

func (l *pipeListener) Close() error {
	l.close()
	return nil
}

func (l *pipeListener) Addr() net.Addr { return &net.TCPAddr{} }

// TestDrain_RequestOnItsWay checks that new connections are accepted for the delay. A request that
// arrives on an open connection just after that must be answered, and the connection must be closed
// in the end.
func TestDrain_RequestOnItsWay(t *testing.T) {
	t.Parallel()
	for _, delay := range []time.Duration{0, time.Minute} {
		synctest.Test(t, func(t *testing.T) {
			listener, served := newPipeListener(), make(chan error, 1)
			server := httpapi.NewServer(http.NotFoundHandler(), requestTimeout, slog.New(slog.DiscardHandler))
			go func() { served <- server.Serve(listener) }()
			conn, accepted := net.Pipe()
			defer conn.Close()
			listener.conns <- accepted
			answers := bufio.NewReader(conn)
			get := func() error {
				if _, err := io.WriteString(conn, "GET / HTTP/1.1\r\nHost: x\r\n\r\n"); err != nil {
					return err
				}
				r, err := http.ReadResponse(answers, nil)
				if err != nil {
					return err
				}
				defer r.Body.Close()
				_, err = io.Copy(io.Discard, r.Body)
				return err
			}
			if err := get(); err != nil {
				t.Fatal(err)
			}
			drained, begin := make(chan error, 1), time.Now()
			go func() { drained <- finishRequests(server, listener, served, delay, slog.New(slog.DiscardHandler)) }()
			if delay > 0 {
				<-listener.closed
			}
			synctest.Wait() // wait until all goroutines are blocked
			select {
			case <-listener.closed:
			default:
				t.Error("connections are still accepted")
			}
			if took := time.Since(begin); took != delay {
				t.Errorf("connections were accepted for %v, want %v", took, delay)
			}
			if err := get(); err != nil {
				t.Errorf("delay %v: a request on an open connection: %v", delay, err)
			}
			if err := <-drained; err != nil {
				t.Error(err)
			}
			if err := get(); err == nil {
				t.Error("the connection is still open")
			}
		})
	}
}

// TestEndWithin checks that endWithin returns in time if its function does not.
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
			if err := endWithin(t.Context(), limit, func() error { return want }); err != want { //nolint:errorlint // the identical error is expected
				t.Errorf("%v, want %v", err, want)
			}
			if err := endWithin(ctx, limit, func() error { time.Sleep(limit - 1); return want }); err != want { //nolint:errorlint // the identical error is expected
				t.Errorf("%v, want %v", err, want)
			}
		}
	})
}

// TestFinishRequests_InTime stops a server with a request that does not end by itself. The request
// is cut off after answerTimeout, which leaves time to close the stores.
func TestFinishRequests_InTime(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		client, side := net.Pipe()
		listener := newPipeListener()
		began, ended := make(chan struct{}), make(chan struct{})
		server := &http.Server{ReadHeaderTimeout: time.Hour, Handler: http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
			close(began)
			<-r.Context().Done()
			close(ended)
		})}
		served := make(chan error, 1)
		go func() { served <- server.Serve(listener) }()
		listener.conns <- side
		if _, err := io.WriteString(client, "GET / HTTP/1.1\r\nHost: host\r\n\r\n"); err != nil {
			t.Fatal(err)
		}
		<-began
		var stopping sync.WaitGroup
		start, took := time.Now(), time.Duration(0)
		var log bytes.Buffer
		stopping.Go(func() {
			if err := finishRequests(server, listener, served, 0, slog.New(slog.NewTextHandler(&log, nil))); !errors.Is(err, errCutOff) {
				t.Errorf("%v, so the exit status does not show that a request was cut off", err)
			}
			took = time.Since(start)
		})
		time.Sleep(stopTimeout)
		synctest.Wait()
		select {
		case <-ended:
		default:
			t.Error("the request was not cut off")
		}
		client.Close() // ends the request in any case
		stopping.Wait()
		if took != answerTimeout {
			t.Errorf("stopped after %v, want %v", took, answerTimeout)
		}
		if text := log.String(); !strings.Contains(text, "some requests were cut off") || strings.Contains(text, "msg=drained") {
			t.Errorf("the log is\n%s", text)
		}
	})
}

// TestFinishRequests_ServerFails lets the server fail before --drain-delay has passed.
func TestFinishRequests_ServerFails(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		served, start := make(chan error, 1), time.Now()
		served <- errNotReady
		err := finishRequests(new(http.Server), newPipeListener(), served, time.Hour, slog.New(slog.DiscardHandler))
		if err != errNotReady || time.Since(start) != 0 { //nolint:errorlint // the identical error is expected
			t.Errorf("%v after %v", err, time.Since(start))
		}
	})
}

// checkNotReady checks that /readyz is 503 while a store does not answer.
func checkNotReady(t *testing.T, url string) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), testenv.Patience)
	defer cancel()
	if status, _, err := call(ctx, http.MethodGet, url+"/readyz", ""); err != nil || status != http.StatusServiceUnavailable {
		t.Errorf("/readyz with a stopped store: %d, %v", status, err)
	}
}

// TestRedisUnavailable first stops Redis and then kills it. /readyz must be 503, orders must be
// answered 503, and the log must count the repeated warnings instead of writing each one.
func TestRedisUnavailable(t *testing.T) {
	t.Parallel()
	redis := testenv.OwnRedis(t)
	api := serveHere(t, migrated(t, []string{"--db", testenv.MariaDB(t), "--redis", redis.URL()})...)
	setStock(t, api.URL(), "a", 1)
	redis.Stop()
	checkNotReady(t, api.URL())
	redis.Cont()
	redis.Kill()
	before, began := strings.Count(api.Output(), `"level":"WARN"`), time.Now()
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
	// Each kind of warning is written once more every ten seconds.
	most := 20 * (1 + int(time.Since(began)/(10*time.Second)))
	if lines := strings.Count(log, `"level":"WARN"`) - before; lines > most {
		t.Errorf("%d warnings for 800 refusals, want at most %d", lines, most)
	}
	for _, says := range []string{"refusing requests as", `"count":`, `"since":`} {
		if !strings.Contains(log, says) {
			t.Errorf("the log does not contain %s:\n%s", says, log)
		}
	}
}

// awaitGoOn reads "100 Continue". When the service sends it, it has read the headers and begins to
// read the body.
func awaitGoOn(t *testing.T, conn net.Conn) {
	t.Helper()
	const goOn = "HTTP/1.1 100 Continue\r\n\r\n"
	said := make([]byte, len(goOn))
	if _, err := io.ReadFull(conn, said); err != nil || string(said) != goOn {
		t.Fatalf("%q: %v", said, err)
	}
}
