package etcd

import (
	"cmp"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"net/url"
	"os"
	"strings"

	"github.com/holdfast-stock/holdfast/internal/lock/address"
)

// ensemble says where the servers are, how to log in to them, and where the locks
// are.
type ensemble struct {
	address.Address
	secure        bool   // with TLS
	ca, cert, key string // files; empty: none
}

// CheckAddress returns an error if the address is invalid. It does not read the files that the
// address names.
func CheckAddress(text string) error {
	_, err := parseAddress(text)
	return err
}

// parseAddress parses
// [http[s]://][USER:PASSWORD@]HOST:PORT[,HOST:PORT…][/PATH][?ca=FILE&cert=FILE&key=FILE].
// No error contains a part of the text that may be a password.
func parseAddress(text string) (e ensemble, err error) {
	if scheme, rest, found := strings.Cut(text, "://"); found {
		if scheme != "http" && scheme != "https" {
			return ensemble{}, errors.New("the scheme is neither http nor https")
		}
		e.secure, text = scheme == "https", rest
	}
	text, query, _ := strings.Cut(text, "?")
	if e.Address, err = address.Parse(text); err != nil {
		return ensemble{}, err
	}
	values, err := url.ParseQuery(query)
	if err != nil {
		return ensemble{}, errors.New("the parameters after ? have an invalid percent-encoding")
	}
	files := map[string]*string{"ca": &e.ca, "cert": &e.cert, "key": &e.key}
	for name, value := range values {
		file, known := files[name]
		if !known || len(value) != 1 || value[0] == "" {
			return ensemble{}, errors.New("the parameters after ? are not ca=FILE, cert=FILE and key=FILE, each at most once")
		}
		*file = value[0]
	}
	switch {
	case !e.secure && len(values) > 0:
		return ensemble{}, errors.New("ca, cert and key need the scheme https")
	case (e.cert == "") != (e.key == ""):
		return ensemble{}, errors.New("cert and key need each other")
	}
	return e, nil
}

// base returns the prefix of all keys.
func (e ensemble) base() string { return cmp.Or(e.Path, defaultBase) + "/" }

// endpoints returns the servers' URLs.
func (e ensemble) endpoints() []string {
	scheme := "http://"
	if e.secure {
		scheme = "https://"
	}
	var urls []string
	for _, server := range e.Servers {
		urls = append(urls, scheme+server)
	}
	return urls
}

// tlsConfig returns nil if the connections are not encrypted.
func (e ensemble) tlsConfig() (*tls.Config, error) {
	if !e.secure {
		return nil, nil
	}
	config := &tls.Config{MinVersion: tls.VersionTLS12}
	if e.ca != "" {
		text, err := os.ReadFile(e.ca)
		if err != nil {
			return nil, fmt.Errorf("reading the CA's certificate: %w", err)
		}
		config.RootCAs = x509.NewCertPool()
		if !config.RootCAs.AppendCertsFromPEM(text) {
			return nil, fmt.Errorf("reading the CA's certificate: %s has no certificate in PEM format", e.ca)
		}
	}
	if e.cert != "" {
		pair, err := tls.LoadX509KeyPair(e.cert, e.key)
		if err != nil {
			return nil, fmt.Errorf("reading the client's certificate and key: %w", err)
		}
		config.Certificates = []tls.Certificate{pair}
	}
	return config, nil
}
