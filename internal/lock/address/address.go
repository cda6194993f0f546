// Package address parses the addresses of lock services.
package address

import (
	"errors"
	"fmt"
	"net"
	"net/url"
	"strconv"
	"strings"

	"github.com/holdfast-stock/holdfast/internal/lock"
)

// Address says where the servers of a lock service are, and how to log in to them.
type Address struct {
	User, Password string   // both empty: no credentials
	Servers        []string // host:port, at least one
	Path           string   // path without the first slash; empty: none
}

// Parse parses [USER:PASSWORD@]HOST:PORT[,HOST:PORT…][/PATH]. The user, the password
// and the path are percent-encoded. The path must be valid as the name of a lock, see
// lock.CheckName. No error contains a part of the text that may be a password.
func Parse(text string) (Address, error) {
	authority, encodedPath, _ := strings.Cut(text, "/")
	if strings.Contains(encodedPath, "@") {
		return Address{}, errors.New("the path has an @; in the user and the password, / is written as %2F and @ as %40")
	}
	var (
		a       Address
		servers = authority
		err     error
	)
	if at := strings.LastIndexByte(authority, '@'); at >= 0 {
		servers = authority[at+1:]
		if a.User, a.Password, err = parseCredentials(authority[:at]); err != nil {
			return Address{}, err
		}
	}
	a.Servers = strings.Split(servers, ",")
	for i, server := range a.Servers {
		if !isHostPort(server) {
			return Address{}, fmt.Errorf("server %d of %d is not host:port", i+1, len(a.Servers))
		}
	}
	if encodedPath == "" {
		return a, nil
	}
	if a.Path, err = url.PathUnescape(encodedPath); err != nil {
		return Address{}, errors.New("the path has an invalid percent-encoding")
	}
	if err := lock.CheckName(a.Path); err != nil {
		return Address{}, fmt.Errorf("the path after the servers: %w", err)
	}
	return a, nil
}

func parseCredentials(text string) (user, password string, err error) {
	user, password, _ = strings.Cut(text, ":")
	if user, err = url.PathUnescape(user); err == nil {
		password, err = url.PathUnescape(password)
	}
	if err != nil {
		return "", "", errors.New("the user or the password has an invalid percent-encoding")
	}
	if user == "" || password == "" {
		return "", "", errors.New("the text before @ is not USER:PASSWORD")
	}
	return user, password, nil
}

// isHostPort reports whether server is host:port.
func isHostPort(server string) bool {
	host, port, err := net.SplitHostPort(server)
	if err != nil || host == "" || strings.ContainsAny(host, "@/?# ") {
		return false
	}
	n, err := strconv.ParseUint(port, 10, 16)
	return err == nil && n > 0
}
