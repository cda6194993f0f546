// Package store opens the service's stores, each from one URL: the ledger's database (MySQL or
// MariaDB, PostgreSQL, SQLite) and the gate's Redis (single, Sentinel, Cluster). It also opens an
// embedded pair that needs no server. It bounds every wait on the stores, migrates the database's
// schema, and classifies database errors by the drivers' error codes. It watches the Redis masters
// for events that may have lost writes.
package store

import (
	"errors"
	"net/url"
	"strings"
)

// ErrBadURL marks an error in the URL itself. Errors of the server behind the
// URL do not match it.
var ErrBadURL = errors.New("not a usable URL")

// redacted replaces a secret in a URL.
const redacted = "xxxxx"

// Redact returns the URL with its secrets replaced: the password, and the values of query
// parameters whose names contain a word such as "password" or "key". In a malformed URL it may
// replace more.
func Redact(rawURL string) string {
	scheme, rest, ok := strings.Cut(rawURL, "://")
	if !ok {
		if strings.ContainsAny(rawURL, ":@=") { // in an unknown notation, a password may be anywhere
			return redacted
		}
		return rawURL
	}
	if at := strings.LastIndexByte(rest, '@'); at >= 0 {
		user, _, password := strings.Cut(rest[:at], ":")
		if password {
			user += ":" + redacted
		}
		rest = user + rest[at:]
	}
	rest, query, ok := strings.Cut(rest, "?")
	if !ok {
		return scheme + "://" + rest
	}
	parameters := strings.Split(query, "&")
	for i, parameter := range parameters {
		name, _, _ := strings.Cut(parameter, "=")
		if isSecret(name) {
			parameters[i] = name + "=" + redacted
		}
	}
	return scheme + "://" + rest + "?" + strings.Join(parameters, "&")
}

func isSecret(name string) bool {
	if decoded, err := url.QueryUnescape(name); err == nil {
		name = decoded
	}
	name = strings.ToLower(name)
	for _, word := range []string{"pass", "pwd", "secret", "key", "token"} {
		if strings.Contains(name, word) {
			return true
		}
	}
	return false
}

// parseURL parses a URL. It replaces the parser's own error, because that error quotes a part of
// the URL that may contain the password.
func parseURL(rawURL string) (*url.URL, error) {
	u, err := url.Parse(rawURL)
	if err != nil {
		return nil, errors.New("it cannot be parsed (special characters in user, password or path need percent-encoding)")
	}
	return u, nil
}
