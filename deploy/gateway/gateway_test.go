// Package gateway holds the tests of the gateway: a real nginx in front of two
// real instances on real stores.
package gateway

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"os"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/google/uuid"

	"github.com/holdfast-stock/holdfast/internal/stock"
	"github.com/holdfast-stock/holdfast/internal/stock/gate"
	"github.com/holdfast-stock/holdfast/internal/testenv"
)

// soldOut: what is sold out is refused without an instance, in an instance's
// words; what is not, is not.
func soldOut(s *shop) error {
	var alone answer
	return steps(
		func() error { return s.sell("gone", 2) },
		func() (err error) {
			alone, err = call("POST", s.instances[1].URL()+"/orders", order(1, "gone"))
			if err == nil && alone.status != http.StatusConflict {
				err = fmt.Errorf("%w: an instance says %v", errWrong, alone)
			}
			return err
		},
		func() error {
			for range 30 {
				a, passed, err := s.ask(order(1, "gone"), "X-Request-Id", "mine")
				if err != nil {
					return err
				}
				if passed {
					return fmt.Errorf("%w: it reached an instance", errWrong)
				}
				if got := a.header.Get("X-Request-Id"); got != "mine" {
					return fmt.Errorf("%w: the request ID is %q", errWrong, got)
				}
				if err := same(a, alone); err != nil {
					return err
				}
			}
			return nil
		},
		func() error { // without an ID of its own a request gets one
			a, _, err := s.ask(order(1, "gone"))
			if err == nil && len(a.header.Get("X-Request-Id")) != 32 {
				err = fmt.Errorf("%w: the request ID is %q", errWrong, a.header.Get("X-Request-Id"))
			}
			return err
		},
	)
}

// enough: the last units are sold, to whom asks for exactly those, and an order
// for one more is refused.
func enough(s *shop) error {
	return steps(
		func() error { return s.lay("few", 3) },
		func() error { return s.expect(409, false, order(4, "few")) },
		func() error { return s.expect(201, true, order(3, "few")) },
	)
}

// inFlight: while a unit may come back, an instance is asked; when it has come
// back, it is sold.
func inFlight(s *shop) error {
	ctx := context.Background()
	own := gate.NewScript(s.redis, s.ledger)
	take := stock.Deduction{
		OrderID: uuid.New(), TakeID: uuid.New(), Buyer: "u-2",
		Lines: []stock.Line{{SKU: "held", Quantity: 1}},
	}
	return steps(
		func() error { return s.lay("held", 1) },
		func() error { return s.rest("held") },
		func() (err error) { take, err = own.Take(ctx, take); return err },
		func() error { return s.expect(409, true, order(1, "held")) },
		func() error { return own.Give(ctx, take) },
		func() error { return s.expect(201, true, order(1, "held")) },
	)
}

// restocked: new units are sold once the time is over for which the SKU was
// believed to be sold out.
func restocked(s *shop) error {
	var since time.Time
	return steps(
		func() error { return s.sell("again", 1) },
		func() error { return s.expect(409, false, order(1, "again")) },
		func() error { since = time.Now(); return s.lay("again", 2) },
		func() error {
			for {
				a, err := call("POST", s.url+"/orders", order(1, "again"))
				switch took := time.Since(since); {
				case err != nil:
					return err
				case took > believed+500*time.Millisecond:
					return fmt.Errorf("%w: %v after the units came: %v", errWrong, took, a)
				case a.status == 201:
					return nil
				}
				time.Sleep(5 * time.Millisecond)
			}
		},
	)
}

// keyed: an order with a key is never judged here. It may have been answered.
func keyed(s *shop) error {
	var first answer
	return steps(
		func() error { return s.lay("keyed", 1) },
		func() (err error) {
			first, err = call("POST", s.url+"/orders", order(1, "keyed"), "Idempotency-Key", "k")
			return err
		},
		func() error { return s.rest("keyed") },
		func() error { return s.expect(409, false, order(1, "keyed")) },
		func() error { return s.expect(409, true, order(1, "keyed"), "Idempotency-Key", "other") },
		func() error {
			again, err := call("POST", s.url+"/orders", order(1, "keyed"), "Idempotency-Key", "k")
			if err == nil && (again.status != 201 || again.body != first.body || again.header.Get("Idempotent-Replayed") != "true") {
				err = fmt.Errorf("%w: %v was replayed as %v", errWrong, first, again)
			}
			return err
		},
		func() error { return s.expect(400, false, order(1, "keyed"), "Idempotency-Key", "") },
	)
}

