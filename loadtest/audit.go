package main

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"strconv"
	"strings"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/holdfast-stock/holdfast/internal/stock/strategy"
)

const (
	// restTimeout bounds the wait for what is in flight when a load has ended.
	restTimeout = 10 * time.Second
	// brokenRest is the same for a strategy that loses updates: its count may
	// never say that nothing is in flight, and is not judged.
	brokenRest = time.Second
)

// rest is when the counts of a SKU are read: when they are at rest, or at the
// limit.
type rest struct {
	limit  time.Duration
	atRest func(counts) bool
}

// restOf is the rest after a load on the strategy.
func restOf(spec strategy.Spec) rest {
	if spec.Sound {
		return rest{restTimeout, counts.landed}
	}
	return rest{brokenRest, counts.landed}
}

// audit holds what the harness recorded against what the stores have, with SQL
// and Redis commands of its own: it never asks the service's audit.
func (l *lab) audit(ctx context.Context, r *Result, rec *record, f *fleet, sku string, at rest) (err error) {
	r.Sold = rec.accepted.Load() // all there is to go by without a database
	if l.sql != nil {
		now, err := l.await(ctx, sku, at)
		if err != nil {
			return err
		}
		r.Ledger, r.Gate, r.InFlight = &now.ledger, now.gate, now.inFlight
		if r.Sold, err = l.sold(ctx, sku); err != nil {
			return err
		}
	}
	r.Oversold = max(0, r.Sold-r.Stock)
	r.Undersold = max(0, r.Stock-r.Sold)
	if err := l.holdAnswers(ctx, rec, f, sku); err != nil {
		return err
	}
	r.Unknown, r.Sampled, r.Findings = rec.unknown(), rec.sampled, rec.found()
	return rec.trouble
}

// counts are the units that are left of one SKU. The gate's are nil where there is
// none, or where nobody named it.
type counts struct {
	ledger         int64
	gate, inFlight *int64
}

// landed reports whether nothing is in flight, so that gate and ledger can be
// compared.
func (c counts) landed() bool { return c.gate == nil || *c.inFlight == 0 }

// agree reports whether gate and ledger have the same, with nothing in flight.
func (c counts) agree() bool { return c.landed() && (c.gate == nil || *c.gate == c.ledger) }

// await reads the counts.
func (l *lab) await(ctx context.Context, sku string, at rest) (counts, error) {
	for deadline := time.Now().Add(at.limit); ; time.Sleep(20 * time.Millisecond) {
		now, err := l.counts(ctx, sku)
		if err != nil || at.atRest(now) || time.Now().After(deadline) {
			return now, err
		}
	}
}

func (l *lab) counts(ctx context.Context, sku string) (now counts, err error) {
	left, flying, found, err := l.gate(ctx, sku)
	if err != nil {
		return now, err
	}
	if found {
		now.gate, now.inFlight = &left, &flying
	}
	err = l.sql.DB().WithContext(ctx).Raw("SELECT available FROM stock WHERE sku = ?", sku).Row().Scan(&now.ledger)
	if err != nil {
		return now, fmt.Errorf("reading the stock row of %s: %w", sku, err)
	}
	return now, nil
}

// sold counts the units of the SKU in pending and paid orders.
func (l *lab) sold(ctx context.Context, sku string) (units int64, err error) {
	err = l.sql.DB().WithContext(ctx).Raw(`SELECT COALESCE(SUM(order_lines.quantity), 0) FROM order_lines
		JOIN orders ON orders.id = order_lines.order_id
		WHERE order_lines.sku = ? AND orders.status IN ('pending', 'paid')`, sku).Row().Scan(&units)
	if err != nil {
		return 0, fmt.Errorf("counting the orders of %s: %w", sku, err)
	}
	return units, nil
}

// gateKeys are where the gate keeps one SKU in Redis.
type gateKeys struct {
	ledger     string // begins every key
	sku        string
	cluster    bool // each name has keys of its own
	generation int64
	names      []string // of the generation's counts: the SKU, or its segments
}

func (l *lab) gateOf(ctx context.Context, sku string) (g gateKeys, err error) {
	id, err := l.sql.LedgerID(ctx)
	if err != nil {
		return g, err
	}
	_, cluster := l.redis.(*redis.ClusterClient)
	g = gateKeys{ledger: "holdfast:{" + id.String(), sku: sku, cluster: cluster, names: []string{sku}}
	mark, err := l.redis.Get(ctx, g.ledger+"}:generation").Result()
	if errors.Is(err, redis.Nil) {
		return g, nil
	}
	if err != nil {
		return g, fmt.Errorf("reading the gate's generation: %w", err)
	}
	var segments int
	if _, err := fmt.Sscan(mark, &g.generation, &segments); err != nil {
		return g, fmt.Errorf("the gate's generation is %q: %w", mark, err)
	}
	if segments > 0 {
		g.names = segmentsOf(sku, segments)
	}
	return g, nil
}

