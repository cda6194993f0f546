package server

import (
	"io"
	"maps"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
)

func TestClient(t *testing.T) {
	t.Parallel()
	mux := http.NewServeMux()
	var created string // the latest request to create a SKU
	mux.HandleFunc("PUT /stock/{sku}", func(w http.ResponseWriter, r *http.Request) {
		if r.Header.Get("Authorization") != "Bearer s3cret" {
			http.Error(w, "no token", http.StatusUnauthorized)
			return
		}
		body, _ := io.ReadAll(r.Body)
		created = string(body)
		w.WriteHeader(http.StatusCreated)
	})
	mux.HandleFunc("GET /stock/{sku}", func(w http.ResponseWriter, r *http.Request) { _, _ = w.Write([]byte(`{"total":7}`)) })
	listener := httptest.NewServer(mux)
	defer listener.Close()

	if err := (Client{AdminToken: "s3cret"}).PutStock(t.Context(), listener.URL, "s", 7); err != nil {
		t.Error(err)
	}
	if err := (Client{AdminToken: "s3cret"}).PutCoupon(t.Context(), listener.URL, "c", 7, 2); err != nil || created != `{"kind":"coupon","total":7,"buyer_limit":2}` {
		t.Errorf("%s, %v", created, err)
	}
	if err := (Client{}).PutStock(t.Context(), listener.URL, "s", 7); err == nil || !strings.Contains(err.Error(), "/stock/s: 401 Unauthorized: no token") {
		t.Errorf("without a token: %v", err)
	}
	var stock struct{ Total int }
	if err := (Client{HTTP: listener.Client()}).GetJSON(t.Context(), listener.URL+"/stock/s", &stock); err != nil || stock.Total != 7 {
		t.Errorf("%+v, %v", stock, err)
	}
}

func TestParseCounters(t *testing.T) {
	t.Parallel()
	got := ParseCounters("# HELP x y\n# TYPE x 3\nx{m=\"a b\"} 2\nx{m=\"c\"} 1e1\nxy 5\nzk_packets_received\t12\nzk_server_state\tstandalone\nbig 1.5e+06\n")
	want := map[string]float64{"x": 12, "xy": 5, "zk_packets_received": 12, "big": 1.5e6}
	if !maps.Equal(got, want) {
		t.Errorf("%v, want %v", got, want)
	}
}
