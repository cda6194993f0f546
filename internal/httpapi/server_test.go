package httpapi

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/holdfast-stock/holdfast/internal/testenv"
)

// serve starts the API on a free port and returns its address.
func serve(t *testing.T, change func(*http.Server)) string {
	t.Helper()
	s := NewServer(newAPI(t, new(fakeOrders)), time.Second, slog.New(slog.DiscardHandler))
	if change != nil {
		change(s)
	}
	l := testenv.Listen(t)
	done := make(chan error, 1)
	go func() { done <- s.Serve(l) }()
	t.Cleanup(func() {
		_ = s.Close()
		if err := <-done; !errors.Is(err, http.ErrServerClosed) {
			t.Error(err)
		}
	})
	return l.Addr().String()
}

func dial(t *testing.T, address string) net.Conn {
	t.Helper()
	conn, err := net.Dial("tcp", address)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = conn.Close() })
	if err := conn.SetDeadline(time.Now().Add(testenv.Patience)); err != nil {
		t.Fatal(err)
	}
	return conn
}

func TestServerLimits(t *testing.T) {
	s := NewServer(http.NotFoundHandler(), 10*time.Second, slog.New(slog.DiscardHandler))
	for name, d := range map[string]time.Duration{
		"ReadHeaderTimeout": s.ReadHeaderTimeout, "ReadTimeout": s.ReadTimeout,
		"WriteTimeout": s.WriteTimeout, "IdleTimeout": s.IdleTimeout,
	} {
		if d <= 0 || d > 2*time.Minute {
			t.Errorf("%s is %v", name, d)
		}
	}
	if s.WriteTimeout <= s.ReadTimeout+10*time.Second {
		t.Errorf("WriteTimeout %v leaves the longest request no time for its answer", s.WriteTimeout)
	}
}

// TestServerLog checks that failed handshakes, which anybody can cause, are logged at debug level.
func TestServerLog(t *testing.T) {
	for line, level := range map[string]string{
		"http: TLS handshake error from 192.0.2.1:1024: EOF": "DEBUG",
		"http: superfluous response.WriteHeader call":        "WARN",
	} {
		var log strings.Builder
		s := NewServer(http.NotFoundHandler(), time.Second, slog.New(slog.NewTextHandler(&log, &slog.HandlerOptions{Level: slog.LevelDebug})))
		s.ErrorLog.Print(line)
		if got := log.String(); !strings.Contains(got, fmt.Sprintf("level=%s msg=%q", level, line)) {
			t.Errorf("%s is logged as %s", line, got)
		}
	}
}

// partOfAnOrder returns a request with the Content-Length of the whole body but
// only the given number of its bytes.
func partOfAnOrder(sent int) string {
	return fmt.Sprintf("POST /orders HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n%s", len(oneLine), oneLine[:sent])
}

// TestSlowBody checks that an incomplete body is answered 408, and not 400, so that the client may
// send the request again.
func TestSlowBody(t *testing.T) {
	const limit = 300 * time.Millisecond
	address := serve(t, func(s *http.Server) { s.ReadTimeout = limit })
	for _, tt := range []struct {
		name, request string
		hangUp        bool
	}{
		{"too late", partOfAnOrder(10), false},
		{"no byte of it", partOfAnOrder(0), false},
		{"too late, in chunks", "POST /orders HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\nTransfer-Encoding: chunked\r\n\r\n1\r\n{\r\n", false},
		{"cut off", partOfAnOrder(10), true},
		{"cut off, in chunks", "POST /orders HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\nTransfer-Encoding: chunked\r\n\r\n5\r\n{", true},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			start := time.Now()
			conn := dial(t, address)
			if _, err := io.WriteString(conn, tt.request); err != nil {
				t.Fatal(err)
			}
			if tt.hangUp {
				if err := conn.(*net.TCPConn).CloseWrite(); err != nil {
					t.Fatal(err)
				}
			}
			r := bufio.NewReader(conn)
			response, err := http.ReadResponse(r, nil)
			if err != nil {
				t.Fatal(err)
			}
			body, _ := io.ReadAll(response.Body)
			if response.StatusCode != http.StatusRequestTimeout || !strings.Contains(string(body), `"/problems/timeout"`) {
				t.Errorf("%d %s", response.StatusCode, body)
			}
			if response.Header.Get("Retry-After") != "1" || !response.Close {
				t.Errorf("the answer does not ask for a retry over a new connection: %v", response.Header)
			}
			if _, err := r.ReadByte(); err == nil {
				t.Error("the connection stays open")
			}
			if took := time.Since(start); !tt.hangUp && took < limit {
				t.Errorf("cut off after %v, want %v", took, limit)
			}
		})
	}
}

