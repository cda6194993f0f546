// Package store opens what the service keeps its counts in: the ledger's
// database (MySQL or MariaDB, PostgreSQL, SQLite) and the gate's Redis
// (single, Sentinel, Cluster), each from one URL, and the embedded pair that
// needs neither. It bounds every wait on them, brings the database's schema up
// to date, tells classes of database errors apart by the drivers' own codes,
// and watches the Redis masters for what may have cost them writes.
package store

import (
	"errors"
	"net/url"
	"strings"
)

// ErrBadURL marks the errors about a URL that cannot be used, whatever is
// running behind it.
var ErrBadURL = errors.New("not a usable URL")

// hidden stands for a secret.
const hidden = "xxxxx"

// Redact returns the URL with its secrets hidden: the password, and the values
// of query parameters whose names speak of a password, a secret or a key. It
// does so even if the URL is malformed, and then may hide more than that.
func Redact(rawURL string) string {
	scheme, rest, ok := strings.Cut(rawURL, "://")
	if !ok {
		if strings.ContainsAny(rawURL, ":@=") { // some other notation: better nothing than a password
			return hidden
		}
		return rawURL
	}
	if at := strings.LastIndexByte(rest, '@'); at >= 0 {
		user, _, password := strings.Cut(rest[:at], ":")
		if password {
			user += ":" + hidden
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
		if secret(name) {
			parameters[i] = name + "=" + hidden
		}
	}
	return scheme + "://" + rest + "?" + strings.Join(parameters, "&")
}

func secret(name string) bool {
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

// parseURL parses a URL. The parser's own error is not passed on: it quotes
// what may be half of a password.
func parseURL(rawURL string) (*url.URL, error) {
	u, err := url.Parse(rawURL)
	if err != nil {
		return nil, errors.New("it cannot be parsed (special characters in user, password or path need percent-encoding)")
	}
	return u, nil
}
