package main

import (
	"errors"
	"io"
	"strings"
	"testing"

	"github.com/alecthomas/kong"

	"github.com/holdfast-stock/holdfast/internal/commandline"
	"github.com/holdfast-stock/holdfast/internal/lock"
)

// TestVariables checks that every program accepts the variables of withlock.
func TestVariables(t *testing.T) {
	for _, variable := range variables() {
		if variable == "HOLDFAST_HELP" {
			continue
		}
		if err := commandline.Parse(new(struct{}), nil, []string{variable + "=x"}, io.Discard, func(*kong.Context) error { return nil }); err != nil {
			t.Error(err)
		}
	}
}

// TestNameWithHolders checks that a name which is too long for the names of the slots is a usage
// error, and not a held lock.
func TestNameWithHolders(t *testing.T) {
	for _, test := range []struct {
		bytes   int
		holders string
		valid   bool
	}{{255, "1", true}, {249, "2", true}, {250, "2", false}} {
		_, err := parse([]string{"--redis", "redis://127.0.0.1:1/0", "--name", strings.Repeat("a", test.bytes), "--holders", test.holders, "--", "true"}, nil, io.Discard)
		if (err == nil) != test.valid || err != nil && !errors.Is(err, lock.ErrName) {
			t.Errorf("%d bytes, %s holders: error %v", test.bytes, test.holders, err)
		}
	}
}
