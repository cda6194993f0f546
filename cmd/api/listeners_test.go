package main

import (
	"bufio"
	"bytes"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"encoding/json"
	"encoding/pem"
	"io"
	"log/slog"
	"math/big"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/go-jose/go-jose/v4"
	"github.com/go-jose/go-jose/v4/jwt"

	"github.com/holdfast-stock/holdfast/internal/store"
	"github.com/holdfast-stock/holdfast/internal/testenv"
)

const testToken = "0123456789abcdef"

// issueCertificate writes a certificate of 127.0.0.1 and its key, and returns the
// certificate.
func issueCertificate(t *testing.T, certFile, keyFile string, serial int64) *x509.Certificate {
	t.Helper()
	private, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	template := &x509.Certificate{
		SerialNumber: big.NewInt(serial), IPAddresses: []net.IP{net.IPv4(127, 0, 0, 1)},
		NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(time.Hour),
	}
	der, err := x509.CreateCertificate(rand.Reader, template, template, private.Public(), private)
	if err != nil {
		t.Fatal(err)
	}
	secret, err := x509.MarshalPKCS8PrivateKey(private)
	if err != nil {
		t.Fatal(err)
	}
	for name, block := range map[string]*pem.Block{certFile: {Type: "CERTIFICATE", Bytes: der}, keyFile: {Type: "PRIVATE KEY", Bytes: secret}} {
		if err := os.WriteFile(name, pem.EncodeToMemory(block), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	cert, err := x509.ParseCertificate(der)
	if err != nil {
		t.Fatal(err)
	}
	return cert
}

// trust returns the settings of a client that trusts one certificate.
func trust(cert *x509.Certificate) *tls.Config {
	roots := x509.NewCertPool()
	roots.AddCert(cert)
	return &tls.Config{RootCAs: roots}
}

// trusting returns a client that trusts one certificate. Its connections stay open.
func trusting(t *testing.T, cert *x509.Certificate, http2 bool) *http.Client {
	transport := &http.Transport{TLSClientConfig: trust(cert), ForceAttemptHTTP2: http2}
	t.Cleanup(transport.CloseIdleConnections)
	return &http.Client{Transport: transport, Timeout: testenv.Patience}
}

// keptConnection sends all requests of a client over one connection of HTTP/1.1. A Transport opens
// another one if it was slow to notice that it had written a request.
type keptConnection struct {
	*tls.Conn
	answers *bufio.Reader
}

func (c keptConnection) RoundTrip(r *http.Request) (*http.Response, error) {
	if err := r.Write(c); err != nil {
		return nil, err
	}
	return http.ReadResponse(c.answers, r)
}

// keepConnection returns a client with one connection to the address, which trusts one certificate.
func keepConnection(t *testing.T, address string, cert *x509.Certificate) *http.Client {
	t.Helper()
	conn, err := tls.Dial("tcp", address, trust(cert))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = conn.Close() })
	return &http.Client{Transport: keptConnection{conn, bufio.NewReader(conn)}}
}

