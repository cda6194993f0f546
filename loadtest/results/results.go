// Package results is the record of a load test, as results.json stores it.
package results

import (
	"encoding/json"
	"fmt"
	"maps"
	"os"
	"slices"
	"strings"
	"time"
)

// Run is one run of the load test.
type Run struct {
	Command string            `json:"command"` // command line without passwords and tokens
	Flags   map[string]string `json:"flags"`
	Seed    uint64            `json:"seed"`
	When    time.Time         `json:"when"`
	Commit  string            `json:"commit"`
	Machine string            `json:"machine"`
	// Stores names the stores with their versions. Addresses has their addresses, without
	// passwords.
	Stores        string `json:"stores"`
	StoresChinese string `json:"stores_chinese"`
	Addresses     string `json:"addresses,omitempty"`

	CutShort   bool         `json:"cut_short"`
	Strategies []Result     `json:"strategies"`
	Pitfalls   []Experiment `json:"pitfalls,omitempty"`
}

// Read reads a results.json.
func Read(path string) (*Run, error) {
	text, err := os.ReadFile(path)
	if err != nil {
		return nil, err
	}
	r := &Run{}
	if err := json.Unmarshal(text, r); err != nil {
		return nil, fmt.Errorf("reading %s: %w", path, err)
	}
	return r, nil
}

// Write writes a results.json.
func (r *Run) Write(path string) error {
	text, err := json.MarshalIndent(r, "", "  ")
	if err != nil {
		return err
	}
	return os.WriteFile(path, append(text, '\n'), 0o644)
}

// Open reports whether the orders arrived at a fixed rate, instead of each client
// waiting for its answers.
func (r *Run) Open() bool { return r.Search() || r.Flags["rate"] != "" && r.Flags["rate"] != "0" }

// Search reports whether the run searched for the highest rate.
func (r *Run) Search() bool { return r.Flags["search"] == "true" }

// Lifecycle reports whether the orders were paid, cancelled, refunded or left to expire.
func (r *Run) Lifecycle() bool { return r.Flags["lifecycle"] == "true" }

// Queued reports whether orders were answered 202, before they were committed, under any
// of the strategies.
func (r *Run) Queued() bool {
	return slices.ContainsFunc(r.Strategies, func(s Result) bool { return s.Queued > 0 })
}

// Guarded reports whether the guard was on behind any of the strategies.
func (r *Run) Guarded() bool {
	return slices.ContainsFunc(r.Strategies, func(s Result) bool { return s.Caught != nil })
}

// Killed reports whether an instance was killed under any of the strategies.
func (r *Run) Killed() bool {
	return slices.ContainsFunc(r.Strategies, func(s Result) bool { return s.Crash != nil })
}

// History reports whether the calls were recorded, to be checked for linearizability.
func (r *Run) History() bool {
	return slices.ContainsFunc(r.Strategies, func(s Result) bool { return s.History != nil })
}

// Count returns the number of strategies with this verdict.
func (r *Run) Count(verdict string) (n int) {
	for _, s := range r.Strategies {
		if s.Verdict == verdict {
			n++
		}
	}
	return n
}

// Verdicts.
const (
	AsPromised = "as promised"
	Broken     = "promise broken"
	Undecided  = "undecided" // the load ended early, or was not judged
)