// several: one line that cannot be had refuses an order; the SKU that an
// instance would name is named; and what no gate counts is for an instance.
func several(s *shop) error {
	compare := func(lines ...any) error {
		alone, err := call("POST", s.instances[0].URL()+"/orders", order(lines...))
		if err != nil {
			return err
		}
		a, passed, err := s.ask(order(lines...))
		if err == nil && passed {
			err = fmt.Errorf("%w: %v reached an instance", errWrong, lines)
		}
		if err != nil {
			return err
		}
		return same(a, alone)
	}
	return steps(
		func() error { return s.sell("x", 1) },
		func() error { return s.sell("x-1", 1) },
		func() error { return s.sell("x.1", 1) },
		func() error { return s.lay("y", 5) },
		func() error { return compare(1, "x", 1, "y") },
		func() error { return compare(1, "y", 1, "x") },
		func() error { return compare(1, "y", 6, "x", 1, "x-1", 2, "x.1") },
		func() error { return compare(1, "x.1", 6, "y", 1, "x-1") },
		func() error { return s.expect(404, true, order(1, "nowhere", 1, "x")) },
		func() error { return s.expect(201, true, order(5, "y")) },
	)
}

// malformed: what is wrong with a body is said by an instance.
func malformed(s *shop) error {
	bodies := []string{
		``, ` `, `{`, `{}`, `[]`, `null`, `1`, `"x"`, "\xff",
		order(1, "out") + `x`, order(1, "out") + order(1, "out"),
		order(0, "out"), order(-1, "out"), order(1001, "out"), order(1, ""), order(1, strings.Repeat("x", 65)), order(1, "out", 1, "out"), order(),
		`{"buyer_id":"u","lines":[{"sku":"out","quantity":1.0}]}`,
		`{"buyer_id":"u","lines":[{"sku":"out","quantity":1e1}]}`,
		`{"buyer_id":"u","lines":[{"sku":"out","quantity":01}]}`,
		`{"buyer_id":"u","lines":[{"sku":"out","quantity":"1"}]}`,
		`{"buyer_id":"u","lines":[{"sku":"out","quantity":99999999999999999999999}]}`,
		`{"buyer_id":"u","lines":[{"sku":"out","quantity":1,"quantity":1}]}`,
		`{"buyer_id":"u","lines":[{"sku":"out"}]}`,
		`{"buyer_id":"u","lines":[{"quantity":1}]}`,
		`{"buyer_id":"u","lines":[{"sku":"out","quantity":1,"colour":"red"}]}`,
		`{"buyer_id":"u","lines":[{"sku":"out","quantity":1},]}`,
		`{"buyer_id":"u","lines":[,{"sku":"out","quantity":1}]}`,
		`{"buyer_id":"u","lines":[{"sku":"out","quantity":1}],}`,
		`{"buyer_id":"u","lines":{"sku":"out","quantity":1}}`,
		`{"buyer_id":"u","lines":null}`,
		`{"buyer_id":1,"lines":[{"sku":"out","quantity":1}]}`,
		`{"buyer_id":"","lines":[{"sku":"out","quantity":1}]}`,
		`{"buyer_id":"-u","lines":[{"sku":"out","quantity":1}]}`,
		`{"lines":[{"sku":"out","quantity":1}]}`,
		`{"buyer_id":"u","buyer_id":"u","lines":[{"sku":"out","quantity":1}]}`,
		`{"buyer_id":"u","lines":[{"sku":"out","quantity":1}],"note":""}`,
		"{\"buyer_id\":\"u\",\v\"lines\":[{\"sku\":\"out\",\"quantity\":1}]}",
		"{\"buyer_id\":\"u\",\"lines\":[{\"sku\":\"out\x00\",\"quantity\":1}]}",
		`{"buyer_id":"u","lines":[` + strings.Repeat(`{"sku":"out","quantity":1},`, 20) + `{"sku":"out","quantity":1}]}`,
		strings.Repeat(" ", 70_000) + order(1, "out"),
		strings.Repeat(" ", 2_000_000) + order(1, "out"),
	}
	check := func(body string, headers ...string) error {
		alone, err := call("POST", s.instances[0].URL()+"/orders", body, headers...)
		if err != nil {
			return err
		}
		if alone.status == http.StatusConflict || alone.status >= 500 {
			return fmt.Errorf("%w: an instance takes %.100q for an order: %v", errWrong, body, alone)
		}
		a, err := call("POST", s.url+"/orders", body, headers...)
		if err != nil {
			return err
		}
		if err := same(a, alone); err != nil {
			return fmt.Errorf("%.100q %v: %w", body, headers, err)
		}
		return nil
	}
	if err := s.sell("out", 1); err != nil {
		return err
	}
	for _, body := range bodies {
		if err := check(body); err != nil {
			return err
		}
	}
	for _, headers := range [][]string{
		{"Content-Type", "text/plain"}, {"Content-Type", ""}, {"Content-Encoding", "gzip"},
		{"Content-Type", "application/json; charset=latin-1"}, {"Idempotency-Key", "with space"},
	} {
		if err := check(order(1, "out"), headers...); err != nil {
			return err
		}
	}
	return steps(
		// Unusual, and right: an instance refuses it.
		func() error { return s.expect(409, true, `{"buyer_id":"u","lines":[{"sku":"\u006fut","quantity":1}]}`) },
		func() error { return s.expect(409, true, strings.Repeat(" ", 10_000)+order(1, "out")) },
		func() error {
			return s.expect(409, true, order(1, "out"), "Content-Type", "application/json; charset=utf-8")
		},
		// Spaces and the order of members make no difference.
		func() error {
			return s.expect(409, false, " {\r\n\"lines\" : [ { \"quantity\" :\t1 , \"sku\":\"out\" } ] , \"buyer_id\":\"u\" } ")
		},
	)
}

