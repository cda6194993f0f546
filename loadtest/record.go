package main

import (
	"sync"
	"sync/atomic"
	"time"

	"github.com/holdfast-stock/holdfast/client"
	"github.com/holdfast-stock/holdfast/internal/lab/load"
	"github.com/holdfast-stock/holdfast/loadtest/results"
)

// Outcomes of one request.
const (
	accepted = load.Accepted
	refused  = load.Refused
	failed   = load.Failed
	queued   = load.Queued // follow determines the end of the order
	// turnedDown is an order that was queued and could not be committed.
	turnedDown = "turned down"
)

// answer is the record of one request.
type answer struct {
	load.Answer
	at      time.Duration // time of arrival, since the start of the load
	outcome string        // that of the Answer; follow replaces queued by the end of the order
	asked   order         // the order in the request
	order   order         // the order in a 201 or 202; follow updates its status
}

// order is an order in a request, in an answer or in a store. Copies from the ledger have no times.
type order client.Order

type line = client.Line

// oneUnit returns the order of every buyer in a load test.
func oneUnit(buyer, sku string) order {
	return order{BuyerID: buyer, Lines: []line{{SKU: sku, Quantity: 1}}}
}

// request returns the request for the order.
func (o order) request(key string) client.OrderRequest {
	return client.OrderRequest{BuyerID: o.BuyerID, Lines: o.Lines, Key: key}
}

// orderIn returns the order in an answer, or an empty one.
func orderIn(a load.Answer) (o order) {
	if a.Order != nil {
		o = order(*a.Order)
	}
	return o
}

// answerTo returns the record of the service's answer to a request for the order.
func answerTo(asked order, got load.Answer) answer {
	a := answer{Answer: got, outcome: got.Outcome(), asked: asked}
	if a.promised() {
		a.order = orderIn(got) // the audit reports an order without an ID
	}
	return a
}

// promised reports whether the answer names an order: it is a 201 or a 202.
func (a answer) promised() bool { return a.outcome == accepted || a.outcome == queued }

// unknown reports whether the order of a request may have been committed although no
// answer named it. The outcome of an order that is still queued at the end is unknown too.
func (a answer) unknown() bool {
	return a.outcome == queued || a.outcome == failed && a.Unknown()
}

// maxAnswers bounds the record of one load.
const maxAnswers = 2_000_000

// record collects the answers of one load, and the findings of its audit. It is safe for
// concurrent use.
type record struct {
	start    time.Time
	accepted atomic.Int64
	refused  atomic.Int64
	failed   atomic.Int64
	queued   atomic.Int64 // answered 202
	// turnedDown counts the queued orders that were refused later. Committed ones count as
	// accepted.
	turnedDown atomic.Int64
	requests   atomic.Int64 // all requests that were sent: orders, repeats, and calls on orders
	// uncertain counts the answers that leave the outcome unknown.
	uncertain     atomic.Int64
	repeats       atomic.Int64 // repeated requests with a key
	repeatsFailed atomic.Int64

	mu        sync.Mutex
	answers   []answer
	failures  map[string]int64 // by status and problem type
	sampled   int64            // orders looked up right after their 201 or 202
	sampleErr error            // first error of a sampled look-up
	findings  map[results.Kind]*results.Finding
}

func newRecord() *record {
	return &record{start: time.Now(), failures: make(map[string]int64), findings: make(map[results.Kind]*results.Finding)}
}

// add adds an answer. It reports whether the record is now full.
func (r *record) add(a answer) (full bool) {
	switch a.outcome {
	case accepted:
		r.accepted.Add(1)
	case refused:
		r.refused.Add(1)
	case queued:
		r.queued.Add(1)
	default:
		r.failed.Add(1)
	}
	if a.outcome == failed {
		r.fail(a.Failure())
	}
	a.Body, a.Order = nil, nil // nobody reads them any more, and there may be millions
	r.mu.Lock()
	defer r.mu.Unlock()
	r.answers = append(r.answers, a)
	return len(r.answers) >= maxAnswers
}

// heard counts a request and its answer.
func (r *record) heard(a load.Answer) {
	r.requests.Add(1)
	if a.Outcome() == failed && a.Unknown() {
		r.uncertain.Add(1)
	}
}

// fail counts a failure.
func (r *record) fail(name string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.failures[name]++
}

// acknowledged returns the number of orders answered 201 or 202 so far. Call it only
// before follow.
func (r *record) acknowledged() int64 { return r.accepted.Load() + r.queued.Load() }

// unknown returns the number of requests with an unknown outcome.
func (r *record) unknown() (n int64) {
	for _, a := range r.answers {
		if a.unknown() {
			n++
		}
	}
	return n
}

// find adds one contradiction to the findings.
func (r *record) find(kind results.Kind, where string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.findings[kind] == nil {
		r.findings[kind] = &results.Finding{Kind: kind, First: where}
	}
	r.findings[kind].Count++
}

// found returns the findings in the order of results.Kinds.
func (r *record) found() (all []results.Finding) {
	for _, kind := range results.Kinds {
		if f := r.findings[kind]; f != nil {
			all = append(all, *f)
		}
	}
	return all
}

// addTo adds the counts and findings of the audit to the result.
func (r *record) addTo(result *results.Result) {
	result.Unknown, result.Sampled, result.Findings = r.unknown(), r.sampled, r.found()
	result.Requests, result.Uncertain = r.requests.Load(), r.uncertain.Load()
	result.Repeats, result.RepeatsFailed = r.repeats.Load(), r.repeatsFailed.Load()
}
