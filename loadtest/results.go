package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/holdfast-stock/holdfast/internal/lab/machine"
	"github.com/holdfast-stock/holdfast/internal/lock/backends"
	"github.com/holdfast-stock/holdfast/internal/stock/strategy"
	"github.com/holdfast-stock/holdfast/internal/store"
)

// Results are one run of the laboratory.
type Results struct {
	Command    string            `json:"command"`
	Flags      map[string]string `json:"flags"`
	Seed       uint64            `json:"seed"`
	When       time.Time         `json:"when"`
	Commit     string            `json:"commit"`
	Machine    string            `json:"machine"`
	Stores     string            `json:"stores"`
	CutShort   bool              `json:"cut_short"`
	Strategies []Result          `json:"strategies"`

	open, search bool
}

// guarded reports whether a guard stood behind any of the strategies.
func (r *Results) guarded() bool {
	return slices.ContainsFunc(r.Strategies, func(s Result) bool { return s.Caught != nil })
}

// killed reports whether an instance was killed under any of the strategies.
func (r *Results) killed() bool {
	return slices.ContainsFunc(r.Strategies, func(s Result) bool { return s.Crash != nil })
}

// Result is what one strategy did. Figures that could not be had are null.
type Result struct {
	Strategy  string `json:"strategy"`
	Sound     bool   `json:"sound"`
	Instances int    `json:"instances"`
	Load      string `json:"load"`
	Stock     int64  `json:"stock"`

	Accepted  int64  `json:"accepted"`
	Refused   int64  `json:"refused"`
	Failed    int64  `json:"failed"`
	Sold      int64  `json:"sold"` // by the orders in the database
	Oversold  int64  `json:"oversold"`
	Undersold int64  `json:"undersold"` // left in the end
	Unknown   int64  `json:"unknown"`   // of those failed, the ones whose orders may have been committed
	Sampled   int64  `json:"sampled"`   // looked up at the moment of their 201
	Caught    *int64 `json:"caught"`    // by the guard; null without one

	Failures map[string]int64 `json:"failures"` // by status and problem type
	Findings []Finding        `json:"findings"` // where the ledger contradicts the answers

	Ledger   *int64 `json:"ledger_available"`
	Gate     *int64 `json:"gate_available"`
	InFlight *int64 `json:"gate_in_flight"`

	PerSecond   float64      `json:"orders_per_second"`
	P50         *float64     `json:"p50_millis"`
	P99         *float64     `json:"p99_millis"`
	APICPU      *float64     `json:"api_cpu_millis_per_order"`
	RedisCPU    *float64     `json:"redis_cpu_millis_per_order"`
	DatabaseCPU *float64     `json:"database_cpu_millis_per_order"`
	Percentiles []Percentile `json:"percentiles"`
	Sales       []float64    `json:"sales_seconds"` // when each order was accepted

	Rate    int   `json:"rate,omitempty"`         // arrivals a second, of an open load
	Late    int64 `json:"late"`                   // arrivals that were sent late
	Dropped int64 `json:"dropped"`                // arrivals that were not sent at all
	Highest *int  `json:"highest_rate,omitempty"` // what a search found; 0: not even the lowest rate held

	Probes []Probe `json:"probes,omitempty"` // of a search, in their order
	Crash  *Result `json:"crash,omitempty"`  // a rush with an instance killed

	Verdict string   `json:"verdict"`
	Faults  []string `json:"faults"`

	inconclusive bool // the load did not bring out what the strategy is known for
}

func newResults(l *lab) *Results {
	stores := "embedded (in-process Redis, SQLite)"
	if l.embedded == nil {
		stores = "none named"
		if l.sql != nil {
			stores = l.sql.Target() + l.databaseVersion()
		}
		if l.redis != nil {
			stores += ", Redis" + l.redisVersion()
		}
	}
	if l.lock != backends.Default {
		stores += ", locks in " + l.lock
	}
	return &Results{
		Command: strings.TrimSpace("go run ./loadtest " + strings.Join(redacted(l.args), " ")),
		Flags: map[string]string{
			"instances": fmt.Sprint(l.settings.instances), "stock": fmt.Sprint(l.stock), "clients": fmt.Sprint(l.clients),
			"guard": l.guard, "lock": l.lock, "limit": l.limit.String(), "rate": fmt.Sprint(l.rate), "search": fmt.Sprint(l.search),
			"probes": fmt.Sprint(l.probes), "crash": fmt.Sprint(l.kill()), "max_failures": l.maxFailures.String(),
		},
		Seed: l.seed, When: time.Now().UTC().Truncate(time.Second), Commit: machine.Commit(),
		Machine: machine.Describe(), Stores: stores, open: l.open(), search: l.search,
	}
}

// Broken is how many promises were broken.
func (r *Results) Broken() int { return r.count(promise) }

func (r *Results) undecided() int { return r.count(undecided) }

func (r *Results) count(verdict string) (n int) {
	for _, s := range r.Strategies {
		if s.Verdict == verdict {
			n++
		}
	}
	return n
}

func (l *lab) result(spec strategy.Spec, rec *record, stock int64) *Result {
	instances := l.settings.instances
	if len(l.targets) > 0 {
		instances = len(l.targets)
	}
	return &Result{
		Strategy: spec.Name, Sound: spec.Sound, Instances: instances, Stock: stock,
		Accepted: rec.accepted.Load(), Refused: rec.refused.Load(), Failed: rec.failed.Load(), Failures: rec.failures,
	}
}

// checkOut makes the folder of --out and proves that files can be written there.
func checkOut(folder string) error {
	if err := os.MkdirAll(folder, 0o755); err != nil {
		return fmt.Errorf("--out: %w", err)
	}
	file, err := os.CreateTemp(folder, ".holdfast-")
	if err != nil {
		return fmt.Errorf("--out: %w", err)
	}
	return errors.Join(file.Close(), os.Remove(file.Name()))
}

// write writes results.json and report.html into the folder.
func (r *Results) write(folder string) error {
	text, err := json.MarshalIndent(r, "", "  ")
	if err != nil {
		return err
	}
	if err := os.WriteFile(filepath.Join(folder, "results.json"), append(text, '\n'), 0o644); err != nil {
		return fmt.Errorf("--out: %w", err)
	}
	html, err := os.Create(filepath.Join(folder, "report.html"))
	if err != nil {
		return fmt.Errorf("--out: %w", err)
	}
	if err := r.report(html); err != nil {
		html.Close()
		return fmt.Errorf("the report: %w", err)
	}
	return html.Close()
}

// redacted hides what is secret in URLs and tokens.
func redacted(args []string) []string {
	hidden := make([]string, len(args))
	for i, arg := range args {
		flag, value, joined := strings.Cut(arg, "=")
		switch {
		case i > 0 && args[i-1] == "--admin-token":
			hidden[i] = "***"
		case joined && flag == "--admin-token":
			hidden[i] = flag + "=***"
		case joined && strings.Contains(value, "://"):
			hidden[i] = flag + "=" + store.Redact(value)
		case strings.Contains(arg, "://"):
			hidden[i] = store.Redact(arg)
		default:
			hidden[i] = arg
		}
	}
	return hidden
}
