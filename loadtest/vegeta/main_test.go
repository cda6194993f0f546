package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"io"
	"math"
	"testing"

	vegeta "github.com/tsenart/vegeta/v12/lib"
)

// TestWrite reads the targets with vegeta's own library.
func TestWrite(t *testing.T) {
	var text bytes.Buffer
	if err := write(t.Context(), &text, []string{"http://a", "http://b"}, "s-1", "r", 4, true); err != nil {
		t.Fatal(err)
	}
	targets, err := vegeta.ReadAllTargets(vegeta.NewJSONTargeter(&text, nil, nil))
	if err != nil || len(targets) != 4 {
		t.Fatalf("%d targets: %v", len(targets), err)
	}
	seen := make(map[string]bool)
	for _, target := range targets {
		var order struct {
			Buyer string `json:"buyer_id"`
			Lines []struct{ SKU string }
		}
		if err := json.Unmarshal(target.Body, &order); err != nil || order.Lines[0].SKU != "s-1" {
			t.Errorf("%s: %v", target.Body, err)
		}
		seen[order.Buyer], seen[target.Header.Get("Idempotency-Key")], seen[target.URL] = true, true, true
	}
	if len(seen) != 4+4+2 {
		t.Errorf("buyers or keys repeat, or a URL is missing: %v", seen)
	}
}

// TestWriteWithoutKeys checks targets without an Idempotency-Key.
func TestWriteWithoutKeys(t *testing.T) {
	var text bytes.Buffer
	if err := write(t.Context(), &text, []string{"http://a"}, "s-1", "r", 1, false); err != nil {
		t.Fatal(err)
	}
	targets, err := vegeta.ReadAllTargets(vegeta.NewJSONTargeter(&text, nil, nil))
	if err != nil || len(targets) != 1 {
		t.Fatalf("%d targets: %v", len(targets), err)
	}
	if _, keyed := targets[0].Header["Idempotency-Key"]; keyed || targets[0].Header.Get("Content-Type") != "application/json" {
		t.Errorf("headers %v", targets[0].Header)
	}
}

// TestWrite_Interrupted checks that an interrupt ends the program, however many orders are left.
func TestWrite_Interrupted(t *testing.T) {
	ctx, interrupt := context.WithCancel(t.Context())
	interrupt()
	if err := write(ctx, io.Discard, []string{"http://a"}, "s-1", "r", math.MaxInt, true); !errors.Is(err, context.Canceled) {
		t.Error(err)
	}
}
