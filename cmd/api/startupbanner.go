package main

import (
	"fmt"
	"strings"

	"github.com/holdfast-stock/holdfast/internal/store"
)

// startupBanner returns what the service prints on a terminal when it has started.
func startupBanner(c config, l listeners) string {
	url := c.scheme() + "://" + reachable(l.api.Addr())
	var b strings.Builder
	fmt.Fprintf(&b, "Holdfast listening on %s\n\n", url)
	if l.ops != nil {
		fmt.Fprintf(&b, "  metrics   %s://%s/metrics\n", c.scheme(), reachable(l.ops.Addr()))
	}
	writeStrategy(&b, c)
	writeStores(&b, c)
	if c.Console {
		fmt.Fprintf(&b, "  console   %s/console/\n", url)
	}
	writeExamples(&b, c, url)
	return b.String()
}

// onOff returns the value of a switch.
func onOff(on bool) string {
	if on {
		return "on"
	}
	return "off"
}

func writeStrategy(b *strings.Builder, c config) {
	fmt.Fprintf(b, "  strategy  %s: %s\n", c.strategy.Name, c.strategy.Detail)
	if c.strategy.HasGate() {
		fmt.Fprintf(b, "  guard     %s\n", onOff(c.Guard))
	}
	if c.strategy.NeedsLock {
		fmt.Fprintf(b, "  lock      %s, lease %v, fence %s\n", c.Locks.Backend, c.Locks.Lease, onOff(c.Fence))
	}
	if c.strategy.Segmented {
		fmt.Fprintf(b, "  segments  %d\n", c.Segments)
	}
	if c.strategy.Slotted {
		fmt.Fprintf(b, "  slots     %d\n", c.Slots)
	}
}

func writeStores(b *strings.Builder, c config) {
	if c.embedded() {
		b.WriteString("  stores    embedded: an in-process Redis, and SQLite in a temporary folder.\n" +
			"            For trying out, not for keeping: both are deleted when this process ends.\n")
		label := "stock"
		for _, set := range demoStock {
			fmt.Fprintf(b, "  %-10s%s %s, %d units\n", label, set.Kind, set.SKU, set.Total)
			label = ""
		}
		return
	}
	fmt.Fprintf(b, "  ledger    %s\n", store.Redact(c.DB))
	switch {
	case c.Redis != "":
		fmt.Fprintf(b, "  gate      %s\n", store.Redact(c.Redis))
	case c.strategy.HasGate():
		b.WriteString("  gate      an in-process Redis, refilled from the ledger at every start\n")
	}
}

// writeExamples writes commands that the reader can paste.
func writeExamples(b *strings.Builder, c config, url string) {
	b.WriteString("\nTry:\n\n")
	sku := "SKU"
	if c.embedded() {
		sku = string(demoStock[0].SKU)
	} else {
		auth := ""
		if c.AdminToken != "" {
			auth = " -H 'Authorization: Bearer TOKEN'"
		}
		fmt.Fprintf(b, "  curl -X PUT %s/stock/%s%s -H 'Content-Type: application/json' -d '{\"kind\":\"product\",\"total\":1000}'\n", url, sku, auth)
	}
	auth := ""
	if c.Auth == "jwt" {
		auth = " -H 'Authorization: Bearer TOKEN-OF-u-1'"
	}
	fmt.Fprintf(b, "  curl %s/orders%s -H 'Content-Type: application/json' -d '{\"buyer_id\":\"u-1\",\"lines\":[{\"sku\":\"%s\",\"quantity\":1}]}'\n", url, auth, sku)
	fmt.Fprintf(b, "  curl %s/stock/%s/audit\n\n", url, sku)
}
