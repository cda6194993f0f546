package main

import (
	"net/http"

	"github.com/holdfast-stock/holdfast/client"
	"github.com/holdfast-stock/holdfast/internal/assembly"
	"github.com/holdfast-stock/holdfast/internal/lab/load"
	"github.com/holdfast-stock/holdfast/loadtest/history"
	"github.com/holdfast-stock/holdfast/loadtest/results"
)

// ending is the reason why a load ended.
type ending int

const (
	soldOut     ending = iota // all clients were refused, or all arrivals of an open load were sent
	crashed                   // enough orders were accepted after an instance was killed
	atLimit                   // the load reached --limit
	interrupted               // a signal ended the load
)

// early reports whether the load ended before its time. It may then have left orders
// under way.
func (e ending) early() bool { return e == atLimit || e == interrupted }

// terms are the requirements on the strategy under a load.
type terms struct {
	spec   assembly.Spec
	ending ending
	// mayOversell allows overselling. mustOversell requires it, because a load under which a broken
	// strategy does not oversell proves nothing.
	mayOversell, mustOversell bool
	// mustCatch requires that the guard refuses orders that a broken gate admitted.
	mustCatch   bool
	plenty      bool  // there is more stock than orders, and nothing fails, so no refusal is correct
	gated       bool  // the strategy has a gate, and the audit reads its Redis
	maxFailures share // limit for the failures among orders that were not refused, and their repeats; 1: no limit
	// faulty says that instances or stores failed or may have failed, or that a search overloads
	// them. Then outcomes may be unknown, and the service may have something to repair.
	faulty bool
}

// terms returns the terms of a load. No strategy may oversell with the guard, or under an open
// load, which has more stock than orders.
func (l *lab) terms(spec assembly.Spec, end ending) terms {
	failing := end == crashed || end == interrupted || l.Search
	t := terms{
		spec: spec, ending: end, maxFailures: l.MaxFailures, faulty: failing || l.Faults,
		plenty: l.open() && !l.Faults, gated: spec.HasGate() && l.redis != nil,
	}
	if failing {
		t.maxFailures = 1
	}
	if l.open() || end == crashed {
		return t
	}
	if l.guarded(spec) {
		t.mustCatch = !spec.Sound && end == soldOut && l.several()
		return t
	}
	t.mayOversell = l.knownToOversell(spec)
	t.mustOversell = t.mayOversell && end == soldOut && (l.several() || l.ExpectOversell)
	return t
}

// guarded reports whether the ledger's guard also checks the orders that the strategy's gate
// admits. A strategy without a gate has no guard.
func (l *lab) guarded(spec assembly.Spec) bool { return l.Guard && spec.HasGate() }

// several reports whether several instances share the stores. With a single instance, a broken
// strategy may not oversell.
func (l *lab) several() bool {
	if len(l.Targets) > 0 {
		return len(l.Targets) > 1
	}
	return l.Instances > 1
}

// knownToOversell reports whether the strategy is broken. Services at --target count as
// sound unless --expect-oversell says otherwise.
func (l *lab) knownToOversell(spec assembly.Spec) bool {
	if len(l.Targets) > 0 {
		return l.ExpectOversell
	}
	return !spec.Sound
}

// judge adds the faults and the verdict to the result. A load that ended early can find a fault,
// but cannot show that there is none. conclusive is false if a broken strategy should have
// oversold, or the guard should have caught it, and neither happened. Another rush may then show
// it. A rush with findings is conclusive, because another rush would hide them.
func judge(r *results.Result, t terms) (conclusive bool) {
	if t.ending != soldOut {
		r.Undersold = 0 // not every client was refused
	}
	conclusive = judgeSales(r, t)
	judgeRefusals(r, t)
	judgeOrders(r)
	judgeCounts(r, t)
	judgeFailures(r, t)
	judgeUncertain(r, t)
	judgeRepairs(r, t)
	if t.ending == atLimit {
		r.Describe(", stopped at the limit with %d of %d units sold", "，到时间限制为止，库存 %[2]d 件，卖出 %[1]d 件", r.Sold, r.Stock)
	}
	switch {
	case len(r.Faults) > 0:
		r.Verdict = results.Broken
	case t.ending.early() && !(t.mayOversell && r.Oversold > 0):
		r.Verdict = results.Undecided
	default:
		r.Verdict = results.AsPromised
	}
	return conclusive || len(r.Findings) > 0
}