// segmented: a SKU in segments is sold out when all of them together are.
func segmented(s *shop) error {
	return steps(
		func() error { return s.lay("parts", 6) }, // 2, 2, 1, 1
		func() error { return s.expect(409, false, order(7, "parts")) },
		func() error { return s.expect(201, true, order(2, "parts")) },
		func() error { return s.expect(201, true, order(3, "parts")) }, // gathered
		func() error { return s.rest("parts") },
		func() error { return s.expect(409, false, order(2, "parts")) },
		func() error { return s.expect(201, true, order(1, "parts")) },
		func() error { return s.rest("parts") },
		func() error { return s.expect(409, false, order(1, "parts")) },
	)
}

// segmentHeld: a unit in flight of one segment may come back.
func segmentHeld(s *shop) error {
	ctx := context.Background()
	own := gate.NewScript(s.redis, s.ledger)
	take := stock.Deduction{
		OrderID: uuid.New(), TakeID: uuid.New(), Buyer: "u-2",
		Lines: []stock.Line{{SKU: "pieces/0", Quantity: 1}},
	}
	return steps(
		func() error { return s.lay("pieces", 1) },
		func() error { return s.rest("pieces") },
		func() (err error) { take, err = own.Take(ctx, take); return err },
		func() error { return s.expect(409, true, order(1, "pieces")) },
		func() error { return own.Give(ctx, take) },
		func() error { return s.expect(201, true, order(1, "pieces")) },
	)
}

// refilling: segments under two epochs, or more of them than the list has, are
// being filled, and no sum of them is one.
func refilling(s *shop) error {
	ctx := context.Background()
	set := func(n, epoch, left int) error {
		return s.count(fmt.Sprintf("new/%d", n), epoch, left)
	}
	list := func(n int) error {
		pipe := s.redis.Pipeline()
		pipe.Del(ctx, s.segments("new"))
		for i := range n {
			pipe.RPush(ctx, s.segments("new"), i)
		}
		_, err := pipe.Exec(ctx)
		return err
	}
	passes := func() error { // no ledger knows the SKU: what an instance says of it is its own affair
		a, passed, err := s.ask(order(1, "new"))
		if err == nil && !passed {
			err = fmt.Errorf("%w: refused: %v", errWrong, a)
		}
		return err
	}
	return steps(
		func() error { return list(2) },
		passes,
		func() error { return set(0, 7, 0) },
		passes,
		func() error { return set(1, 6, 0) },
		passes,
		func() error { return set(1, 7, 0) },
		func() error { return s.expect(409, false, order(1, "new")) },
		func() error { time.Sleep(believed + 50*time.Millisecond); return set(2, 7, 5) },
		passes,
		func() error { return set(2, 6, 5) },
		func() error { return s.expect(409, false, order(1, "new")) },
	)
}

