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
	"sync"
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
	// readersBack read the accepted orders back.
	readersBack = 16
)

// audit holds what the harness recorded against what the stores have, with SQL
// and Redis commands of its own: it never asks the service's audit.
func (l *lab) audit(ctx context.Context, r *Result, rec *record, url, sku string) error {
	limit := restTimeout
	if !r.Sound {
		limit = brokenRest
	}
	if err := l.rest(ctx, sku, limit); err != nil {
		return err
	}
	r.Missing = l.readBack(ctx, rec, url)
	sold := rec.accepted.Load() // all there is to go by without a database
	if l.sql != nil {
		db := l.sql.DB().WithContext(ctx)
		err := db.Raw(`SELECT COALESCE(SUM(order_lines.quantity), 0) FROM order_lines
			JOIN orders ON orders.id = order_lines.order_id
			WHERE order_lines.sku = ? AND orders.status IN ('pending', 'paid')`, sku).Row().Scan(&sold)
		if err != nil {
			return fmt.Errorf("counting the orders of %s: %w", sku, err)
		}
		var available int64
		if err := db.Raw("SELECT available FROM stock WHERE sku = ?", sku).Row().Scan(&available); err != nil {
			return fmt.Errorf("reading the stock row of %s: %w", sku, err)
		}
		r.Ledger = &available
	}
	r.Sold = sold
	r.Oversold = max(0, sold-r.Stock)
	r.Undersold = max(0, r.Stock-sold)
	left, flying, found, err := l.gate(ctx, sku)
	if err != nil {
		return err
	}
	if found {
		r.Gate, r.InFlight = &left, &flying
	}
	return nil
}

// rest waits until nothing is in flight at the gate, so that gate and ledger can
// be compared.
func (l *lab) rest(ctx context.Context, sku string, limit time.Duration) error {
	for deadline := time.Now().Add(limit); ; time.Sleep(20 * time.Millisecond) {
		_, flying, found, err := l.gate(ctx, sku)
		if err != nil || !found || flying == 0 || time.Now().After(deadline) {
			return err
		}
	}
}

// gate adds up the counts that the gate has in Redis, of all segments.
func (l *lab) gate(ctx context.Context, sku string) (left, flying int64, found bool, err error) {
	if l.redis == nil || l.sql == nil {
		return 0, 0, false, nil
	}
	id, err := l.sql.LedgerID(ctx)
	if err != nil {
		return 0, 0, false, err
	}
	ledger := "holdfast:{" + id.String()
	segments, err := l.redis.LRange(ctx, ledger+":"+sku+"}:segments", 0, -1).Result()
	if err != nil {
		return 0, 0, false, fmt.Errorf("reading the gate's segments: %w", err)
	}
	names := []string{sku}
	for _, segment := range segments {
		names = append(names, sku+"/"+segment)
	}
	_, cluster := l.redis.(*redis.ClusterClient)
	for _, name := range names {
		key := ledger + "}:count"
		if cluster { // each has a key of its own
			key = ledger + ":" + name + "}:count"
		}
		count, err := l.redis.HGet(ctx, key, name).Result()
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
		found = true
		left += units
		flying += away
	}
	return left, flying, found, nil
}

// readBack asks for every order that was accepted, and counts those that are not
// there.
func (l *lab) readBack(ctx context.Context, rec *record, url string) (missing int64) {
	orders := make(chan string)
	var (
		all sync.WaitGroup
		mu  sync.Mutex
	)
	for range readersBack {
		all.Go(func() {
			for id := range orders {
				var order struct {
					ID string `json:"id"`
				}
				if err := l.getJSON(ctx, url+"/orders/"+id, &order); err != nil || order.ID != id {
					mu.Lock()
					missing++
					mu.Unlock()
				}
			}
		})
	}
	for _, a := range rec.answers {
		if a.outcome == accepted && a.order != "" {
			orders <- a.order
		}
	}
	close(orders)
	all.Wait()
	return missing
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
func (l *lab) guardCaught(ctx context.Context, spec strategy.Spec, urls []string) *int64 {
	if !l.guarded(spec) {
		return nil
	}
	var all int64
	for _, url := range urls {
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