// judgeSales compares the units sold with the stock.
func judgeSales(r *results.Result, t terms) (conclusive bool) {
	conclusive = true
	switch {
	case r.Oversold > 0 && !t.mayOversell:
		r.Surprise = results.Oversell
		r.Fault("oversold %d units", "超卖 %d 件", r.Oversold)
	case r.Oversold == 0 && t.mustOversell:
		conclusive, r.Surprise = false, results.NoOversell
		r.Fault("it should oversell and did not: the load proves nothing", "本应超卖却没有：这次压测证明不了什么")
	case t.mustCatch && r.Caught != nil && *r.Caught == 0:
		conclusive, r.Surprise = false, results.NoCatch
		r.Fault("the guard caught nothing: the load proves nothing", "兜底什么都没有拦下：这次压测证明不了什么")
	}
	if r.Accepted == 0 && t.ending != interrupted {
		r.Fault("no order was accepted", "没有订单被接受")
	}
	return conclusive
}

// judgeRefusals counts units or orders that a sound strategy should not have refused.
func judgeRefusals(r *results.Result, t terms) {
	if t.spec.Sound && r.Undersold > 0 {
		r.Fault("%d units were left when every client was told \"sold out\"", "每个客户端都收到“已售罄”，却还剩 %d 件", r.Undersold)
	}
	if wrongly := r.Refused + r.TurnedDown; t.spec.Sound && t.plenty && wrongly > 0 {
		r.Fault("%d orders were refused, and there was more stock than orders", "库存多于订单，却拒绝了 %d 单", wrongly)
	}
}

// judgeOrders compares the answers with the orders in the ledger. A request with an unknown outcome
// may have one order.
func judgeOrders(r *results.Result) {
	judgeFindings(r)
	switch most := r.Accepted + r.Unknown; {
	case r.Sold < r.Accepted:
		r.Fault("%d orders were accepted, and %d sold", "接受了 %d 单，卖出 %d 单", r.Accepted, r.Sold)
	case r.Sold > most:
		r.Fault("%d orders were accepted, %d have an unknown outcome, and %d sold", "接受了 %d 单，%d 单结果未知，卖出 %d 单", r.Accepted, r.Unknown, r.Sold)
	}
}

// judgeFindings adds what the record and its audit found to the faults.
func judgeFindings(r *results.Result) {
	for _, finding := range r.Findings {
		r.AddFault(finding.String(), finding.Chinese())
	}
}

// judgeCounts compares the counts of orders, stock row and gate. They agree once nothing is in
// flight. After a load that ended early, this may not be the case.
func judgeCounts(r *results.Result, t terms) {
	if !t.spec.Sound || r.Ledger == nil || t.ending.early() {
		return
	}
	if *r.Ledger != r.Stock-r.Sold {
		r.Fault("the stock row has %d units left, but %d by the orders", "库存行还剩 %d 件，按订单应剩 %d 件", *r.Ledger, r.Stock-r.Sold)
	}
	switch {
	case r.Gate == nil && t.gated && !t.faulty:
		r.Fault("the audit found no count at the gate", "审计在闸口找不到计数")
		return
	case r.Gate == nil:
		return
	}
	if *r.Gate+*r.InFlight != *r.Ledger {
		r.Fault("the gate has %d units left and %d in flight, the ledger %d", "闸口还剩 %d 件、在途 %d 件，账本是 %d 件", *r.Gate, *r.InFlight, *r.Ledger)
	}
	if t.ending == crashed && *r.InFlight > 0 {
		r.Fault("recovery left %d units in flight", "恢复之后仍有 %d 件在途", *r.InFlight)
	}
}

// judgeFailures compares the share of failures with its limit. The answers "busy" of
// optimistic do not count: they are its normal answer under contention, and nothing was
// cut.
func judgeFailures(r *results.Result, t terms) {
	counted := r.Failed + r.RepeatsFailed
	if t.spec.Cutter == "optimistic" {
		busy := load.Answer{Status: http.StatusServiceUnavailable, Problem: client.Busy}.Failure()
		counted -= r.Failures[busy] + r.Failures["repeat: "+busy]
	}
	all := r.Accepted + r.Failed + r.Repeats // the number of refusals is arbitrary, and would dilute the share
	if part := share(counted) / share(max(all, 1)); part > t.maxFailures {
		r.Fault("%v of %d orders and repeats failed, more than %v: %s", "%[2]d 单（含重复的请求）中有 %[1]v 失败，超过 %[3]v：%[4]s", part, all, t.maxFailures, r.FailuresText())
	}
}

