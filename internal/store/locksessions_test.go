package store

import (
	"errors"
	"strings"
	"testing"

	"github.com/holdfast-stock/holdfast/internal/testenv"
)

// TestOpenSessions checks that a statement may take longer than the URL's read timeout, that the URL
// cannot change what a COMMIT does, and that a session ends after its use.
func TestOpenSessions(t *testing.T) {
	t.Parallel()
	pool, err := OpenSessions(testenv.MariaDB(t) + "?readTimeout=1ms&completion_type=%27CHAIN%27")
	if err != nil {
		t.Fatal(err)
	}
	defer pool.Close()
	var chains bool
	if err := pool.QueryRowContext(t.Context(), "SELECT SLEEP(0.05) OR @@completion_type = 'CHAIN'").Scan(&chains); err != nil || chains {
		t.Errorf("COMMIT begins a transaction: %v, %v", chains, err)
	}
	if n := pool.Stats().OpenConnections; n > 0 {
		t.Errorf("%d sessions are open after their use", n)
	}
}

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