// succeeded: of the counts that two strategies left, the later epoch counts.
func succeeded(s *shop) error {
	ctx := context.Background()
	count := func(sku string, epoch, left int) error {
		return s.count(sku, epoch, left)
	}
	return steps(
		func() error { return s.redis.RPush(ctx, s.segments("heir"), 0).Err() },
		func() error { return count("heir/0", 3, 0) },
		func() error { return count("heir", 4, 1) },
		func() error { return s.expect(404, true, order(1, "heir")) },
		func() error { time.Sleep(believed); return count("heir/0", 5, 0) },
		func() error { return s.expect(409, false, order(1, "heir")) },
	)
}

// adopted: once a strategy without a gate has the stock, what Redis says is
// nothing.
func adopted(s *shop) error {
	return steps(
		func() error {
			return s.count("left", 1, 0)
		},
		func() error { return s.lay("left", 1) },
		func() error { return s.expect(201, true, order(1, "left")) },
		func() error { return s.expect(409, true, order(1, "left")) },
	)
}

// elsewhere: a SKU whose count no node of the asked one's has is asked of its
// own node.
func elsewhere(s *shop) error {
	for n := range 8 {
		sku := fmt.Sprintf("far-%d", n)
		if err := steps(
			func() error { return s.lay(sku, 3) },
			func() error { return s.expect(201, true, order(3, sku)) },
			func() error { return s.rest(sku) },
			func() error { return s.expect(409, false, order(1, sku)) },
		); err != nil {
			return err
		}
	}
	return s.expect(409, false, order(1, "far-0", 1, "far-1", 1, "far-2"))
}

// blind: a gateway that knows nothing passes everything.
func blind(s *shop) error {
	return steps(
		func() error { return s.sell("unseen", 1) },
		func() error { return s.expect(409, true, order(1, "unseen")) },
		func() error { return s.expect(409, true, order(1, "unseen")) },
	)
}

var (
	inSegments = []string{"--strategy", "segment", "--segments", "4"}
	noGate     = []string{"--strategy", "conditional"}
)

// TestGateway runs every scenario on a shop of its own.
func TestGateway(t *testing.T) {
	t.Parallel()
	for _, test := range []struct {
		name     string
		plan     func(t *testing.T) plan
		scenario func(*shop) error
	}{
		{"sold out", nil, soldOut},
		{"enough", nil, enough},
		{"in flight", nil, inFlight},
		{"restocked", nil, restocked},
		{"a key", nil, keyed},
		{"several lines", nil, several},
		{"malformed", nil, malformed},
		{"two strategies' counts", nil, succeeded},
		{"segments", func(*testing.T) plan { return plan{args: inSegments} }, segmented},
		{"segments sold out", func(*testing.T) plan { return plan{args: inSegments} }, soldOut},
		{"several lines in segments", func(*testing.T) plan { return plan{args: inSegments} }, several},
		{"a segment in flight", func(*testing.T) plan { return plan{args: inSegments} }, segmentHeld},
		{"segments refilled", func(*testing.T) plan { return plan{args: inSegments} }, refilling},
		{"no gate", func(*testing.T) plan { return plan{args: noGate} }, adopted},
		{"a cluster", func(t *testing.T) plan { return plan{redis: testenv.RedisCluster(t)} }, elsewhere},
		{"segments on a cluster", func(t *testing.T) plan { return plan{redis: testenv.RedisCluster(t), args: inSegments} }, elsewhere},
		{"no ledger ID", func(*testing.T) plan { return plan{environment: []string{"HOLDFAST_LEDGER_ID="}} }, blind},
		{"a wrong ledger ID", func(*testing.T) plan {
			return plan{environment: []string{"HOLDFAST_LEDGER_ID=" + strings.Repeat("x", 32)}}
		}, blind},
		{"another ledger's ID", func(*testing.T) plan { return plan{environment: []string{"HOLDFAST_LEDGER_ID=" + uuid.NewString()}} }, blind},
		{"a dead Redis", func(*testing.T) plan { return plan{environment: []string{"HOLDFAST_GATEWAY_REDIS=127.0.0.1:1"}} }, blind},
		{"a password", func(t *testing.T) plan {
			own := testenv.OwnRedis(t, "--requirepass", "secret", "--databases", "4")
			return plan{
				redis:       "redis://:secret@" + own.Addr() + "/3",
				environment: []string{"HOLDFAST_GATEWAY_REDIS_PASSWORD=secret", "HOLDFAST_GATEWAY_REDIS_DB=3"},
			}
		}, soldOut},
		{"a wrong password", func(t *testing.T) plan {
			own := testenv.OwnRedis(t, "--requirepass", "secret")
			return plan{redis: "redis://:secret@" + own.Addr() + "/0", environment: []string{"HOLDFAST_GATEWAY_REDIS_PASSWORD=guess"}}
		}, blind},
	} {
		t.Run(test.name, func(t *testing.T) {
			t.Parallel()
			var p plan
			if test.plan != nil {
				p = test.plan(t)
			}
			s := build(t, p)
			if err := test.scenario(s); err != nil {
				t.Fatalf("%v\n%s", err, s.gateway.Output())
			}
		})
	}
}

