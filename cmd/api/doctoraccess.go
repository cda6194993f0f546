package main

import (
	"bytes"
	"context"
	"crypto/tls"
	"crypto/x509"
	"encoding/json"
	"errors"
	"io"
	"log/slog"
	"net"
	"net/http"
	"slices"
	"strings"
	"syscall"
	"time"

	"github.com/holdfast-stock/holdfast/internal/certificate"
	"github.com/holdfast-stock/holdfast/internal/stock/strategy"
	"github.com/holdfast-stock/holdfast/internal/store"
	"github.com/holdfast-stock/holdfast/internal/token"
)

const (
	// maxAnswer is how much of an answer is looked at, to know an instance by it.
	maxAnswer = 64 << 10
	// answerLimit is how long a busy instance may take for an answer. Two of them fit
	// into checkLimit.
	answerLimit = 2 * time.Second
)

// listenAddress is one on which an instance listens. instance reports whether an answer
// to GET path is that of an instance, and its strategy if the answer has it.
type listenAddress struct {
	flag, address, path string
	instance            func(status int, answer []byte) (runs string, ok bool)
}

// listenAddresses returns the addresses on which an instance with these flags listens.
func listenAddresses(a access) []listenAddress {
	all := []listenAddress{{"--listen", a.Listen, "/strategies", fromStrategies}}
	if a.OpsListen != "" {
		all = append(all, listenAddress{"--ops-listen", a.OpsListen, "/metrics", fromMetrics})
	}
	return all
}

// fromStrategies accepts the refusal of --rate-limit, too.
func fromStrategies(status int, answer []byte) (runs string, ok bool) {
	var shown struct {
		Running string `json:"running"`
		Type    string `json:"type"`
	}
	if json.Unmarshal(answer, &shown) != nil {
		return "", false
	}
	if status == http.StatusTooManyRequests {
		return "", shown.Type == "/problems/rate-limited"
	}
	_, known := strategy.Find(shown.Running)
	return shown.Running, status == http.StatusOK && known
}

func fromMetrics(status int, answer []byte) (runs string, ok bool) {
	return "", status == http.StatusOK && bytes.Contains(answer, []byte("holdfast_build_info{"))
}

// checkListen reports whether an instance can listen on --listen and --ops-listen.
func (e *examination) checkListen(ctx context.Context) (found store.Findings) {
	for _, d := range listenAddresses(e.c.access) {
		listener, err := new(net.ListenConfig).Listen(ctx, "tcp", d.address)
		if err == nil {
			defer listener.Close() // not before the other one is open: they may exclude each other
			found.OK("%s is free", d.address)
			continue
		}
		mend := "choose a " + d.flag + " that is an address of this machine, with a port that this user may use"
		if errors.Is(err, syscall.EADDRINUSE) {
			mend = "choose another " + d.flag + ", or stop the other program"
		}
		runs, serves := "", false
		if !errors.Is(err, syscall.EADDRNOTAVAIL) { // an instance there is another machine's
			runs, serves = d.ask(ctx, e.c.scheme())
		}
		// Whose stores the instance has, it does not say. Embedded stores, or those of
		// another strategy, are not the ones of these flags.
		switch foreign := e.c.embedded() || runs != "" && runs != e.c.strategy.Name; {
		case serves && foreign:
			found.Problem(mend, "%s: %v: another instance serves there", d.flag, err)
		case serves:
			found.Warn("no action is needed if these are its flags; otherwise "+mend, "an instance serves on %s: no other one can start there", d.address)
		default:
			found.Problem(mend, "%s: %v", d.flag, err)
		}
	}
	return found
}

