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

	"github.com/holdfast-stock/holdfast/internal/certificate"
	"github.com/holdfast-stock/holdfast/internal/httpapi"
	"github.com/holdfast-stock/holdfast/internal/token"
)

// opsTimeout bounds the time that the operators' listener takes to answer what is
// under way when everything else has stopped.
const opsTimeout = time.Second

// doors are the listeners of the service, and what opens them to clients: the TLS
// certificate and the keys of buyers' tokens.
type doors struct {
	api, ops net.Listener      // ops is nil without --ops-listen
	pair     *certificate.Pair // nil: plain HTTP
	tokens   httpapi.Tokens    // nil: buyers are not authenticated
	keys     *token.Keys       // nil without --jwt-jwks
	hangUp   chan os.Signal    // gets SIGHUP if there is a certificate
}

// openDoors listens, and reads the certificate and the file of keys. It accepts no
// connection yet.
func openDoors(ctx context.Context, a access, log *slog.Logger) (d doors, err error) {
	defer func() {
		if err != nil {
			d.close()
		}
	}()
	if d.api, err = listen("--listen", a.listen); err != nil {
		return d, err
	}
	if a.opsListen != "" {
		if d.ops, err = listen("--ops-listen", a.opsListen); err != nil {
			return d, err
		}
	}
	if a.tlsCert != "" {
		if d.pair, err = certificate.Open(a.tlsCert, a.tlsKey, log); err != nil {
			return d, fmt.Errorf("--tls-cert: %w", err)
		}
		// From now on until close: a renewed certificate must not end a service that
		// starts or stops.
		d.hangUp = make(chan os.Signal, 1)
		signal.Notify(d.hangUp, syscall.SIGHUP)
	}
	rules := token.Rules{Issuer: a.jwtIssuer, Audience: a.jwtAudience}
	switch {
	case a.jwtSecret != "":
		d.tokens = token.WithSecret(a.jwtSecret, rules)
	case a.jwtKeys != "":
		if d.keys, err = token.OpenKeys(ctx, a.jwtKeys, log); err != nil {
			return d, fmt.Errorf("--jwt-jwks: %w", err)
		}
		d.tokens = token.WithKeys(d.keys, rules)
		if a.jwtAudience == "" {
			log.Warn("--jwt-audience is not set: tokens that the issuer made for other services are accepted too")
		}
	}
	return d, nil
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

// close closes the listeners that no server has closed yet.
func (d doors) close() {
	if d.hangUp != nil {
		signal.Stop(d.hangUp)
	}
	for _, l := range []net.Listener{d.api, d.ops} {
		if l != nil {
			_ = l.Close()
		}
	}
}

// serve serves on one of the listeners until the server is shut down.
func (d doors) serve(server *http.Server, on net.Listener) error {
	if d.pair == nil {
		return server.Serve(on)
	}
	server.TLSConfig = d.pair.Config()
	return server.ServeTLS(on, "", "")
}

// serveOps serves on the operators' listener, if there is one, until stop is called.
// It goes on while the API drains, so that probes and Prometheus see that. An error
// goes to served.
func (d doors) serveOps(c httpapi.Config, a access, served chan<- error) (stop func()) {
	if d.ops == nil {
		return func() {}
	}
	if c.Loopback = onLoopback(a.opsListen); c.Loopback {
		c.AdminToken = "" // who can reach it is an administrator: go tool pprof sends no token
	}
	server := httpapi.NewServer(httpapi.NewOps(c), requestTimeout, c.Log)
	go func() { served <- d.serve(server, d.ops) }()
	c.Log.Info("serving operators", "address", d.ops.Addr().String())
	return func() {
		ctx, cancel := context.WithTimeout(context.Background(), opsTimeout)
		defer cancel()
		if server.Shutdown(ctx) != nil { // a profile is being written
			_ = server.Close()
		}
	}
}

// ready returns why no buyer can be authenticated.
func (d doors) ready() error {
	if d.keys == nil {
		return nil
	}
	return d.keys.Ready()
}

// refresh replaces the certificate and the keys when there are new ones, until stop
// is called. stop waits for it to end. SIGHUP replaces the certificate at once.
func (d doors) refresh() (stop func()) {
	ctx, cancel := context.WithCancel(context.Background())
	var running sync.WaitGroup
	if d.pair != nil {
		running.Go(func() { d.pair.Watch(ctx, d.hangUp) })
	}
	if d.keys != nil {
		running.Go(func() { d.keys.Run(ctx) })
	}
	return func() {
		cancel()
		running.Wait()
	}
}
