package assembly_test

import (
	"log/slog"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	sdk "go.opentelemetry.io/otel/sdk/trace"
	"go.opentelemetry.io/otel/sdk/trace/tracetest"

	"github.com/holdfast-stock/holdfast/internal/assembly"
	"github.com/holdfast-stock/holdfast/internal/order"
	"github.com/holdfast-stock/holdfast/internal/stock"
	"github.com/holdfast-stock/holdfast/internal/tracing"
)

// BenchmarkPlace measures orders on embedded stores, one at a time. It measures them without
// traces, and with all spans but without their export.
func BenchmarkPlace(b *testing.B) {
	for _, bm := range []struct {
		name   string
		tracer *tracing.Tracer
	}{
		{"traces off", nil},
		{"traces on", tracing.New(sdk.NewTracerProvider(sdk.WithBatcher(tracetest.NewNoopExporter())), true)},
	} {
		b.Run(bm.name, func(b *testing.B) {
			ctx := b.Context()
			spec, _ := assembly.FindStrategy(assembly.DefaultStrategy)
			i, err := assembly.Open(ctx, assembly.Parts{Strategy: spec, Guard: true}, assembly.Options{
				TakeDeadline: time.Minute, Log: slog.New(slog.DiscardHandler), Metrics: prometheus.NewRegistry(), Tracer: bm.tracer,
			})
			if err != nil {
				b.Fatal(err)
			}
			defer i.Close()
			if err := i.Reconciler.Start(ctx); err != nil {
				b.Fatal(err)
			}
			if _, _, err := i.Stock.SetStock(ctx, stock.Setting{SKU: "10001", Kind: stock.Product, Total: stock.MaxTotal}); err != nil {
				b.Fatal(err)
			}
			b.ReportAllocs()
			for b.Loop() {
				inside, request := bm.tracer.Request(ctx, nil, "POST", "/orders")
				_, _, err := i.Orders.Place(inside, order.Request{Buyer: "u-1", Lines: []stock.Line{{SKU: "10001", Quantity: 1}}})
				if err != nil {
					b.Fatal(err)
				}
				request.End()
			}
		})
	}
}
