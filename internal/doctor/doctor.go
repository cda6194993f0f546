// Package doctor checks the stores, addresses, certificate, clocks and locks that an instance with
// the given flags would use. It changes nothing.
package doctor

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/netip"
	"slices"
	"sync"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/holdfast-stock/holdfast/internal/assembly"
	"github.com/holdfast-stock/holdfast/internal/store"
)

const (
	// checkLimit bounds one check. A server that does not answer within it is a problem.
	checkLimit = 4500 * time.Millisecond
	// closeLimit bounds the closing of what the checks have opened. A frozen server may delay it.
	closeLimit = time.Second
)

// Options are the flags of the instance. The caller has refused those that cannot be used
// together.
type Options struct {
	assembly.Parts
	TakeDeadline time.Duration
	DrainDelay   time.Duration
	// RequestTimeout bounds the work for one request.
	RequestTimeout time.Duration

	Listen string // an address
	// Public means that other machines can reach Listen.
	Public    bool
	OpsListen string // an address; empty: operators use Listen

	TLSCert, TLSKey      string // files; empty: plain HTTP
	JWTKeys, JWTAudience string // empty: not set
	RateLimit            float64
	RateBurst            int
	TrustedProxies       []netip.Prefix
}

// Run makes the checks and prints what they find, as JSON or as a line each. It returns an
// error if there is a problem.
func Run(ctx context.Context, o Options, asJSON bool, stdout io.Writer) error {
	e := &examination{o: o}
	defer e.close()
	e.together(ctx,
		check{"flags", e.checkFlags}, check{"listen", e.checkListen}, check{"security", e.checkSecurity}, check{"redis", e.checkRedis},
		check{"database", e.checkDatabase}, check{"disk", e.checkDisk})
	e.together(ctx, check{"schema", e.checkSchema}, check{"clocks", e.checkClocks})
	ready := e.isOK("schema")
	if o.Strategy.NeedsLock {
		e.together(ctx, check{"locks", func(ctx context.Context) store.Findings { return e.checkLockServers(ctx, ready) }})
		ready = ready && e.isOK("locks")
	}
	if ready {
		e.together(ctx, check{"ledger", e.checkLedger}) // this check opens its own locks, if the strategy takes any
	}
	return e.print(asJSON, stdout)
}

// check is a part of the examination. run must return soon after ctx has ended.
type check struct {
	name string
	run  func(ctx context.Context) store.Findings
}

// result is one line of the output.
type result struct {
	Check  string      `json:"check"`
	Level  store.Level `json:"level"`
	Detail string      `json:"detail"`
	Fix    string      `json:"fix,omitempty"`
}

// examination is one run of the doctor.
type examination struct {
	o       Options
	results []result

	mu    sync.Mutex
	sql   *store.SQL            // nil: the instance has no database, or it cannot be reached
	redis redis.UniversalClient // nil: the instance has no Redis, or it cannot be reached
}

// together runs the checks at the same time and appends their results in this order. It
// does not wait longer than checkLimit, even if a check does not return.
func (e *examination) together(ctx context.Context, checks ...check) {
	late, cancelLate := context.WithTimeout(context.WithoutCancel(ctx), checkLimit+300*time.Millisecond)
	defer cancelLate()
	ctx, cancel := context.WithTimeout(ctx, checkLimit)
	defer cancel()
	found := make([]chan store.Findings, len(checks))
	for i, c := range checks {
		found[i] = make(chan store.Findings, 1)
		go func() { found[i] <- c.run(ctx) }()
	}
	for i, c := range checks {
		for _, f := range await(late, found[i]) {
			e.results = append(e.results, result{c.name, f.Level, f.Detail, f.Fix})
		}
	}
}

// await returns what a check finds, or a problem if it has not ended when late ends.
func await(late context.Context, check <-chan store.Findings) (found store.Findings) {
	select {
	case found = <-check:
		return found
	case <-late.Done():
	}
	select {
	case found = <-check: // this check has ended in time, but another has not
	default:
		found.Problem("check the server and the network", "no answer within %v", checkLimit)
	}
	return found
}