// TestTLS replaces the certificate of a running service with a valid one and a broken one.
// Connections must stay open, and handshakes must never fail.
func TestTLS(t *testing.T) {
	t.Parallel()
	folder := t.TempDir()
	certFile, keyFile := filepath.Join(folder, "cert.pem"), filepath.Join(folder, "key.pem")
	first := issueCertificate(t, certFile, keyFile, 1)
	ops := net.JoinHostPort("127.0.0.1", strconv.Itoa(testenv.Port(t)))
	api := startProcess(t, "--tls-cert", certFile, "--tls-key", keyFile, "--ops-listen", ops)
	if !strings.HasPrefix(api.URL(), "https://") {
		t.Fatalf("the log says %s", api.URL())
	}
	ask := func(client *http.Client, method, url, body string) (testenv.Answer, error) {
		return testenv.Call(t.Context(), client, method, url, body)
	}
	placed := func(what string, client *http.Client, proto int) {
		t.Helper()
		response, err := ask(client, "POST", api.URL()+"/orders", orderBody("u-1", "10001", 1))
		if err != nil || response.Status != http.StatusCreated || response.Proto != proto {
			t.Errorf("%s: %v, %v", what, response.Status, err)
		}
	}
	address := strings.TrimPrefix(api.URL(), "https://")
	one, two := keepConnection(t, address, first), trusting(t, first, true)
	placed("HTTP/1.1", one, 1)
	placed("HTTP/2", two, 2)
	// The rules for loopback also apply to TLS.
	if response, err := ask(two, "PUT", api.URL()+"/stock/a", `{"kind":"product","total":1}`); err != nil || response.Status != http.StatusCreated {
		t.Errorf("an administrator on this machine: %v, %v", response.Status, err)
	}
	r, err := http.NewRequestWithContext(t.Context(), "PUT", api.URL()+"/stock/a", strings.NewReader(`{"kind":"product","total":1}`))
	if err != nil {
		t.Fatal(err)
	}
	r.Host = "evil.test"
	r.Header.Set("Content-Type", "application/json")
	if response, err := two.Do(r); err != nil || response.StatusCode != http.StatusUnauthorized {
		t.Errorf("an administrator by another name: %v, %v", response, err)
	} else {
		_ = response.Body.Close()
	}
	if response, err := ask(trusting(t, first, false), "GET", "https://"+ops+"/metrics", ""); err != nil || response.Status != http.StatusOK {
		t.Errorf("operators: %v, %v", response.Status, err)
	}
	old := &tls.Config{InsecureSkipVerify: true, MaxVersion: tls.VersionTLS11}
	if conn, err := tls.Dial("tcp", address, old); err == nil {
		_ = conn.Close()
		t.Error("TLS 1.1 is accepted")
	}

	beside := examined(t, 1, "--listen", address, "--tls-cert", certFile, "--tls-key", keyFile)
	expect(t, beside, store.Problem, "listen", "another instance serves there") // the other instance has embedded stores
	expect(t, beside, store.OK, "security", "is valid until")
	broken := examined(t, 1, "--tls-cert", certFile, "--tls-key", certFile,
		"--auth", "jwt", "--admin-token", testToken, "--jwt-jwks", keyFile)
	expect(t, broken, store.Problem, "security", "--tls-key")
	expect(t, broken, store.Problem, "security", "--jwt-jwks")

	second := issueCertificate(t, certFile, keyFile, 2)
	api.Signal(syscall.SIGHUP)
	testenv.AwaitSuccess(t, "the new certificate is used", func() error {
		_, err := ask(trusting(t, second, false), "GET", api.URL()+"/healthz", "")
		return err
	})
	placed("a connection with the old certificate, HTTP/1.1", one, 1)
	placed("a connection with the old certificate, HTTP/2", two, 2)
	if err := os.WriteFile(certFile, []byte("broken"), 0o600); err != nil {
		t.Fatal(err)
	}
	api.Signal(syscall.SIGHUP)
	testenv.Await(t, "the log has the broken certificate", func() bool { return strings.Contains(api.Output(), "the last one stays in use") })
	placed("a new connection beside a broken certificate", trusting(t, second, true), 2)
	api.Interrupt()
	if code := api.Wait(); code != 0 {
		t.Errorf("exit code %d: %s", code, api.Output())
	}
}

// TestHangUp sends SIGHUP to a service with a certificate before it serves. Without a handler, the
// signal would end this process.
func TestHangUp(t *testing.T) {
	folder := t.TempDir()
	a := serverFlags{Listen: "127.0.0.1:0", TLSCert: filepath.Join(folder, "cert.pem"), TLSKey: filepath.Join(folder, "key.pem")}
	issueCertificate(t, a.TLSCert, a.TLSKey, 1)
	d, err := openListeners(t.Context(), a, slog.New(slog.DiscardHandler))
	if err != nil {
		t.Fatal(err)
	}
	defer d.close()
	if err := syscall.Kill(os.Getpid(), syscall.SIGHUP); err != nil {
		t.Fatal(err)
	}
	testenv.Receive(t, "the signal arrives", d.hangUp)
}