// TestDraining checks that the service still answers while it stops, and that every
// answer closes its connection.
func TestDraining(t *testing.T) {
	h := newAPI(t, new(fakeOrders), func(c *Config) { c.Draining = func() bool { return true } })
	for _, tt := range []struct {
		call
		status int
	}{
		{call{method: "POST", path: "/orders", body: oneLine}, 201},
		{call{method: "GET", path: "/stock/1"}, 200},
		{call{method: "GET", path: "/readyz"}, 503},
		{call{method: "GET", path: "/nowhere"}, 404},
	} {
		if rec := do(h, tt.call); rec.Code != tt.status || rec.Header().Get("Connection") != "close" {
			t.Errorf("%s %s: %d %v", tt.method, tt.path, rec.Code, rec.Header())
		}
	}
	if rec := do(newAPI(t, new(fakeOrders)), call{method: "GET", path: "/stock/1"}); rec.Header().Get("Connection") != "" {
		t.Errorf("not draining: %v", rec.Header())
	}
}

func TestLargeHeaders(t *testing.T) {
	address := serve(t, nil)
	ask := func(size int) int {
		conn := dial(t, address)
		if _, err := fmt.Fprintf(conn, "GET /healthz HTTP/1.1\r\nHost: x\r\nX-Large: %s\r\n\r\n", strings.Repeat("a", size)); err != nil {
			t.Fatal(err)
		}
		response, err := http.ReadResponse(bufio.NewReader(conn), nil)
		if err != nil {
			t.Fatal(err)
		}
		return response.StatusCode
	}
	if got := ask(15 << 10); got != 200 {
		t.Errorf("15 KiB of headers: %d", got)
	}
	if got := ask(32 << 10); got != http.StatusRequestHeaderFieldsTooLarge {
		t.Errorf("32 KiB of headers: %d", got)
	}
}

// TestWire sends requests that an HTTP client library does not send.
func TestWire(t *testing.T) {
	chunks := func(n int) string {
		return "POST /orders HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\nTransfer-Encoding: chunked\r\n\r\n" +
			fmt.Sprintf("%x\r\n%s\r\n0\r\n\r\n", n, padded(n))
	}
	post := "POST /orders HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\n"
	address := serve(t, nil)
	for _, tt := range []struct {
		name, request string
		status        int
		problem       string
	}{
		{"a chunked body", chunks(64 << 10), 201, ""},
		{"a chunked body too large", chunks(64<<10 + 1), 413, "too-large"},
		{"a Content-Length too large", post + "Content-Length: 100000\r\nExpect: 100-continue\r\n\r\n", 413, "too-large"},
		{"broken chunks", post + "Transfer-Encoding: chunked\r\n\r\nzz\r\n", 400, "malformed"},
		{"no length and no chunks", post + "\r\n", 400, "malformed"},
		{"OPTIONS of the whole server", "OPTIONS * HTTP/1.1\r\nHost: x\r\n\r\n", 404, "not-found"},
		{"a whole URL", "GET http://x/healthz HTTP/1.1\r\nHost: x\r\n\r\n", 200, ""},
		{"a tunnel", "CONNECT x:1 HTTP/1.1\r\nHost: x:1\r\n\r\n", 404, "not-found"},
		{"two slashes", "GET //healthz HTTP/1.1\r\nHost: x\r\n\r\n", 404, "not-found"},
		{"a path with dots", "GET /stock/../healthz HTTP/1.1\r\nHost: x\r\n\r\n", 404, "not-found"},
		{"no SKU", "GET /stock//audit HTTP/1.1\r\nHost: x\r\n\r\n", 404, "not-found"},
		{"two lengths", post + "Content-Length: 1\r\nContent-Length: 2\r\n\r\n{", 400, ""},
	} {
		t.Run(tt.name, func(t *testing.T) {
			conn := dial(t, address)
			if _, err := io.WriteString(conn, tt.request); err != nil {
				t.Fatal(err)
			}
			r := bufio.NewReader(conn)
			response, err := http.ReadResponse(r, nil)
			if err != nil {
				t.Fatal(err)
			}
			body, err := io.ReadAll(response.Body)
			if err != nil {
				t.Fatal(err)
			}
			if response.StatusCode != tt.status {
				t.Errorf("%d %s, want %d", response.StatusCode, body, tt.status)
			}
			if tt.problem != "" && !strings.Contains(string(body), `"/problems/`+tt.problem+`"`) {
				t.Errorf("want %s: %s", tt.problem, body)
			}
		})
	}
	t.Run("HEAD has no body", func(t *testing.T) {
		conn := dial(t, address)
		if _, err := io.WriteString(conn, "HEAD /healthz HTTP/1.1\r\nHost: x\r\n\r\nGET /healthz HTTP/1.1\r\nHost: x\r\n\r\n"); err != nil {
			t.Fatal(err)
		}
		r := bufio.NewReader(conn)
		for _, want := range []struct {
			method string
			status int
		}{{"HEAD", 405}, {"GET", 200}} {
			response, err := http.ReadResponse(r, &http.Request{Method: want.method})
			if err != nil {
				t.Fatal(err)
			}
			_, _ = io.Copy(io.Discard, response.Body)
			if response.StatusCode != want.status {
				t.Errorf("%s: %d", want.method, response.StatusCode)
			}
		}
	})
}