// close closes the stores. It does not wait for frozen servers: the process ends.
func (e *examination) close() {
	sql, client := e.stores()
	closed := make(chan struct{})
	go func() {
		defer close(closed)
		if client != nil {
			_ = client.Close() // nothing was written
		}
		if sql != nil {
			_ = sql.Close()
		}
	}()
	select {
	case <-closed:
	case <-time.After(closeLimit):
	}
}

// stores returns the stores that the checks could open.
func (e *examination) stores() (sql *store.SQL, client redis.UniversalClient) {
	e.mu.Lock()
	defer e.mu.Unlock()
	return e.sql, e.redis
}

// isOK reports whether a check has ended with a finding that is OK.
func (e *examination) isOK(check string) bool {
	return slices.ContainsFunc(e.results, func(r result) bool { return r.Check == check && r.Level == store.OK })
}

// checkFlags reports on the flags. Flags that cannot be used together were refused before.
func (e *examination) checkFlags(_ context.Context) (found store.Findings) {
	o := e.o
	found.OK("strategy %s: %s", o.Strategy.Name, o.Strategy.Detail)
	guarded := o.Strategy.HasGate() && o.Guard
	switch {
	case !o.Strategy.Sound && !guarded:
		found.Problem("use another strategy", "strategy %s sells units twice", o.Strategy.Name)
	case o.Strategy.HasGate() && !guarded:
		found.Warn("set --guard on", "the guard is off: if Redis loses writes, units are sold twice")
	case !o.Strategy.Sound:
		found.Warn("use another strategy to sell", "the gate of strategy %s admits too many orders; only the guard refuses them", o.Strategy.Name)
	}
	for _, warning := range o.LockWarnings() {
		found.Warn("see docs/locks.md", "%s", warning)
	}
	if o.TakeDeadline < o.RequestTimeout {
		found.Warn("set it to 30s", "--take-deadline %v is shorter than a request (%v): recovery may void orders that are still being placed", o.TakeDeadline, o.RequestTimeout)
	}
	if o.Embedded() {
		found.Warn("set --redis and --db", "the stores are embedded: all orders are deleted when the process ends")
	}
	if o.Public && o.DrainDelay == 0 {
		found.Warn("set --drain-delay to a little more than the load balancer needs to notice", "--drain-delay is 0: a load balancer still sends requests to an instance that stops")
	}
	return found
}

// print prints the results. It returns an error if one of them is a problem.
func (e *examination) print(asJSON bool, w io.Writer) error {
	count := make(map[store.Level]int)
	for _, one := range e.results {
		count[one.Level]++
	}
	write := e.printLines
	if asJSON {
		write = e.printJSON
	}
	if err := write(w, count); err != nil {
		return err
	}
	if n := count[store.Problem]; n > 0 {
		return fmt.Errorf("problems: %d", n)
	}
	return nil
}

func (e *examination) printLines(w io.Writer, count map[store.Level]int) error {
	for _, one := range e.results {
		text := one.Detail
		if one.Fix != "" {
			text += "; " + one.Fix
		}
		if _, err := fmt.Fprintf(w, "%-8s %-9s %s\n", one.Level, one.Check, text); err != nil {
			return err
		}
	}
	_, err := fmt.Fprintf(w, "problems: %d, warnings: %d\n", count[store.Problem], count[store.Warning])
	return err
}

func (e *examination) printJSON(w io.Writer, count map[store.Level]int) error {
	encoder := json.NewEncoder(w)
	encoder.SetEscapeHTML(false)
	encoder.SetIndent("", "  ")
	return encoder.Encode(struct {
		Checks   []result `json:"checks"`
		Problems int      `json:"problems"`
		Warnings int      `json:"warnings"`
	}{e.results, count[store.Problem], count[store.Warning]})
}