// ask reports whether an instance serves on the address, and its strategy if that is
// known.
func (a listenAddress) ask(ctx context.Context, scheme string) (runs string, ok bool) {
	address, err := net.ResolveTCPAddr("tcp", a.address)
	if err != nil {
		return "", false
	}
	ctx, cancel := context.WithTimeout(ctx, answerLimit)
	defer cancel()
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, scheme+"://"+reachable(address)+a.path, nil)
	if err != nil {
		return "", false
	}
	// Without a proxy. The certificate is for the names that clients use, and is not
	// compared: nothing secret is sent.
	transport := &http.Transport{DisableCompression: true, TLSClientConfig: &tls.Config{InsecureSkipVerify: true}} //nolint:gosec // see above
	defer transport.CloseIdleConnections()
	// An instance does not redirect.
	client := &http.Client{Transport: transport, CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }}
	response, err := client.Do(request)
	if err != nil {
		return "", false
	}
	defer response.Body.Close()
	answer, err := io.ReadAll(io.LimitReader(response.Body, maxAnswer))
	if err != nil {
		return "", false
	}
	return a.instance(response.StatusCode, answer)
}

// checkAccess reports what clients and instances would find wrong with the certificate,
// and with the source of the keys.
func (e *examination) checkAccess(ctx context.Context) (found store.Findings) {
	log := slog.New(slog.DiscardHandler)
	c := e.c
	if c.TLSCert != "" {
		pair, err := certificate.Open(c.TLSCert, c.TLSKey, log)
		if err != nil {
			found.Problem("check --tls-cert and --tls-key", "%v", err)
		} else {
			found = append(found, judgeCertificate(pair.Leaf(), time.Now())...)
		}
	}
	if c.JWTKeys != "" {
		found = append(found, checkKeys(ctx, c.JWTKeys, log)...)
	}
	if c.JWTKeys != "" && c.JWTAudience == "" {
		found.Warn("set --jwt-audience", "tokens that the issuer made for other services are accepted too")
	}
	switch {
	case c.RateLimit == 0 && (c.RateBurst > 0 || len(c.TrustedProxies) > 0):
		found.Warn("set --rate-limit", "--rate-burst and --trusted-proxies do nothing without a rate limit")
	case c.RateLimit > 0 && c.OpsListen == "" && !onLoopback(c.Listen):
		found.Warn("set --ops-listen", "/metrics is on --listen, where --rate-limit does not bound it, and costs more than an order")
	}
	return found
}

// judgeCertificate reports what clients find wrong with a certificate. Only they know
// which names and authorities they expect.
func judgeCertificate(leaf *x509.Certificate, now time.Time) (found store.Findings) {
	server := func(usage x509.ExtKeyUsage) bool {
		return usage == x509.ExtKeyUsageServerAuth || usage == x509.ExtKeyUsageAny
	}
	names := slices.Clone(leaf.DNSNames)
	for _, ip := range leaf.IPAddresses {
		names = append(names, ip.String())
	}
	left := leaf.NotAfter.Sub(now)
	switch {
	case left < 0:
		found.Problem("renew it", "the TLS certificate expired at %v", leaf.NotAfter)
	case now.Before(leaf.NotBefore):
		found.Problem("check this machine's clock, or use another certificate", "the TLS certificate is not valid before %v", leaf.NotBefore)
	case left < leaf.NotAfter.Sub(leaf.NotBefore)/10:
		found.Warn("renew it", "the TLS certificate expires at %v, in %v", leaf.NotAfter, left.Round(time.Minute))
	}
	if len(names) == 0 {
		found.Problem("have it issued with a subjectAltName", "the TLS certificate names no host: clients refuse it")
	}
	if len(leaf.ExtKeyUsage) > 0 && !slices.ContainsFunc(leaf.ExtKeyUsage, server) {
		found.Problem("have it issued for servers (serverAuth)", "the TLS certificate is not for servers: clients refuse it")
	}
	if len(found) == 0 {
		found.OK("the TLS certificate of %s is valid until %v", strings.Join(names, ", "), leaf.NotAfter)
	}
	return found
}

// checkKeys reports whether the keys of buyers' tokens can be read.
func checkKeys(ctx context.Context, source string, log *slog.Logger) (found store.Findings) {
	keys, err := token.OpenKeys(ctx, source, log)
	if err == nil {
		err = keys.Load(ctx)
	}
	if err != nil {
		found.Problem("check --jwt-jwks and its issuer; a private certificate authority goes into SSL_CERT_FILE", "--jwt-jwks: %v", err)
		return found
	}
	found.OK("--jwt-jwks has keys with these IDs: %q", keys.IDs())
	return found
}
