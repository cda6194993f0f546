package measure

import (
	"maps"
	"testing"
)

func TestParseCounters(t *testing.T) {
	t.Parallel()
	got := ParseCounters("# HELP x y\n# TYPE x 3\nx{m=\"a b\"} 2\nx{m=\"c\"} 1e1\nxy 5\nzk_packets_received\t12\nzk_server_state\tstandalone\nbig 1.5e+06\n" +
		"h_bucket{m=\"a\",le=\"0.5\"} 1\nh_bucket{m=\"b\",le=\"0.5\"} 2\nh_bucket{le=\"+Inf\"} 4\n")
	want := map[string]float64{"x": 12, "xy": 5, "zk_packets_received": 12, "big": 1.5e6, `h_bucket{le="0.5"}`: 3, `h_bucket{le="+Inf"}`: 4}
	if !maps.Equal(got, want) {
		t.Errorf("%v, want %v", got, want)
	}
}