// segmentsOf are the names of the SKU's segments.
func segmentsOf(sku string, count int) []string {
	names := make([]string, count)
	for n := range names {
		names[n] = fmt.Sprintf("%s/%d", sku, n)
	}
	return names
}

// own is a key that only this name has.
func (g gateKeys) own(name, what string) string { return g.ledger + ":" + name + "}:" + what }

// key is the hash that has the name among its fields.
func (g gateKeys) key(name, what string) string {
	if g.cluster {
		return g.own(name, what)
	}
	return g.ledger + "}:" + what
}

// gate adds up the counts of the current generation that the gate has in Redis, of
// all segments.
func (l *lab) gate(ctx context.Context, sku string) (left, flying int64, found bool, err error) {
	if l.redis == nil {
		return 0, 0, false, nil
	}
	g, err := l.gateOf(ctx, sku)
	if err != nil {
		return 0, 0, false, err
	}
	for _, name := range g.names {
		count, err := l.redis.HGet(ctx, g.key(name, "count"), name).Result()
		if errors.Is(err, redis.Nil) {
			continue
		}
		if err != nil {
			return 0, 0, false, fmt.Errorf("reading the gate's count: %w", err)
		}
		var epoch, units, away int64
		if _, err := fmt.Sscan(count, &epoch, &units, &away); err != nil {
			return 0, 0, false, fmt.Errorf("the gate's count of %s is %q: %w", name, count, err)
		}
		if epoch>>28 != g.generation { // the upper bits of an epoch; nobody believes this count
			continue
		}
		found = true
		left += units
		flying += away
	}
	return left, flying, found, nil
}

func (l *lab) getJSON(ctx context.Context, url string, into any) error {
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, url, nil)
	if err != nil {
		return err
	}
	response, err := l.client.Do(request)
	if err != nil {
		return err
	}
	defer response.Body.Close()
	text, err := io.ReadAll(response.Body)
	if err != nil {
		return err
	}
	if response.StatusCode != http.StatusOK {
		return fmt.Errorf("GET %s: %s", url, response.Status)
	}
	return json.Unmarshal(text, into)
}

// guardCaught is how many orders the guard has refused behind the gates of these
// instances so far, by their metrics; nil where there is no guard, or no such
// metric.
func (l *lab) guardCaught(ctx context.Context, spec strategy.Spec, f *fleet) *int64 {
	if !l.guarded(spec) {
		return nil
	}
	var all int64
	for _, url := range f.urls {
		n, err := l.guardRefusals(ctx, url)
		if err != nil {
			return nil
		}
		all += n
	}
	return &all
}

func (l *lab) guardRefusals(ctx context.Context, url string) (int64, error) {
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, url+"/metrics", nil)
	if err != nil {
		return 0, err
	}
	response, err := l.client.Do(request)
	if err != nil {
		return 0, err
	}
	defer response.Body.Close()
	for lines := bufio.NewScanner(response.Body); lines.Scan(); {
		if value, ok := strings.CutPrefix(lines.Text(), "holdfast_guard_refusals_total "); ok {
			n, err := strconv.ParseFloat(value, 64)
			return int64(n), err
		}
	}
	return 0, fmt.Errorf("GET %s/metrics: %s, and no count of the guard's", url, response.Status)
}

// since is what was added between two counts.
func since(before, after *int64) *int64 {
	if before == nil || after == nil {
		return nil
	}
	n := *after - *before
	return &n
}

// databaseVersion is what the database says of itself, in brackets.
func (l *lab) databaseVersion() string {
	var version string
	if err := l.sql.DB().Raw("SELECT version()").Row().Scan(&version); err != nil {
		return ""
	}
	words := strings.Fields(version) // PostgreSQL names its compiler too
	return " (" + strings.Join(words[:min(2, len(words))], " ") + ")"
}

// redisVersion is what the Redis in use says of itself, after a space.
func (l *lab) redisVersion() string {
	info, err := l.redis.Info(context.Background(), "server").Result()
	if err != nil {
		return ""
	}
	for line := range strings.Lines(info) {
		if version, ok := strings.CutPrefix(strings.TrimSpace(line), "redis_version:"); ok {
			return " " + version
		}
	}
	return ""
}

// redisCPU is what a Redis by itself has used so far, by its own account.
func (l *lab) redisCPU(ctx context.Context) (used time.Duration, ok bool) {
	client, single := l.redis.(*redis.Client)
	if !single || l.embedded != nil {
		return 0, false
	}
	info, err := client.Info(ctx, "cpu").Result()
	if err != nil {
		return 0, false
	}
	for line := range strings.Lines(info) {
		for _, field := range []string{"used_cpu_sys:", "used_cpu_user:"} {
			if value, found := strings.CutPrefix(strings.TrimSpace(line), field); found {
				seconds, _ := strconv.ParseFloat(value, 64)
				used += time.Duration(seconds * float64(time.Second))
				ok = true
			}
		}
	}
	return used, ok
}
