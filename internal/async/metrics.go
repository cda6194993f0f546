package async

import (
	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promauto"
)

type metrics struct {
	length prometheus.Gauge
	oldest prometheus.Gauge
	ended  *prometheus.CounterVec
}

func newMetrics(r prometheus.Registerer) *metrics {
	auto := promauto.With(r)
	m := &metrics{
		length: auto.NewGauge(prometheus.GaugeOpts{
			Name: "holdfast_journal_orders", Help: "Queued orders in the journal, of all instances.",
		}),
		oldest: auto.NewGauge(prometheus.GaugeOpts{
			Name: "holdfast_journal_oldest_seconds", Help: "How long the oldest order in the journal has been queued; 0 if there is none.",
		}),
		ended: auto.NewCounterVec(prometheus.CounterOpts{
			Name: "holdfast_journal_ended_total", Help: "Queued orders that this instance brought to an end, by outcome.",
		}, []string{"outcome"}),
	}
	for _, outcome := range []string{committed, refused, duplicate} {
		m.ended.WithLabelValues(outcome)
	}
	return m
}