// TestOpsListener checks that the operators' listener shows the draining of the API and closes
// after it. Metrics must be on that listener only.
func TestOpsListener(t *testing.T) {
	t.Parallel()
	ops := net.JoinHostPort("127.0.0.1", strconv.Itoa(testenv.Port(t)))
	api := serveHere(t, "--ops-listen", ops, "--drain-delay", "1s", "--admin-token", testToken)
	metrics := string(mustCall(t, http.StatusOK, http.MethodGet, "http://"+ops+"/metrics", ""))
	if !strings.Contains(metrics, "holdfast_gate_in_flight") {
		t.Errorf("the metrics are %.200s", metrics)
	}
	waitReady(t, "http://"+ops)
	mustCall(t, http.StatusOK, http.MethodGet, "http://"+ops+"/debug/pprof/heap?debug=1", "")
	mustCall(t, http.StatusNotFound, http.MethodGet, "http://"+ops+"/stock", "")
	mustCall(t, http.StatusNotFound, http.MethodGet, api.URL()+"/metrics", "")
	mustCall(t, http.StatusNotFound, http.MethodGet, api.URL()+"/debug/pprof/heap", "", "Authorization", "Bearer "+testToken)

	beside := examined(t, 0, "--listen", strings.TrimPrefix(api.URL(), "http://"), "--ops-listen", ops, "--db", "sqlite://"+filepath.Join(t.TempDir(), "ledger.db"), "--migrate")
	expect(t, beside, store.Warning, "listen", "an instance serves on "+ops)

	// A request stays under way until the test sends the rest of its body.
	body := orderBody("u-1", "10001", 1)
	conn, err := net.Dial("tcp", strings.TrimPrefix(api.URL(), "http://"))
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	if _, err := io.WriteString(conn, "POST /orders HTTP/1.1\r\nHost: x\r\nExpect: 100-continue\r\nContent-Type: application/json\r\nContent-Length: "+strconv.Itoa(len(body))+"\r\n\r\n"+body[:10]); err != nil {
		t.Fatal(err)
	}
	awaitGoOn(t, conn)
	api.Interrupt()
	waitNotReady(t, "http://"+ops)
	testenv.Await(t, "the API accepts nothing more", func() bool {
		conn, err := net.Dial("tcp", strings.TrimPrefix(api.URL(), "http://"))
		if err == nil {
			_ = conn.Close()
		}
		return err != nil
	})
	mustCall(t, http.StatusServiceUnavailable, http.MethodGet, "http://"+ops+"/readyz", "")
	mustCall(t, http.StatusOK, http.MethodGet, "http://"+ops+"/healthz", "")
	if _, err := io.WriteString(conn, body[10:]); err != nil {
		t.Fatal(err)
	}
	answer := make([]byte, 64)
	if n, err := io.ReadAtLeast(conn, answer, 12); err != nil || !bytes.HasPrefix(answer, []byte("HTTP/1.1 201")) {
		t.Errorf("the request under way is answered %q, %v", answer[:n], err)
	}
	if code := api.Wait(); code != 0 {
		t.Errorf("exit code %d: %s", code, api.Output())
	}
}

// issuerKeys returns a new key of an issuer of tokens, and the key set with its public
// part.
func issuerKeys(t *testing.T, id string) (private *ecdsa.PrivateKey, keys []byte) {
	t.Helper()
	private, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	keys, err = json.Marshal(jose.JSONWebKeySet{Keys: []jose.JSONWebKey{{Key: private.Public(), KeyID: id}}})
	if err != nil {
		t.Fatal(err)
	}
	return private, keys
}

