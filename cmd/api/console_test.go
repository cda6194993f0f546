package main

import (
	"encoding/json"
	"io"
	"strings"
	"testing"
	"time"
)

// TestConsoleOff checks that --console off leaves nothing behind.
func TestConsoleOff(t *testing.T) {
	t.Parallel()
	c, err := parse([]string{"--console", "off"}, nil, io.Discard)
	if err != nil {
		t.Fatal(err)
	}
	page := newConsole(t.Context(), c, nil, nil, nil)
	if page.handler() != nil {
		t.Error("there is a handler")
	}
	page.run(t.Context())()
	if on, err := parse(nil, []string{"HOLDFAST_CONSOLE=on"}, io.Discard); err != nil || !on.Console {
		t.Errorf("the console is off by default: %v", err)
	}
}

// TestRushOptions checks which services run rushes.
func TestRushOptions(t *testing.T) {
	t.Parallel()
	for flags, unavailable := range map[string]string{"": "", "--db postgres://u@d/shop --redis redis://r": "Only"} {
		c, err := parse(strings.Fields(flags), nil, io.Discard)
		if err != nil {
			t.Fatal(err)
		}
		if o := rushOptions(c, nil); (o.Unavailable == "") != (unavailable == "") || !strings.HasPrefix(o.Unavailable, unavailable) {
			t.Errorf("%s: %+v", flags, o)
		}
	}
}

// TestDescribeService checks that the console shows the settings, and no passwords.
func TestDescribeService(t *testing.T) {
	t.Parallel()
	c, err := parse(strings.Fields("--strategy segment-lock --lock postgres --lease 7s --segments 3 --redis redis://u:secret@r:1/0 --db postgres://u:secret@d:2/shop?password=secret"), nil, io.Discard)
	if err != nil {
		t.Fatal(err)
	}
	s := describeService(c, "host/1/x", time.Now())
	text, err := json.Marshal(s)
	if err != nil {
		t.Fatal(err)
	}
	if strings.Contains(string(text), "secret") {
		t.Errorf("a password is shown: %s", text)
	}
	if s.Strategy != "segment-lock" || !s.Guard || s.Lock != "postgres" || s.Lease != "7s" || !s.Fence || s.Segments != 3 || s.Embedded ||
		!strings.Contains(s.LedgerStore, "d:2") || !strings.Contains(s.GateStore, "r:1") {
		t.Errorf("%+v", s)
	}
}
