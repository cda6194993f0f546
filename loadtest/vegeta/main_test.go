package main

import (
	"bytes"
	"encoding/json"
	"testing"

	vegeta "github.com/tsenart/vegeta/v12/lib"
)

// TestWrite has vegeta itself read the targets.
func TestWrite(t *testing.T) {
	var text bytes.Buffer
	if err := write(&text, []string{"http://a", "http://b"}, "s-1", "r", 4); err != nil {
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
		t.Errorf("buyers, keys or hosts repeat: %v", seen)
	}
}