// Result is the result of one strategy. A figure that could not be measured is null.
type Result struct {
	Strategy  string `json:"strategy"`
	Sound     bool   `json:"sound"` // the strategy promises not to oversell
	Instances int    `json:"instances"`
	Stock     int64  `json:"stock"`

	Load        string `json:"load"` // description of the load in words
	LoadChinese string `json:"load_chinese"`

	// Accepted counts orders that were answered 201, and those answered 202 that were
	// committed afterwards.
	Accepted   int64  `json:"accepted"`
	Queued     int64  `json:"queued"`      // orders answered 202
	TurnedDown int64  `json:"turned_down"` // orders answered 202 and refused later
	Refused    int64  `json:"refused"`
	Failed     int64  `json:"failed"`
	Sold       int64  `json:"sold"` // units in the orders of the database
	Oversold   int64  `json:"oversold"`
	Undersold  int64  `json:"undersold"` // units left at the end
	Unknown    int64  `json:"unknown"`   // failed orders that may have been committed
	Sampled    int64  `json:"sampled"`   // orders looked up right after their 201 or 202
	Caught     *int64 `json:"caught"`    // orders that the guard refused; null without a guard

	Requests      int64 `json:"requests"`       // all requests that were sent: orders, repeats under their keys, and calls on orders
	Uncertain     int64 `json:"uncertain"`      // answers that leave the outcome unknown
	Repeats       int64 `json:"repeats"`        // repeats of orders under their keys
	RepeatsFailed int64 `json:"repeats_failed"` // repeats that were not answered with the order
	Excess        int64 `json:"excess"`         // units that the gate had beyond the ledger at some time

	Failures map[string]int64 `json:"failures"` // failures by status and problem type
	Findings []Finding        `json:"findings"` // contradictions between the answers and the ledger

	Ledger   *int64 `json:"ledger_available"`
	Gate     *int64 `json:"gate_available"`
	InFlight *int64 `json:"gate_in_flight"`

	PerSecond   float64      `json:"orders_per_second"`
	P50         *float64     `json:"p50_millis"`
	P99         *float64     `json:"p99_millis"`
	APICPU      *float64     `json:"api_cpu_millis_per_order"`
	RedisCPU    *float64     `json:"redis_cpu_millis_per_order"`
	DatabaseCPU *float64     `json:"database_cpu_millis_per_order"`
	GatewayCPU  *float64     `json:"gateway_cpu_millis_per_order,omitempty"`
	Percentiles []Percentile `json:"percentiles"`
	Sales       []float64    `json:"sales_seconds"` // time of each accepted order, since the start

	Rate    int   `json:"rate,omitempty"`         // arrivals a second of an open load
	Late    int64 `json:"late"`                   // arrivals sent late
	Dropped int64 `json:"dropped"`                // arrivals never sent
	Highest *int  `json:"highest_rate,omitempty"` // highest rate that a search found; 0: below its lowest rate

	Probes    []Probe    `json:"probes,omitempty"`    // loads of a search, in their order
	Keys      *Result    `json:"keys,omitempty"`      // rush in which orders were repeated under their keys
	Crash     *Result    `json:"crash,omitempty"`     // rush in which an instance was killed
	Lifecycle *Lifecycle `json:"lifecycle,omitempty"` // ends of the orders of a lifecycle load; null if it was not audited
	History   *History   `json:"history,omitempty"`   // result of a history

	Verdict  string   `json:"verdict"`
	Surprise Surprise `json:"surprise,omitempty"`
	// Faults are the reasons for the verdict "promise broken".
	Faults        []string `json:"faults"`
	FaultsChinese []string `json:"faults_chinese"`
}

// History summarises the check of a history.
type History struct {
	Calls        int `json:"calls"` // calls about its SKUs; a call counts once for each SKU
	SKUs         int `json:"skus"`
	Linearizable int `json:"linearizable"` // SKUs with a linearizable history
}

// Add adds a SKU.
func (h *History) Add(calls int, linearizable bool) {
	h.Calls += calls
	h.SKUs++
	if linearizable {
		h.Linearizable++
	}
}

// Surprise says how sales differed from the expectation for the strategy. An empty Surprise means
// that they did not. Broken strategies are expected to oversell.
type Surprise string

// The surprises.
const (
	Oversell   Surprise = "oversold"         // the strategy must not oversell, and did
	NoOversell Surprise = "did not oversell" // the strategy must oversell, and did not
	NoCatch    Surprise = "caught nothing"   // the guard must catch orders that a broken gate admits, and did not
)

// SurprisedBy reports whether the sales of the strategy had this surprise. It includes the rushes
// with repeated keys and with a killed instance.
func (r *Result) SurprisedBy(s Surprise) bool {
	return r.Surprise == s || r.Crash != nil && r.Crash.Surprise == s || r.Keys != nil && r.Keys.Surprise == s
}

// Fault adds a fault, formatted in both languages.
func (r *Result) Fault(english, chinese string, args ...any) {
	r.AddFault(fmt.Sprintf(english, args...), fmt.Sprintf(chinese, args...))
}

// AddFault adds a fault.
func (r *Result) AddFault(english, chinese string) {
	r.Faults, r.FaultsChinese = append(r.Faults, english), append(r.FaultsChinese, chinese)
}