// certain is a number of requests. One in so many may have an unknown outcome without a fault, for
// example because the machine paused.
const certain = 1000

// judgeUncertain checks that almost no outcome is unknown if nothing failed.
func judgeUncertain(r *results.Result, t terms) {
	if most := (r.Requests + certain - 1) / certain; !t.faulty && r.Uncertain > most {
		r.Fault("%d of %d requests have an unknown outcome, more than %d, and nothing was killed",
			"%[2]d 个请求中有 %[1]d 个结果未知，超过 %[3]d，而且没有强杀任何进程", r.Uncertain, r.Requests, most)
	}
}

// judgeRepairs checks that a sound strategy had nothing to repair if nothing failed. A count that
// was wrong for a while may be right when it is audited.
func judgeRepairs(r *results.Result, t terms) {
	if t.faulty || !t.spec.Sound {
		return
	}
	if r.Excess > 0 {
		r.Fault("the gate had %d units more than the ledger for a while, and nothing was killed",
			"闸口曾比账本多出 %d 件，而且没有强杀任何进程", r.Excess)
	}
	if r.Caught != nil && *r.Caught > 0 {
		r.Fault("the guard refused %d orders that the gate had admitted, and nothing was killed",
			"兜底拦下了闸口放行的 %d 单，而且没有强杀任何进程", *r.Caught)
	}
}

// judgeCrash adds the rush with a killed instance, and its faults, to the result of the
// strategy.
func judgeCrash(r, crash *results.Result) {
	r.Crash = crash
	addFaults(r, crash, "after kill -9: ", "强杀之后：")
}

// judgeKeys adds the rush with repeated keys, and its faults, to the result of the
// strategy.
func judgeKeys(r, keys *results.Result) {
	r.Keys = keys
	addFaults(r, keys, "with repeated keys: ", "重复幂等键时：")
}

// addFaults adds the faults of another load of the strategy to its result. The worse verdict of the
// two counts.
func addFaults(r, other *results.Result, prefix, chinesePrefix string) {
	for i, fault := range other.Faults {
		r.AddFault(prefix+fault, chinesePrefix+other.FaultsChinese[i])
	}
	if other.Verdict == results.Broken || r.Verdict == results.AsPromised {
		r.Verdict = other.Verdict
	}
	if other.Verdict == results.Undecided {
		r.Load, r.LoadChinese = r.Load+"; "+other.Load, r.LoadChinese+"；"+other.LoadChinese
	}
}

// judgeHistory adds the verdicts on the SKUs of a history, and the verdict on the strategy,
// to the result. The check of a history does not compare bytes: a replay that differs from
// the first answer is one of the findings. conclusive is false if a broken strategy was not
// detected and nothing else was found.
func judgeHistory(r *results.Result, verdicts []history.Verdict, t terms) (conclusive bool) {
	judgeFindings(r)
	detected := false
	for _, v := range verdicts {
		r.History.Add(v.Calls, v.Decision == history.Linearizable)
		switch {
		case v.Decision == history.NotLinearizable && t.mayOversell:
			detected = true
		case v.Decision == history.Undecided && t.mayOversell: // the counts of a strategy that may oversell may never agree
		case v.Decision != history.Linearizable:
			r.Fault("%s is %s: %s", "%s：调用历史无法线性化或无法判定（%s）：%s", v.SKU, v.Decision, v.Why)
		}
	}
	if r.Accepted == 0 {
		r.Fault("no order was accepted: the history proves nothing", "没有订单被接受：这份调用历史证明不了什么")
	}
	if t.mustOversell && !detected {
		r.Fault("the check should detect that it is broken, and did not: the history proves nothing", "检查器本应发现它有错，却没有发现：这份调用历史什么也不能证明")
	}
	r.Verdict = results.AsPromised
	if len(r.Faults) > 0 {
		r.Verdict = results.Broken
	}
	return detected || !t.mustOversell || len(r.Findings) > 0
}
