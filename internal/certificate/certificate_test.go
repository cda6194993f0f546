package certificate

import (
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"log/slog"
	"math/big"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/holdfast-stock/holdfast/internal/testenv"
)

// issue returns a self-signed certificate and its key, as PEM.
func issue(t *testing.T, name string, until time.Time) (cert, key []byte) {
	t.Helper()
	private, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	template := &x509.Certificate{
		SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: name}, DNSNames: []string{name},
		NotBefore: until.Add(-time.Hour), NotAfter: until,
	}
	der, err := x509.CreateCertificate(rand.Reader, template, template, private.Public(), private)
	if err != nil {
		t.Fatal(err)
	}
	secret, err := x509.MarshalPKCS8PrivateKey(private)
	if err != nil {
		t.Fatal(err)
	}
	return pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der}),
		pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: secret})
}

// TestWatch replaces the files in several ways, valid and invalid.
func TestWatch(t *testing.T) {
	t.Parallel()
	folder := t.TempDir()
	certFile, keyFile := filepath.Join(folder, "cert.pem"), filepath.Join(folder, "key.pem")
	write := func(name string, text []byte) {
		t.Helper()
		if err := os.WriteFile(name, text, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	var names = []string{"one", "two", "three"}
	certs, keys := make(map[string][]byte), make(map[string][]byte)
	for _, name := range names {
		certs[name], keys[name] = issue(t, name, time.Date(2100, 1, 1, 0, 0, 0, 0, time.UTC))
	}
	certs["old"], keys["old"] = issue(t, "old", time.Date(1990, 1, 1, 0, 0, 0, 0, time.UTC))
	write(certFile, certs["one"])
	write(keyFile, keys["one"])
	synctest.Test(t, func(t *testing.T) {
		var log testenv.Buffer
		p, err := Open(certFile, keyFile, slog.New(slog.NewTextHandler(&log, nil)))
		if err != nil {
			t.Fatal(err)
		}
		ctx, stop := context.WithCancel(t.Context())
		ended := make(chan struct{})
		now := make(chan os.Signal)
		go func() { defer close(ended); p.Watch(ctx, now) }()
		defer func() { stop(); <-ended }()
		expect := func(name, says string) {
			t.Helper()
			synctest.Wait()
			got, err := p.Config().GetCertificate(&tls.ClientHelloInfo{})
			if err != nil || got.Leaf == nil || got.Leaf.Subject.CommonName != name {
				t.Errorf("the certificate is %v, %v, want that of %s", got.Leaf, err, name)
			}
			if text := log.Take(); (says == "") != (text == "") || !strings.Contains(text, says) {
				t.Errorf("the log has %q, want %q", text, says)
			}
		}
		wait := func() { time.Sleep(pause + time.Second) }

		wait()
		expect("one", "")
		write(certFile, certs["two"]) // the new certificate without its key yet
		wait()
		expect("one", "level=ERROR")
		wait()
		expect("one", "") // the fault is reported only once
		write(keyFile, keys["two"])
		wait()
		expect("two", "replaced")
		chain := append(slices.Clone(certs["two"]), certs["one"]...)
		write(certFile, chain[:len(chain)-30]) // a file that is still being written
		wait()
		expect("two", "ends within a certificate")
		write(certFile, chain)
		wait()
		expect("two", "replaced")
		write(certFile, []byte("broken"))
		now <- os.Interrupt
		expect("two", "level=ERROR")
		if err := os.Remove(certFile); err != nil {
			t.Fatal(err)
		}
		wait()
		expect("two", "level=ERROR")
		wait()
		expect("two", "")
		write(certFile, certs["two"])
		wait()
		expect("two", "replaced")
		write(certFile, certs["three"])
		write(keyFile, keys["three"])
		now <- os.Interrupt
		expect("three", "replaced")
		write(certFile, certs["old"])
		write(keyFile, keys["old"])
		wait()
		expect("old", "has expired")
	})
}

func TestOpenRefuses(t *testing.T) {
	t.Parallel()
	folder := t.TempDir()
	cert, key := issue(t, "one", time.Now().Add(time.Hour))
	_, other := issue(t, "two", time.Now().Add(time.Hour))
	encrypted := pem.EncodeToMemory(&pem.Block{Type: "ENCRYPTED PRIVATE KEY", Bytes: []byte("secret")})
	for name, text := range map[string][]byte{"cert": cert, "key": key, "other": other, "empty": nil, "encrypted": encrypted} {
		if err := os.WriteFile(filepath.Join(folder, name), text, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	for files, says := range map[[2]string]string{
		{"cert", "key"}: "", {"cert", "other"}: "match", {"key", "cert"}: "PEM", {"cert", "empty"}: "PEM", {"cert", "none"}: "no such file", {"none", "key"}: "no such file",
		{"cert", "encrypted"}: "is encrypted",
	} {
		p, err := Open(filepath.Join(folder, files[0]), filepath.Join(folder, files[1]), slog.New(slog.DiscardHandler))
		if (err == nil) != (says == "") || err != nil && !strings.Contains(err.Error(), says) {
			t.Errorf("%v: %v, want %q", files, err, says)
		}
		if err == nil && p.Config().MinVersion != tls.VersionTLS12 {
			t.Errorf("the oldest version is %x", p.Config().MinVersion)
		}
	}
}
