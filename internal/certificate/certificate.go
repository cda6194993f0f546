// Package certificate serves TLS with a certificate that can be replaced while it is
// in use.
package certificate

import (
	"bytes"
	"context"
	"crypto/tls"
	"crypto/x509"
	"encoding/pem"
	"fmt"
	"log/slog"
	"os"
	"sync/atomic"
	"time"
)

// pause is the time between two checks of the files.
const pause = 5 * time.Second

// Pair is a certificate and its key, in two PEM files. It is safe for concurrent use.
type Pair struct {
	certFile, keyFile string
	log               *slog.Logger
	current           atomic.Pointer[tls.Certificate]
	seen              [2][]byte // the contents of the files at the last check
}

// Open reads a pair. The certificate's file may also have the certificates that
// connect it to its authority.
func Open(certFile, keyFile string, log *slog.Logger) (*Pair, error) {
	p := &Pair{certFile: certFile, keyFile: keyFile, log: log}
	_, err := p.look()
	return p, err
}

// Config returns the settings of a server that uses the pair, with TLS 1.2 or later. Each handshake
// uses the current pair. Open connections keep the pair that they began with.
func (p *Pair) Config() *tls.Config {
	return &tls.Config{
		MinVersion:     tls.VersionTLS12,
		GetCertificate: func(*tls.ClientHelloInfo) (*tls.Certificate, error) { return p.current.Load(), nil },
	}
}

// Leaf returns the certificate in use.
func (p *Pair) Leaf() *x509.Certificate { return p.current.Load().Leaf }

// Watch checks the files every few seconds, and at once when now receives, until ctx ends. It uses
// new contents. If the files are not a pair, the last pair stays in use. Only one Watch may run at
// a time.
func (p *Pair) Watch(ctx context.Context, now <-chan os.Signal) {
	for {
		select {
		case <-ctx.Done():
			return
		case <-time.After(pause):
		case <-now:
		}
		switch changed, err := p.look(); {
		case err != nil:
			p.log.Error("the new TLS certificate cannot be used; the last one stays in use", "error", err)
		case changed:
			p.log.Info("the TLS certificate was replaced", "expires", p.Leaf().NotAfter)
		}
	}
}

// look reads the files, and uses them if they have changed since the last check. It reports a file
// that stays broken only once.
func (p *Pair) look() (changed bool, err error) {
	cert, err := os.ReadFile(p.certFile)
	if err == nil {
		var key []byte
		if key, err = os.ReadFile(p.keyFile); err == nil {
			return p.use(cert, key)
		}
	}
	if p.seen[0] == nil && p.current.Load() != nil {
		return false, nil // reported already
	}
	p.seen = [2][]byte{}
	return false, err
}

// use makes the pair current unless it was the pair of the last check.
func (p *Pair) use(cert, key []byte) (changed bool, err error) {
	if bytes.Equal(cert, p.seen[0]) && bytes.Equal(key, p.seen[1]) {
		return false, nil
	}
	p.seen = [2][]byte{cert, key}
	if isCut(cert) { // the first certificate of the file may be whole, but clients need the others to verify it
		return false, fmt.Errorf("%s ends within a certificate", p.certFile)
	}
	pair, err := tls.X509KeyPair(cert, key)
	switch {
	case err != nil && bytes.Contains(key, []byte("ENCRYPTED")):
		return false, fmt.Errorf("%s is encrypted: openssl pkey decrypts it", p.keyFile)
	case err != nil:
		return false, fmt.Errorf("%s and %s: %w", p.certFile, p.keyFile, err)
	}
	if time.Now().After(pair.Leaf.NotAfter) {
		p.log.Warn("the TLS certificate has expired", "expired", pair.Leaf.NotAfter)
	}
	p.current.Store(&pair)
	return true, nil
}

// isCut reports whether a PEM file ends within a block, because it is still being
// written.
func isCut(text []byte) bool {
	for {
		block, rest := pem.Decode(text)
		if block == nil {
			return bytes.Contains(rest, []byte("-----"))
		}
		text = rest
	}
}