// TestBuyersByToken checks that the flags of tokens and limits reach the API. It uses a buyer with
// a key of the issuer, another buyer, one above the rate limit, and clients behind a trusted proxy.
// Operators are served on an address that other machines can reach, where profiles need the token.
func TestBuyersByToken(t *testing.T) {
	t.Parallel()
	private, keys := issuerKeys(t, "k")
	file := filepath.Join(t.TempDir(), "keys.json")
	if err := os.WriteFile(file, keys, 0o600); err != nil {
		t.Fatal(err)
	}
	signer, err := jose.NewSigner(jose.SigningKey{Algorithm: jose.ES256, Key: jose.JSONWebKey{Key: private, KeyID: "k"}}, nil)
	if err != nil {
		t.Fatal(err)
	}
	bearer := func(buyer, issuer, audience string) string {
		t.Helper()
		text, err := jwt.Signed(signer).Claims(map[string]any{"sub": buyer, "iss": issuer, "aud": audience, "exp": time.Now().Add(time.Hour).Unix()}).Serialize()
		if err != nil {
			t.Fatal(err)
		}
		return "Bearer " + text
	}
	port := strconv.Itoa(testenv.Port(t))
	api := serveHere(t, "--auth", "jwt", "--admin-token", testToken, "--jwt-jwks", file, "--jwt-issuer", "login", "--jwt-audience", "shop", "--rate-limit", "1", "--rate-burst", "5",
		"--trusted-proxies", "127.0.0.1", "--ops-listen", "0.0.0.0:"+port)
	ops := "http://127.0.0.1:" + port
	mustCall(t, http.StatusOK, http.MethodGet, ops+"/metrics", "")
	mustCall(t, http.StatusUnauthorized, http.MethodGet, ops+"/debug/pprof/heap?debug=1", "")
	mustCall(t, http.StatusOK, http.MethodGet, ops+"/debug/pprof/heap?debug=1", "", "Authorization", "Bearer "+testToken)
	orders, mine, theirs := api.URL()+"/orders", bearer("u-1", "login", "shop"), bearer("u-2", "login", "shop")
	answer := mustCall(t, http.StatusCreated, http.MethodPost, orders, orderBody("u-1", "10001", 1), "Authorization", mine)
	var o struct{ ID string }
	if err := json.Unmarshal(answer, &o); err != nil {
		t.Fatal(err)
	}
	mustCall(t, http.StatusForbidden, http.MethodPost, orders, orderBody("u-1", "10001", 1), "Authorization", theirs)
	mustCall(t, http.StatusUnauthorized, http.MethodPost, orders, orderBody("u-1", "10001", 1), "Authorization", bearer("u-1", "login", "bank"))
	mustCall(t, http.StatusUnauthorized, http.MethodPost, orders, orderBody("u-1", "10001", 1), "Authorization", bearer("u-1", "bank", "shop"))
	mustCall(t, http.StatusNotFound, http.MethodGet, orders+"/"+o.ID, "", "Authorization", theirs)
	mustCall(t, http.StatusNotFound, http.MethodPost, orders+"/"+o.ID+"/cancel", "", "Authorization", theirs)
	mustCall(t, http.StatusUnauthorized, http.MethodPost, orders+"/"+o.ID+"/pay", `{"payment_id":"p-1"}`, "Authorization", mine)
	mustCall(t, http.StatusOK, http.MethodPost, orders+"/"+o.ID+"/pay", `{"payment_id":"p-1"}`, "Authorization", "Bearer "+testToken)
	if list := mustCall(t, http.StatusOK, http.MethodGet, orders, "", "Authorization", theirs); !bytes.Contains(list, []byte(`"orders":[]`)) {
		t.Errorf("another buyer's list is %s", list)
	}
	for _, header := range [][]string{{"Authorization", mine}, {"X-Forwarded-For", "192.0.2.1"}} {
		testenv.Await(t, "a client is limited by "+header[0], func() bool {
			status, _, err := call(t.Context(), http.MethodGet, orders, "", header...)
			if err != nil {
				t.Fatal(err)
			}
			return status == http.StatusTooManyRequests
		})
	}
	mustCall(t, http.StatusUnauthorized, http.MethodGet, orders, "", "X-Forwarded-For", "192.0.2.2")
}

// TestKeysNotRead checks that an instance that cannot read the keys of buyers' tokens is not ready,
// and that it warns of tokens for other services.
func TestKeysNotRead(t *testing.T) {
	t.Parallel()
	api := startHere(t, "--auth", "jwt", "--admin-token", testToken, "--jwt-jwks", "https://127.0.0.1:1/keys")
	mustCall(t, http.StatusServiceUnavailable, http.MethodGet, api.URL()+"/readyz", "")
	if out := api.Output(); !strings.Contains(out, "--jwt-audience is not set") {
		t.Errorf("the log is\n%s", out)
	}
}
