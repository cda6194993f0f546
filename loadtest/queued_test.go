package main

import (
	"context"
	"encoding/json"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"github.com/holdfast-stock/holdfast/client"
	"github.com/holdfast-stock/holdfast/internal/lab/load"
	"github.com/holdfast-stock/holdfast/loadtest/results"
)

// answeredQueued returns the 202 to the request for the order.
func answeredQueued(o order) answer {
	a := answered(o, accepted, 202, "")
	a.outcome, a.order.Status = queued, client.OrderQueued
	return a
}

// TestFollow follows a queued order to its end, and audits it.
func TestFollow(t *testing.T) {
	t.Parallel()
	for _, test := range []struct {
		name    string
		says    []string // statuses that GET answers, one for each try; empty: 404
		stored  string   // status in the ledger; empty: the order is not stored
		outcome string
		want    []results.Kind
	}{
		{"committed", []string{"queued", "queued", "pending"}, "pending", accepted, nil},
		{"refused", []string{"queued", "refused"}, "refused", turnedDown, nil},
		{"refused, after a page of a proxy", []string{"<html>", "refused"}, "refused", turnedDown, nil},
		{"removed from the queue", []string{"queued", ""}, "", accepted, []results.Kind{results.Missing, results.Unread}},
		{"committed, but not in the ledger", []string{"pending"}, "", accepted, []results.Kind{results.Missing}},
		{"refused, but sold", []string{"refused"}, "pending", turnedDown, []results.Kind{results.OtherStatus}},
		{"refused, but not recorded", []string{"refused"}, "", turnedDown, []results.Kind{results.Missing}},
	} {
		t.Run(test.name, func(t *testing.T) {
			rec := newRecord()
			l := newLedger(t, rec)
			o, tries := numbered(1), 0
			service := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
				got := o
				got.Status = client.OrderStatus(test.says[min(tries, len(test.says)-1)])
				tries++
				switch got.Status {
				case "":
					http.NotFound(w, r)
					return
				case "<html>":
					_, _ = io.WriteString(w, "<html>")
					return
				}
				_ = json.NewEncoder(w).Encode(got)
			}))
			defer service.Close()
			l.fleet.urls = []string{service.URL}
			rec.add(answeredQueued(o))
			if test.stored != "" {
				stored := o
				stored.Status = client.OrderStatus(test.stored)
				l.store(t, stored)
			}
			l.follow(t.Context())
			if rec.answers[0].outcome != test.outcome || rec.queued.Load() != 1 || rec.accepted.Load()+rec.turnedDown.Load() != 1 || (rec.turnedDown.Load() == 1) != (test.outcome == turnedDown) {
				t.Errorf("the order is %s; %d queued, %d accepted, %d turned down", rec.answers[0].outcome, rec.queued.Load(), rec.accepted.Load(), rec.turnedDown.Load())
			}
			if err := l.checkAnswers(t.Context()); err != nil {
				t.Fatal(err)
			}
			expectKinds(t, rec, test.want)
		})
	}
}

// TestFollowGivesUp checks that an order which stays queued is a finding, and that its outcome is
// unknown.
func TestFollowGivesUp(t *testing.T) {
	t.Parallel()
	service := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		_, _ = w.Write([]byte(`{"id":"any","status":"queued"}`))
	}))
	defer service.Close()
	rec := newRecord()
	l := &loading{lab: &lab{client: load.NewClient(http.DefaultTransport)}, rec: rec}
	rec.add(answeredQueued(numbered(1)))
	ctx, cancel := context.WithCancel(t.Context())
	asked := 0
	l.followOne(ctx, &rec.answers[0], func(int) string {
		if asked++; asked == 2 {
			cancel()
		}
		return service.URL
	})
	if found := rec.found(); len(found) != 1 || found[0].Kind != results.Unended || rec.unknown() != 1 {
		t.Errorf("%v, %d with an unknown outcome", found, rec.unknown())
	}
}

// TestSampleQueued looks up an order right after its 202.
func TestSampleQueued(t *testing.T) {
	t.Parallel()
	service := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if strings.HasSuffix(r.URL.Path, numbered(1).ID) {
			_, _ = w.Write([]byte(`{"id":"any","status":"queued"}`))
			return
		}
		http.NotFound(w, r)
	}))
	defer service.Close()
	rec := newRecord()
	l := &loading{lab: &lab{client: load.NewClient(http.DefaultTransport)}, rec: rec}
	for n := range 3 {
		l.sampleQueued(t.Context(), service.URL, answeredQueued(numbered(n)))
	}
	l.sampleQueued(t.Context(), "http://127.0.0.1:1", answeredQueued(numbered(1))) // no answer
	l.sampleQueued(t.Context(), service.URL, answered(numbered(0), refused, 409, client.SoldOut))
	if found := rec.found(); len(found) != 1 || found[0].Kind != results.Unseen || found[0].Count != 2 || rec.sampled != 3 {
		t.Errorf("%v, %d sampled", found, rec.sampled)
	}
}