// TestOpenResty: OpenResty has the Redis client under another name. It is the same
// module, and there is no other here.
func TestOpenResty(t *testing.T) {
	t.Parallel()
	client, err := os.ReadFile("/usr/share/lua/5.1/nginx/redis.lua")
	if err != nil {
		t.Skipf("no Redis client for nginx: %v", err) // OwnNginx says what to install
	}
	files := map[string]string{
		"resty/redis.lua": string(client),
		"nginx/redis.lua": `error("OpenResty has no such module")`,
	}
	for _, test := range []struct {
		name     string
		plan     func(t *testing.T) plan
		scenario func(*shop) error
	}{
		{"sold out", func(*testing.T) plan { return plan{} }, soldOut},
		{"segments on a cluster", func(t *testing.T) plan { return plan{redis: testenv.RedisCluster(t), args: inSegments} }, elsewhere},
		{"a password", func(t *testing.T) plan {
			own := testenv.OwnRedis(t, "--requirepass", "secret")
			return plan{redis: "redis://:secret@" + own.Addr() + "/0", environment: []string{"HOLDFAST_GATEWAY_REDIS_PASSWORD=secret"}}
		}, soldOut},
	} {
		t.Run(test.name, func(t *testing.T) {
			t.Parallel()
			p := test.plan(t)
			p.files = files
			s := build(t, p)
			if err := test.scenario(s); err != nil {
				t.Fatalf("%v\n%s", err, s.gateway.Output())
			}
		})
	}
}

// TestMutants: each rule of the gateway is missed by a scenario when it is gone.
func TestMutants(t *testing.T) {
	t.Parallel()
	for _, test := range []struct {
		name, rule, without string
		args                []string
		scenario            func(*shop) error
	}{
		{"units in flight do not count", "count.flying ~= 0", "false", nil, inFlight},
		{"units in flight of segments do not count", "all.flying + one.flying", "0", inSegments, segmentHeld},
		{"<= for <", "line.most < line.quantity", "line.most <= line.quantity", nil, enough},
		{"keys are judged", `headers["idempotency-key"] ~= nil or `, "", nil, keyed},
		{"one segment only", "all.left = all.left + one.left", "all.left = one.left", inSegments, segmented},
		{"two epochs", "one.epoch ~= all.epoch", "false", inSegments, refilling},
		{"more segments than the list has", "beyond and beyond.epoch == all.epoch", "false", inSegments, refilling},
		{"an earlier strategy's count", "all.epoch > counts[sku].epoch", "true", nil, succeeded},
		{"no gate", "type(strategy.gate) == \"string\"", "true", noGate, adopted},
		{"the client's order of lines", "table.sort(lines, before)", "", nil, several},
		{"order of SKUs for segments", ", segmented = true }", " }", inSegments, several},
		{"a SKU that has no count", "return -- an instance fills it", "count = { left = 0, flying = 0 } -- an instance fills it", nil, several},
		{"sold out for good", "milliseconds / 1000", "3600", nil, restocked},
	} {
		t.Run(test.name, func(t *testing.T) {
			t.Parallel()
			s := build(t, plan{args: test.args, lua: func(text string) string { return strings.ReplaceAll(text, test.rule, test.without) }})
			if err := test.scenario(s); !errors.Is(err, errWrong) {
				t.Errorf("nothing noticed: %v", err)
			}
		})
	}
}

