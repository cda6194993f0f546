package main

import (
	"context"
	"database/sql"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/holdfast-stock/holdfast/internal/lab/measure"
	"github.com/holdfast-stock/holdfast/internal/lab/table"
	"github.com/holdfast-stock/holdfast/internal/latency"
)

// hot are the strategies that slots compares unless --variants names others.
var hot = []string{"merged", "slots", "for-update", "unit-rows"}

// slotsTarget is the bound that slots must keep with at least four instances and COMMITs delayed by
// slowCommit or more.
var slotsTarget = measure.Target[sample]{What: "orders/s", Against: "merged", Limit: 2, Figure: rate}

const slowCommit = 20 * time.Millisecond

// slots measures how fast several instances sell one SKU while each COMMIT is delayed. A
// transaction holds its row locks during its COMMIT, so one row sells at most one group of orders
// per COMMIT.
func (l *lab) slots(ctx context.Context) error {
	chosen := l.chosen(true)
	if l.Variants == nil {
		chosen = slices.DeleteFunc(chosen, func(v variant) bool { return !slices.Contains(hot, v.name) })
	}
	rows := table.New("COMMIT", "ms measured", "instances", "", "orders/s", "× merged", "orders a group", "group ÷ COMMIT, orders/s",
		"µs CPU per order", "p99 ms", "connection held ms: p50", "p99")
	var verdicts []string
	defer func() {
		rows.WriteMarkdown(l.report)
		fmt.Fprintln(l.report, strings.Join(verdicts, ""))
	}()
	for _, delay := range l.Delays {
		if err := l.delayCommits(ctx, delay); err != nil {
			return err
		}
		took, err := l.commitTime(ctx)
		if err != nil {
			return err
		}
		for _, instances := range l.Instances {
			samples, err := l.inTurns(ctx, chosen, situation{name: fmt.Sprintf("+%v, %d × ", delay, instances), skus: 1, instances: instances})
			if err != nil {
				return err
			}
			if verdict, ok := slotsTarget.Verdict(samples["slots"], samples["merged"]); ok && delay >= slowCommit && instances >= 4 {
				verdicts = append(verdicts, fmt.Sprintf("\n- slots, +%v, %d instances: %s", delay, instances, verdict))
			}
			for _, v := range chosen {
				rows.Add(slices.Concat([]any{"+" + delay.String(), millis(took), instances, v.name}, slotsRow(samples[v.name], samples["merged"], took))...)
			}
		}
	}
	return l.delayCommits(ctx, 0)
}

// slotsRow returns the cells of one strategy, which is compared with the samples of merged.
// commit is the time that a COMMIT takes if nothing else runs.
func slotsRow(samples, merged []sample, commit time.Duration) []any {
	s := median(samples)
	if s.fault != "" {
		return []any{"failed: " + s.fault}
	}
	ratio := table.Unknown
	if r, ok := measure.Compared(samples, merged, rate); ok {
		ratio = fmt.Sprintf("%.2f", r)
	}
	return []any{
		whole(s.perSecond), ratio, table.Figure("%.1f", s.grouped), whole(s.grouped / commit.Seconds()),
		whole(s.cpu()), millis(s.p99), millis(s.held50), millis(s.held99),
	}
}

// delayCommits makes PostgreSQL wait before it flushes its log for a COMMIT, which then
// holds its row locks. A COMMIT that comes while another waits is flushed with it, as on a
// slow disk.
func (l *lab) delayCommits(ctx context.Context, delay time.Duration) error {
	want := delay.Microseconds()
	if err := l.exec(ctx, "ALTER SYSTEM SET commit_siblings = 0", fmt.Sprint("ALTER SYSTEM SET commit_delay = ", want), "SELECT pg_reload_conf()"); err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(ctx, 10*time.Second)
	defer cancel()
	for { // the server reads its settings a moment later
		var set int64
		if err := l.db.QueryRowContext(ctx, "SELECT setting::bigint FROM pg_settings WHERE name = 'commit_delay'").Scan(&set); err != nil {
			return fmt.Errorf("delaying commits: %w", err)
		}
		if set == want {
			return nil
		}
	}
}

// commitTime measures a small transaction on one connection: the median of 25.
func (l *lab) commitTime(ctx context.Context) (time.Duration, error) {
	conn, err := l.db.Conn(ctx)
	if err != nil {
		return 0, err
	}
	defer conn.Close()
	times := make([]time.Duration, 25)
	for i := range times {
		if times[i], err = timed(ctx, conn, fmt.Sprintf("INSERT INTO reference_orders VALUES ('commit-%d', 'u', 1)", i)); err != nil {
			return 0, err
		}
	}
	if _, err := timed(ctx, conn, "TRUNCATE TABLE reference_orders"); err != nil {
		return 0, err
	}
	return measure.Median(times, func(d time.Duration) time.Duration { return d }), nil
}

func timed(ctx context.Context, conn *sql.Conn, statement string) (time.Duration, error) {
	begin := time.Now()
	_, err := conn.ExecContext(ctx, statement)
	return time.Since(begin), err
}

// heldMetric is the histogram of how long the ledger's transactions hold a connection.
const heldMetric = "holdfast_ledger_transaction_seconds"

// quantile estimates a quantile of what a histogram has observed between two readings of the
// counters. It returns 0 if the histogram observed nothing between them.
func quantile(histogram string, q float64, before, after map[string]float64) time.Duration {
	var bounds []float64
	below := make(map[float64]uint64)
	for name, count := range after {
		bound, ok := strings.CutPrefix(name, histogram+`_bucket{le="`)
		if !ok {
			continue
		}
		if b, err := strconv.ParseFloat(strings.TrimSuffix(bound, `"}`), 64); err == nil {
			bounds = append(bounds, b)
			below[b] = uint64(count - before[name])
		}
	}
	slices.Sort(bounds)
	counts := make([]uint64, len(bounds))
	for i, b := range bounds {
		counts[i] = below[b]
	}
	observed := uint64(after[histogram+"_count"] - before[histogram+"_count"])
	return time.Duration(latency.Quantile(q, observed, bounds, counts) * float64(time.Second))
}
