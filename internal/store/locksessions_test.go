package store

import (
	"errors"
	"strings"
	"testing"
)

func TestOpenSessions_BadURLs(t *testing.T) {
	t.Parallel()
	for dbURL, says := range map[string]string{
		"sqlite:///x.db":                               "none of mysql://, postgres://",
		"mysql://root:s3cret@127.0.0.1:3306":           "names no database",
		"mysql://root:s3cret@127.0.0.1:3306/n?tls=x;":  "query",
		"postgres://root:s3cret@127.0.0.1:port/n":      "parsed",
		"postgres://root:s3cret@127.0.0.1/n?sslmode=x": "parameters cannot be used: sslmode",
		"mysql://root:s3cret@%zz/n":                    "parsed",
	} {
		pool, err := OpenSessions(dbURL)
		if !errors.Is(err, ErrBadURL) || !strings.Contains(err.Error(), says) || strings.Contains(err.Error(), "s3cret") {
			t.Errorf("%s: %v", dbURL, err)
		}
		if err == nil {
			pool.Close()
		}
	}
}
