package main

import (
	"os"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/spf13/pflag"
)

// TestConfigurationPage compares docs/configuration.md with the flags: it has each of them
// once, and where it shows values, the first is the default.
func TestConfigurationPage(t *testing.T) {
	t.Parallel()
	page, err := os.ReadFile("../../docs/configuration.md")
	if err != nil {
		t.Fatal(err)
	}
	var c config
	flags, _ := flagSet(&c)
	shown := make(map[string]int)
	span := regexp.MustCompile("`--([a-z-]+) ?([^`]*)`")
	for line := range strings.Lines(string(page)) {
		if !strings.HasPrefix(line, "| `--") {
			continue
		}
		first, _, _ := strings.Cut(strings.ReplaceAll(line[2:], `\|`, "/"), " | ")
		for _, found := range span.FindAllStringSubmatch(first, -1) {
			name, value := found[1], found[2]
			value, _, _ = strings.Cut(value, "/")
			shown[name]++
			f := flags.Lookup(name)
			switch {
			case f == nil:
				t.Errorf("--%s is no flag", name)
			case value != "" && !sameValue(value, f.DefValue):
				t.Errorf("--%s: the page says %s, the default is %q", name, value, f.DefValue)
			}
		}
	}
	flags.VisitAll(func(f *pflag.Flag) {
		if shown[f.Name] != 1 && !f.Hidden { // a hidden flag says what has replaced it
			t.Errorf("--%s is %d times on the page", f.Name, shown[f.Name])
		}
	})
}

// sameValue compares two values of a flag, which may be durations: 15m is 15m0s.
func sameValue(a, b string) bool {
	x, err := time.ParseDuration(a)
	y, otherErr := time.ParseDuration(b)
	return a == b || err == nil && otherErr == nil && x == y
}
