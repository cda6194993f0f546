package main

import (
	"encoding/json"
	"fmt"
	"net/http"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"
)

// Outcomes of one request.
const (
	accepted = "accepted"
	refused  = "refused" // sold out is a correct answer
	failed   = "failed"
)

// Problem types of the service that the harness tells apart.
const (
	problemSoldOut     = "sold-out"
	problemBusy        = "busy"
	problemUnavailable = "unavailable"
)

// Failures without an answer.
const (
	noConnection = "connection refused" // nothing was sent
	timedOut     = "timeout"
	noAnswer     = "no answer"
)

// answer is the harness's own record of one request.
type answer struct {
	at      time.Duration // since the load began
	took    time.Duration
	outcome string
	status  int    // 0: none came
	problem string // the last part of the problem's type; without an answer, why
	asked   order  // what the request asked for
	order   order  // what a 201 says
}

// order is an order as a request, an answer or a store has it.
type order struct {
	ID     string `json:"id"`
	Buyer  string `json:"buyer_id"`
	Status string `json:"status"`
	Lines  []line `json:"lines"`
}

type line struct {
	SKU      string `json:"sku"`
	Quantity int64  `json:"quantity"`
}

// oneUnit is what a buyer asks for.
func oneUnit(buyer, sku string) order {
	return order{Buyer: buyer, Lines: []line{{SKU: sku, Quantity: 1}}}
}

// body is the request for the order.
func (o order) body() []byte {
	text, _ := json.Marshal(struct { // no value of these types fails
		Buyer string `json:"buyer_id"`
		Lines []line `json:"lines"`
	}{o.Buyer, o.Lines})
	return text
}

// read fills in what the service answered. status 0: there is no answer, and
// text says why.
func (a *answer) read(status int, text []byte) {
	a.status = status
	if status == http.StatusCreated {
		a.outcome = accepted
		_ = json.Unmarshal(text, &a.order) // what cannot be read names no order
		return
	}
	a.outcome = failed
	if status == 0 {
		a.problem = whyNone(string(text))
		return
	}
	var problem struct {
		Type string `json:"type"`
	}
	_ = json.Unmarshal(text, &problem)
	a.problem = problem.Type[strings.LastIndexByte(problem.Type, '/')+1:]
	if status == http.StatusConflict && a.problem == problemSoldOut {
		a.outcome = refused
	}
}

func whyNone(cause string) string {
	switch {
	case strings.Contains(cause, "connection refused"):
		return noConnection
	case strings.Contains(cause, "Client.Timeout"), strings.Contains(cause, "deadline exceeded"):
		return timedOut
	}
	return noAnswer
}

// open reports whether a failure leaves open what became of the order. A lost
// answer does, and one that says so; and a failure without a problem type, which
// a proxy gave in the service's stead. Every other failure promises that nothing
// was cut.
func (a answer) open() bool {
	switch {
	case a.outcome != failed:
		return false
	case a.status == 0:
		return a.problem != noConnection
	case a.status >= 500:
		return a.problem == problemUnavailable || a.problem == ""
	}
	return false
}

// failure names a failure by its status and problem type.
func (a answer) failure() string {
	if a.status == 0 {
		return a.problem
	}
	return strings.TrimSpace(strconv.Itoa(a.status) + " " + a.problem)
}

// maxAnswers bounds the record of one load.
const maxAnswers = 2_000_000

// record collects answers, and what the audit finds of them. It is safe for
// concurrent use.
type record struct {
	start    time.Time
	accepted atomic.Int64
	refused  atomic.Int64
	failed   atomic.Int64

	mu       sync.Mutex
	answers  []answer
	failures map[string]int64 // by status and problem type
	sampled  int64            // orders looked up at the moment of their 201
	trouble  error            // why a sample could not be taken
	findings map[kind]*Finding
}

func newRecord() *record {
	return &record{start: time.Now(), failures: make(map[string]int64), findings: make(map[kind]*Finding)}
}

// add records an answer. full: there is room for no other.
func (r *record) add(a answer) (full bool) {
	switch a.outcome {
	case accepted:
		r.accepted.Add(1)
	case refused:
		r.refused.Add(1)
	default:
		r.failed.Add(1)
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	if a.outcome == failed {
		r.failures[a.failure()]++
	}
	r.answers = append(r.answers, a)
	return len(r.answers) >= maxAnswers
}

// unknown is how many orders have an open outcome.
func (r *record) unknown() (n int64) {
	for _, a := range r.answers {
		if a.open() {
			n++
		}
	}
	return n
}

// find records a contradiction, and where it was first seen.
func (r *record) find(k kind, where string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.findings[k] == nil {
		r.findings[k] = &Finding{Kind: k, First: where}
	}
	r.findings[k].Count++
}

// found are the findings in the order of their kinds.
func (r *record) found() (all []Finding) {
	for _, k := range kinds {
		if f := r.findings[k]; f != nil {
			all = append(all, *f)
		}
	}
	return all
}

// kind is one way in which the stores contradict the answers.
type kind string

const (
	wrongAnswer kind = "wrong-answer"
	repeated    kind = "repeated"
	early       kind = "early"
	missing     kind = "missing"
	otherBuyer  kind = "other-buyer"
	otherLines  kind = "other-lines"
	otherStatus kind = "other-status"
	unread      kind = "unread"
	denied      kind = "denied"
	unasked     kind = "unasked"
)

// kinds are all of them, in the order in which they are reported.
var kinds = []kind{wrongAnswer, repeated, early, missing, otherBuyer, otherLines, otherStatus, unread, denied, unasked}

var meanings = map[kind]string{
	wrongAnswer: "answers 201 are not for the order that was asked for",
	repeated:    "answers 201 name an order that an earlier 201 named",
	early:       "orders were answered 201 before they were committed",
	missing:     "orders answered 201 are not found",
	otherBuyer:  "orders answered 201 are stored under another buyer",
	otherLines:  "orders answered 201 are stored with other lines",
	otherStatus: "orders answered 201 are stored with another status",
	unread:      "orders answered 201 are not read back as they were answered",
	denied:      "orders are stored whose buyers were told that nothing was cut",
	unasked:     "orders are stored that nobody asked for",
}

// Finding is how many orders the stores contradict in one way.
type Finding struct {
	Kind  kind   `json:"kind"`
	Count int64  `json:"count"`
	First string `json:"first"` // the first of them
}

func (f Finding) String() string {
	return fmt.Sprintf("%d %s (the first: %s)", f.Count, meanings[f.Kind], f.First)
}
