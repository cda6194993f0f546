package main

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"os"
	"os/signal"
	"sync"
	"syscall"
	"time"

	"github.com/holdfast-stock/holdfast/internal/buyertoken"
	"github.com/holdfast-stock/holdfast/internal/certificate"
	"github.com/holdfast-stock/holdfast/internal/httpapi"
)

// opsTimeout bounds the time that the operators' listener takes to answer what is
// under way when everything else has stopped.
const opsTimeout = time.Second

// listeners holds the service's listeners, the TLS certificate and the keys of buyers' tokens.
type listeners struct {
	api, ops net.Listener      // ops is nil without --ops-listen
	pair     *certificate.Pair // nil: plain HTTP
	tokens   httpapi.Tokens    // nil: buyers are not authenticated
	keys     *buyertoken.Keys  // nil without --jwt-jwks
	hangUp   chan os.Signal    // gets SIGHUP if there is a certificate
}

// openListeners listens, and reads the certificate and the file of keys. It accepts no connection
// yet. The caller closes l, also after an error.
func openListeners(ctx context.Context, a serverFlags, log *slog.Logger) (l listeners, err error) {
	if l.api, err = listen("--listen", a.Listen); err != nil {
		return l, err
	}
	if a.OpsListen != "" {
		if l.ops, err = listen("--ops-listen", a.OpsListen); err != nil {
			return l, err
		}
	}
	if a.TLSCert != "" {
		if l.pair, err = certificate.Open(a.TLSCert, a.TLSKey, log); err != nil {
			return l, fmt.Errorf("--tls-cert: %w", err)
		}
		// Handle SIGHUP from now on until close: the signal of a renewed certificate must not end a
		// service that starts or stops.
		l.hangUp = make(chan os.Signal, 1)
		signal.Notify(l.hangUp, syscall.SIGHUP)
	}
	rules := buyertoken.Rules{Issuer: a.JWTIssuer, Audience: a.JWTAudience}
	switch {
	case a.JWTSecret != "":
		l.tokens = buyertoken.WithSecret(a.JWTSecret, rules)
	case a.JWTKeys != "":
		if l.keys, err = buyertoken.OpenKeys(ctx, a.JWTKeys, log); err != nil {
			return l, fmt.Errorf("--jwt-jwks: %w", err)
		}
		l.tokens = buyertoken.WithKeys(l.keys, rules)
		if a.JWTAudience == "" {
			log.Warn("--jwt-audience is not set: tokens that the issuer made for other services are accepted too")
		}
	}
	return l, nil
}

// listen listens on the address of a flag.
func listen(flag, address string) (net.Listener, error) {
	listener, err := net.Listen("tcp", address)
	switch {
	case errors.Is(err, syscall.EADDRINUSE):
		return nil, fmt.Errorf("%s: %w; choose another one, or stop the other program", flag, err)
	case err != nil:
		return nil, fmt.Errorf("%s: %w", flag, err)
	}
	return listener, nil
}

// reachable returns the address as a client on this machine writes it.
func reachable(address net.Addr) string {
	host, port, err := net.SplitHostPort(address.String())
	if err != nil {
		return address.String()
	}
	if ip := net.ParseIP(host); ip != nil && ip.IsUnspecified() {
		host = "127.0.0.1"
	}
	return net.JoinHostPort(host, port)
}

// close closes the listeners that no server has closed yet.
func (l listeners) close() {
	if l.hangUp != nil {
		signal.Stop(l.hangUp)
	}
	for _, listener := range []net.Listener{l.api, l.ops} {
		if listener != nil {
			_ = listener.Close()
		}
	}
}

// serve serves on one of the listeners until the server is shut down.
func (l listeners) serve(server *http.Server, on net.Listener) error {
	if l.pair == nil {
		return server.Serve(on)
	}
	server.TLSConfig = l.pair.Config()
	return server.ServeTLS(on, "", "")
}

// serveOps serves on the operators' listener, if there is one, until stop is called. It keeps
// serving while the API drains, so that probes and Prometheus see the drain. An error goes to
// served.
func (l listeners) serveOps(c httpapi.Config, a serverFlags, served chan<- error) (stop func()) {
	if l.ops == nil {
		return func() {}
	}
	if c.Loopback = onLoopback(a.OpsListen); c.Loopback {
		c.AdminToken = "" // every client of this listener is an administrator: go tool pprof sends no token
	}
	server := httpapi.NewServer(httpapi.NewOps(c), requestTimeout, c.Log)
	go func() { served <- l.serve(server, l.ops) }()
	c.Log.Info("serving operators", "address", l.ops.Addr().String())
	return func() {
		ctx, cancel := context.WithTimeout(context.Background(), opsTimeout)
		defer cancel()
		_ = server.Shutdown(ctx) // if a profile is still being written then, the end of the process cuts it off
	}
}

// ready returns an error if no buyer can be authenticated.
func (l listeners) ready() error {
	if l.keys == nil {
		return nil
	}
	return l.keys.Ready()
}

// refresh replaces the certificate and the keys when there are new ones, until stop
// is called. stop waits for it to end. SIGHUP replaces the certificate at once.
func (l listeners) refresh() (stop func()) {
	ctx, cancel := context.WithCancel(context.Background())
	var running sync.WaitGroup
	if l.pair != nil {
		running.Go(func() { l.pair.Watch(ctx, l.hangUp) })
	}
	if l.keys != nil {
		running.Go(func() { l.keys.Run(ctx) })
	}
	return func() {
		cancel()
		running.Wait()
	}
}
