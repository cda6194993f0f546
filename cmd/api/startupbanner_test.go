package main

import (
	"io"
	"log/slog"
	"path/filepath"
	"strings"
	"testing"
)

// TestBanner checks the banner for different flags.
func TestBanner(t *testing.T) {
	t.Parallel()
	for _, test := range []struct {
		flags string
		says  []string
	}{
		{"", []string{"Holdfast listening on http://127.0.0.1:", "strategy  lua", "embedded", "10001, 1000 units", "coupon-300, 300 units",
			"curl http://127.0.0.1:", "/orders -H", "console   http://127.0.0.1:"}},
		{"--strategy async --db sqlite:///x --redis redis://u:s3cret@h:1", []string{"strategy  async: ", "gate      redis://u:xxxxx@h:1"}},
		{"--auth jwt --admin-token " + testToken + " --jwt-secret " + longSecret, []string{"Bearer TOKEN-OF-u-1"}},
		{"--db sqlite:///x --strategy merged --admin-token " + testToken, []string{"curl -X PUT", "Bearer TOKEN'"}},
	} {
		c, err := parse(append(strings.Fields(test.flags), "--listen", "127.0.0.1:0"), nil, io.Discard)
		if err != nil {
			t.Fatal(err)
		}
		d, err := openListeners(t.Context(), c.serverFlags, slog.New(slog.DiscardHandler))
		if err != nil {
			t.Fatal(err)
		}
		defer d.close()
		text := startupBanner(c, d)
		for _, says := range test.says {
			if !strings.Contains(text, says) {
				t.Errorf("%s: no %q in:\n%s", test.flags, says, text)
			}
		}
		if strings.Contains(text, "s3cret") || strings.Contains(text, testToken) || strings.Contains(text, longSecret) {
			t.Errorf("%s: a secret is in:\n%s", test.flags, text)
		}
	}
}

// TestServing checks that a program can read the address of an instance whose log has
// errors only.
func TestServing(t *testing.T) {
	t.Parallel()
	api := serveHere(t, "--log-level", "error") // serveHere waits until the address is logged
	if out := api.Output(); strings.Count(out, "\n") != 1 || !strings.Contains(out, `"url":"`+api.URL()+`"`) {
		t.Errorf("it says %s", out)
	}
}

// TestEmbeddedWarning checks that the log warns of embedded stores. An operator who forgot --db
// sees nothing else.
func TestEmbeddedWarning(t *testing.T) {
	t.Parallel()
	for _, test := range []struct {
		flags []string
		warns bool
	}{
		{nil, true},
		{[]string{"--db", "sqlite://" + filepath.Join(t.TempDir(), "ledger.db"), "--migrate"}, false},
	} {
		out := serveHere(t, test.flags...).Output()
		if warns := strings.Contains(out, `"level":"WARN","msg":"the stores are embedded`); warns != test.warns {
			t.Errorf("%v: warns: %v, want %v:\n%s", test.flags, warns, test.warns, out)
		}
	}
}