// Describe adds to the description of the load, formatted in both languages.
func (r *Result) Describe(english, chinese string, args ...any) {
	r.Load += fmt.Sprintf(english, args...)
	r.LoadChinese += fmt.Sprintf(chinese, args...)
}

// FailuresText lists the failures by status and problem type.
func (r *Result) FailuresText() string {
	var each []string
	for _, name := range slices.Sorted(maps.Keys(r.Failures)) {
		each = append(each, fmt.Sprintf("%d %s", r.Failures[name], name))
	}
	return strings.Join(each, ", ")
}

// Kept says how many of the orders that were accepted in the rush with a killed instance were found
// afterwards.
func (r *Result) Kept() string {
	if r.Crash == nil {
		return "–"
	}
	return fmt.Sprintf("%d of %d", r.KeptOrders(), r.Crash.Accepted)
}

// KeptOrders is the number of orders that were accepted in the rush with a killed
// instance and found afterwards. It is 0 without such a rush.
func (r *Result) KeptOrders() int64 {
	if r.Crash == nil {
		return 0
	}
	kept := r.Crash.Accepted
	for _, finding := range r.Crash.Findings {
		if finding.Kind == Missing {
			kept -= finding.Count
		}
	}
	return kept
}

// MaxRate is the rate at which a search ends, in arrivals a second.
const MaxRate = 200_000

// RateText is the rate of an open load. For a search it is the highest rate that kept
// the limit.
func (r *Result) RateText() string {
	switch {
	case r.Highest != nil && *r.Highest == 0:
		return fmt.Sprintf("< %d", r.Rate)
	case r.Highest != nil && *r.Highest == MaxRate:
		return fmt.Sprintf("≥ %d", r.Rate)
	}
	return fmt.Sprint(r.Rate)
}

// Percentile is one point of a latency curve.
type Percentile struct {
	Quantile float64 `json:"quantile"` // from 0 to 1
	Millis   float64 `json:"millis"`
}

// Lifecycle counts the ends of the orders of a lifecycle load. Paid, Cancelled, Expired and
// Refunded add up to Orders. A revived order is also counted as paid or refunded.
type Lifecycle struct {
	Orders     int64 `json:"orders"`
	Paid       int64 `json:"paid"`
	Cancelled  int64 `json:"cancelled"`
	Expired    int64 `json:"expired"`
	Refunded   int64 `json:"refunded"`
	Revived    int64 `json:"revived"`     // orders paid by a payment that came after their expiry
	Payments   int64 `json:"payments"`    // payments of all orders
	RefundsDue int64 `json:"refunds_due"` // payments that must be paid back
}

// Probe is one load of a search.
type Probe struct {
	Rate     int      `json:"rate"`
	Held     bool     `json:"held"` // the load kept the limit
	P99      *float64 `json:"p99_millis"`
	Accepted int64    `json:"accepted"`
	Failed   int64    `json:"failed"`
	Late     int64    `json:"late"`
	Dropped  int64    `json:"dropped"`
}

// Kind is one kind of contradiction between the answers and the ledger.
type Kind string

// The kinds of contradictions.
const (
	WrongAnswer Kind = "wrong-answer"
	Repeated    Kind = "repeated"
	Early       Kind = "early"
	Unseen      Kind = "unseen"
	Unended     Kind = "unended"
	Missing     Kind = "missing"
	OtherBuyer  Kind = "other-buyer"
	OtherLines  Kind = "other-lines"
	OtherStatus Kind = "other-status"
	Unread      Kind = "unread"
	Denied      Kind = "denied"
	Unasked     Kind = "unasked"
	OtherReplay Kind = "other-replay"
	Doubled     Kind = "doubled"
	OtherExpiry Kind = "other-expiry"

	// The kinds below are those of a lifecycle load.
	Unanswered   Kind = "unanswered"
	Unfinished   Kind = "unfinished"
	Contradicted Kind = "contradicted"
	BadHistory   Kind = "bad-history"
	ExpiredEarly Kind = "expired-early"
	LostPayment  Kind = "lost-payment"
	WrongPayment Kind = "wrong-payment"
	ExtraPayment Kind = "extra-payment"
	OverLimit    Kind = "over-limit"
	WrongClaim   Kind = "wrong-claim"
	WrongWindow  Kind = "wrong-window"
)