// TestLedgerIDFile: the ID may come from a file, as a database writes it.
func TestLedgerIDFile(t *testing.T) {
	t.Parallel()
	db := testenv.MariaDB(t)
	first := build(t, plan{db: db})
	name := file(t, strings.ToUpper(strings.ReplaceAll(first.ledger.String(), "-", ""))+"\n")
	s := build(t, plan{db: db, environment: []string{"HOLDFAST_LEDGER_ID=", "HOLDFAST_LEDGER_ID_FILE=" + name}})
	if err := soldOut(s); err != nil {
		t.Fatal(err)
	}
}

// TestRedisGone: a Redis that is killed or does not answer is nobody's sold out,
// and holds nobody up; when it is back the gateway refuses again.
func TestRedisGone(t *testing.T) {
	t.Parallel()
	own := testenv.OwnRedis(t)
	s := build(t, plan{redis: own.URL()})
	if err := soldOut(s); err != nil {
		t.Fatal(err)
	}
	passes := func() {
		t.Helper()
		time.Sleep(believed + 50*time.Millisecond)
		for range 2 {
			a, passed, err := s.ask(order(1, "gone"))
			if err != nil || !passed || a.status != http.StatusServiceUnavailable {
				t.Errorf("%v, reached an instance: %v, %v", a, passed, err)
			}
		}
	}
	own.Stop()
	passes()
	own.Cont()
	if err := s.rest("gone"); err != nil {
		t.Fatal(err)
	}
	if err := s.expect(409, false, order(1, "gone")); err != nil {
		t.Error(err)
	}
	own.Kill()
	passes()
	own.Restart()
	time.Sleep(2 * time.Second)
	deadline := time.Now().Add(20 * time.Second)
	for s.expect(409, false, order(1, "gone")) != nil {
		if time.Now().After(deadline) {
			t.Fatal("the gateway does not refuse again")
		}
		time.Sleep(50 * time.Millisecond)
	}
}

var accepted = regexp.MustCompile(`holdfast_orders_total\{result="accepted"\} (\d+)`)

// TestInstances: orders go to whatever instance is there; without one the answer
// is the service's own kind.
func TestInstances(t *testing.T) {
	t.Parallel()
	s := build(t, plan{})
	if err := s.lay("plenty", 100); err != nil {
		t.Fatal(err)
	}
	for range 20 {
		if err := s.expect(201, true, order(1, "plenty")); err != nil {
			t.Fatal(err)
		}
	}
	for _, api := range s.instances {
		metrics, err := call("GET", api.URL()+"/metrics", "")
		if found := accepted.FindStringSubmatch(metrics.body); err != nil || found == nil || len(found[1]) == 1 && found[1] < "5" {
			t.Errorf("%s had %v of 20 orders, %v", api.URL(), found, err)
		}
	}
	a, err := call("GET", s.url+"/stock/plenty", "", "X-Request-Id", "mine")
	if err != nil || a.status != 200 || strings.Join(a.header["X-Request-Id"], "|") != "mine" {
		t.Errorf("%v %v, %v", a, a.header, err)
	}
	s.instances[0].Kill()
	for range 5 {
		if a, err := call("POST", s.url+"/orders", order(1, "plenty")); err != nil || a.status != 201 {
			t.Errorf("with one instance: %v, %v", a, err)
		}
	}
	s.instances[1].Kill()
	a, err = call("POST", s.url+"/orders", order(1, "plenty"))
	if err != nil || a.status != 503 || a.header.Get("Content-Type") != "application/problem+json" || a.header.Get("Retry-After") != "1" ||
		!strings.Contains(a.body, `"type":"/problems/unavailable"`) || a.header.Get("X-Request-Id") == "" {
		t.Errorf("without an instance: %v %v, %v", a, a.header, err)
	}
	a, err = call("GET", s.url+"/gateway/healthz", "")
	if err != nil || a.status != 200 {
		t.Errorf("%v, %v", a, err)
	}
	a, err = call("GET", s.url+"/gateway/strategies", "")
	if err != nil || a.status != 404 {
		t.Errorf("what is internal answers: %v, %v", a, err)
	}
}
