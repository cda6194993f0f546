package doctor

import (
	"bytes"
	"context"
	"crypto/tls"
	"encoding/json"
	"errors"
	"io"
	"net"
	"net/http"
	"syscall"
	"time"

	"github.com/holdfast-stock/holdfast/internal/assembly"
	"github.com/holdfast-stock/holdfast/internal/store"
)

const (
	// maxAnswer bounds the bytes of an answer that are searched for the marks of an instance.
	maxAnswer = 64 << 10
	// answerLimit is how long a busy instance may take for an answer. Two of them fit
	// into checkLimit.
	answerLimit = 2 * time.Second
)

// listenAddress is an address on which an instance listens. instance reports whether an answer to
// GET path comes from an instance, and from which strategy if the answer has it.
type listenAddress struct {
	flag, address, path string
	instance            func(status int, answer []byte) (runs string, ok bool)
}

// listenAddresses returns the addresses on which an instance with the flags o listens.
func listenAddresses(o Options) []listenAddress {
	all := []listenAddress{{"--listen", o.Listen, "/strategies", fromStrategies}}
	if o.OpsListen != "" {
		all = append(all, listenAddress{"--ops-listen", o.OpsListen, "/metrics", fromMetrics})
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
	_, known := assembly.FindStrategy(shown.Running)
	return shown.Running, status == http.StatusOK && known
}

func fromMetrics(status int, answer []byte) (runs string, ok bool) {
	return "", status == http.StatusOK && bytes.Contains(answer, []byte("holdfast_build_info{"))
}

// checkListen reports whether an instance can listen on --listen and --ops-listen.
func (e *examination) checkListen(ctx context.Context) (found store.Findings) {
	for _, d := range listenAddresses(e.o) {
		listener, err := new(net.ListenConfig).Listen(ctx, "tcp", d.address)
		if err == nil {
			defer listener.Close() // keep it open until the other address is open, because the two may exclude each other
			found.OK("%s is free", d.address)
			continue
		}
		fix := "choose a " + d.flag + " that is an address of this machine, with a port that this user may use"
		if errors.Is(err, syscall.EADDRINUSE) {
			fix = "choose another " + d.flag + ", or stop the other program"
		}
		runs, serves := "", false
		if !errors.Is(err, syscall.EADDRNOTAVAIL) { // an instance on that address runs on another machine
			runs, serves = d.ask(ctx, e.o.TLSCert != "")
		}
		// An instance does not say which stores it uses. If it runs embedded stores or another
		// strategy, its stores are not the ones of these flags.
		switch foreign := e.o.Embedded() || runs != "" && runs != e.o.Strategy.Name; {
		case serves && foreign:
			found.Problem(fix, "%s: %v: another instance serves there", d.flag, err)
		case serves:
			found.Warn("no action is needed if these are its flags; otherwise "+fix, "an instance serves on %s: no other one can start there", d.address)
		default:
			found.Problem(fix, "%s: %v", d.flag, err)
		}
	}
	return found
}

// ask reports whether an instance serves on the address, and its strategy if that is
// known.
func (a listenAddress) ask(ctx context.Context, overTLS bool) (runs string, ok bool) {
	scheme := "http"
	if overTLS {
		scheme = "https"
	}
	ctx, cancel := context.WithTimeout(ctx, answerLimit)
	defer cancel()
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, scheme+"://"+a.address+a.path, nil)
	if err != nil {
		return "", false
	}
	// Use no proxy. The certificate has the names that clients use, so it is not verified: nothing
	// secret is sent.
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