// Kinds lists the kinds in the order in which they are reported.
var Kinds = []Kind{WrongAnswer, Repeated, Early, Unseen, Unended, Missing, OtherBuyer, OtherLines, OtherStatus, Unread, Denied, Unasked, OtherReplay, Doubled, OtherExpiry,
	Unanswered, Unfinished, Contradicted, BadHistory, ExpiredEarly, LostPayment, WrongPayment, ExtraPayment, OverLimit, WrongClaim, WrongWindow}

// meanings are the texts of the kinds, in English (after a number) and in Chinese.
var meanings = map[Kind]struct{ english, chinese string }{
	WrongAnswer: {"answers name a different order than the request", "响应中的订单与请求不符"},
	Repeated:    {"answers name an order that an earlier answer named", "响应中的订单在之前的响应里已经出现过"},
	Early:       {"orders were answered 201 before they were committed", "订单尚未提交就返回了 201"},
	Unseen:      {"orders were not found right after their 202", "返回 202 之后立即查询，查不到订单"},
	Unended:     {"orders answered 202 are still queued at the end", "返回 202 的订单到最后仍在排队"},
	Missing:     {"accepted orders are not found", "查不到已接受的订单"},
	OtherBuyer:  {"accepted orders are stored under another buyer", "已接受的订单记在了别的买家名下"},
	OtherLines:  {"accepted orders are stored with other lines", "已接受的订单，存下的明细与请求不符"},
	OtherStatus: {"accepted orders are stored with another status", "已接受的订单，存下的状态不符"},
	Unread:      {"accepted orders are answered differently by GET", "已接受的订单，GET 的响应与之不符"},
	Denied:      {"orders are stored whose answer says that nothing was cut", "响应说没有扣减，订单却存在"},
	Unasked:     {"orders are stored that no answer names", "存在没有任何响应提到过的订单"},
	OtherReplay: {"repeated requests got another answer than the first one to their key", "重复请求得到的响应，与该幂等键的第一个响应不同"},
	Doubled:     {"orders are stored besides the one of the same request or key", "同一个请求或幂等键之下，存在第二个订单"},
	OtherExpiry: {"accepted orders expire at another time by GET", "已接受的订单，GET 给出的过期时间与之前不同"},

	Unanswered:   {"calls got no final answer", "请求没有得到最终响应"},
	Unfinished:   {"orders are neither paid, cancelled, expired nor refunded at the end", "订单到最后既未付款、取消、过期，也未退款"},
	Contradicted: {"orders contradict the answers to pay, cancel or refund", "订单与付款、取消或退款的响应矛盾"},
	BadHistory:   {"orders have a history that the rules do not allow, or that does not end with their status", "订单的状态历史不合规则，或与当前状态不符"},
	ExpiredEarly: {"orders have expired before their time", "订单未到时间就已过期"},
	LostPayment:  {"payments are not stored with their orders", "订单下没有存这笔付款"},
	WrongPayment: {"payments are stored with a status that contradicts their orders", "付款的状态与订单矛盾"},
	ExtraPayment: {"payments are stored that no client reported", "存在没有客户端上报过的付款"},
	OverLimit:    {"buyers hold more units than their limit", "买家持有的件数超过限购"},
	WrongWindow:  {"orders were answered with another payment window than the service's", "响应中订单的付款时限与服务的设置不符"},
	WrongClaim:   {"buyers have claims that differ from the units that they hold", "买家的限购记录与实际持有的件数不符"},
}

// String is the meaning of the kind, after a number.
func (k Kind) String() string { return meanings[k].english }

// Finding is one kind of contradiction that the audit found.
type Finding struct {
	Kind  Kind   `json:"kind"`
	Count int64  `json:"count"` // number of affected items, mostly orders
	First string `json:"first"` // one of the items
}

func (f Finding) String() string {
	return fmt.Sprintf("%d %s (the first: %s)", f.Count, f.Kind, f.First)
}

// Chinese is the Chinese counterpart of String.
func (f Finding) Chinese() string {
	return fmt.Sprintf("%s：%d（第一个：%s）", meanings[f.Kind].chinese, f.Count, f.First)
}
