// Package gateway holds the tests of the gateway: a real nginx in front of two
// real instances on real stores.
package gateway

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"regexp"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/uuid"

	"github.com/holdfast-stock/holdfast/internal/stock"
	"github.com/holdfast-stock/holdfast/internal/stock/gate"
	"github.com/holdfast-stock/holdfast/internal/testenv"
)

// soldOut checks that the gateway refuses an order for a sold-out SKU without an instance, and with
// the same answer as an instance.
func soldOut(s *shop) error {
	var alone answer
	return steps(
		func() error { return s.sell("gone", 2) },
		func() (err error) {
			alone, err = call("POST", s.instances[1].URL()+"/orders", order(1, "gone"))
			if err == nil && alone.status != http.StatusConflict {
				err = fmt.Errorf("%w: an instance answers %v", errWrong, alone)
			}
			return err
		},
		func() error {
			before, err := s.placed()
			if err != nil {
				return err
			}
			for n := range 30 {
				if n == 15 { // the gateway reads the count again
					s.expireCache()
				}
				a, err := call("POST", s.url+"/orders", order(1, "gone"), "X-Request-Id", "mine")
				if err != nil {
					return err
				}
				if got := a.header.Get("X-Request-Id"); got != "mine" {
					return fmt.Errorf("%w: the request ID is %q", errWrong, got)
				}
				if err := same(a, alone); err != nil {
					return err
				}
			}
			after, err := s.placed()
			if err == nil && after != before {
				err = fmt.Errorf("%w: %v orders reached an instance", errWrong, after-before)
			}
			return err
		},
		func() error { // a request without an ID gets a new one
			a, _, err := s.ask(order(1, "gone"))
			if err == nil && len(a.header.Get("X-Request-Id")) != 32 {
				err = fmt.Errorf("%w: the request ID is %q", errWrong, a.header.Get("X-Request-Id"))
			}
			return err
		},
	)
}

// lastUnits checks that an order for exactly the remaining units is accepted, and that
// an order for one more is refused.
func lastUnits(s *shop) error {
	return steps(
		func() error { return s.setStock("few", 3) },
		func() error { return s.expect(409, false, order(4, "few")) },
		func() error { return s.expect(201, true, order(3, "few")) },
	)
}

// inFlight returns a scenario for a SKU with one unit. Orders must reach an instance while the unit
// is in flight, and the unit must sell when it has been returned. counted names the SKU's count at
// the gate: the SKU, or one of its segments.
func inFlight(sku string, counted stock.SKU) func(*shop) error {
	return func(s *shop) error {
		ctx := context.Background()
		counter := gate.NewCounter(s.redis, s.ledger, gate.Layout{})
		own := gate.NewScript(counter)
		var take stock.Take
		return steps(
			func() error { return s.setStock(sku, 1) },
			func() error { return s.rest(sku) },
			func() (err error) {
				generation, err := s.generation()
				if err != nil {
					return err
				}
				counter.Use(stock.Generation(generation))
				take, err = own.Take(ctx, stock.Deduction{
					OrderID: uuid.New(), TakeID: uuid.New(), Buyer: "u-2",
					Lines: []stock.Line{{SKU: counted, Quantity: 1}},
				})
				return err
			},
			func() error { return s.expect(409, true, order(1, sku)) },
			func() error { return counter.Give(ctx, take) },
			func() error { return s.expect(201, true, order(1, sku)) },
		)
	}
}

// restocked checks that added units sell as soon as the cache entry of the sold-out
// SKU has expired.
func restocked(s *shop) error {
	return steps(
		func() error { return s.sell("again", 1) },
		func() error { return s.expect(409, false, order(1, "again")) },
		func() error { return s.setStock("again", 2) },
		func() error {
			return testenv.Poll(testenv.Patience, func() error {
				a, err := call("POST", s.url+"/orders", order(1, "again"))
				if err == nil && a.status != 201 {
					err = fmt.Errorf("%w: after units were added: %v", errWrong, a)
				}
				return err
			})
		},
	)
}

// keyed checks that the gateway refuses an order with a key only after an instance has refused it,
// and only while no instance can have accepted it since. The instances also accept orders that the
// gateway does not see.
func keyed(s *shop) error {
	var first answer
	key := func(key string) []string { return []string{"Idempotency-Key", key} }
	replayed := func(url, key string, body string, first answer) error {
		again, err := call("POST", url+"/orders", body, "Idempotency-Key", key)
		if err == nil && (again.status != 201 || again.body != first.body || again.header.Get("Idempotent-Replayed") != "true") {
			err = fmt.Errorf("%w: %v was replayed as %v", errWrong, first, again)
		}
		return err
	}
	return steps(
		func() error { return s.setStock("keyed", 1) },
		func() (err error) {
			first, err = call("POST", s.url+"/orders", order(1, "keyed"), key("k")...)
			return err
		},
		func() error { return s.rest("keyed") },
		func() error { return s.expect(409, false, order(1, "keyed")) },
		func() error { return s.expect(409, true, order(1, "keyed"), key("other")...) },
		func() error { return s.expect(409, false, order(1, "keyed"), key("other")...) },
		func() error { return s.expect(409, true, order(2, "keyed"), key("other")...) },
		func() error { return s.expect(409, true, order(1, "keyed"), key("third")...) },
		func() error { return replayed(s.url, "k", order(1, "keyed"), first) },
		func() error { return replayed(s.url, "k", order(1, "keyed"), first) },
		func() error { return s.expect(400, true, order(1, "keyed"), key("")...) },
		func() error { return s.expect(400, true, order(1, "keyed"), key("with space")...) },
		// The gateway's answer is the same as an instance's.
		func() error {
			alone, err := call("POST", s.instances[0].URL()+"/orders", order(1, "keyed"), key("other")...)
			if err != nil {
				return err
			}
			a, passed, err := s.ask(order(1, "keyed"), key("other")...)
			if err == nil && passed {
				err = fmt.Errorf("%w: it reached an instance", errWrong)
			}
			if err != nil {
				return err
			}
			return same(a, alone)
		},
		// A unit is added and sold to the same key at an instance. The gateway still
		// has the SKU cached as sold out.
		func() error { return s.expect(409, false, order(1, "keyed")) },
		func() error { return s.setStock("keyed", 2) },
		func() (err error) {
			return testenv.Poll(testenv.Patience, func() error { // wait until the gate has the addition
				first, err = call("POST", s.instances[1].URL()+"/orders", order(1, "keyed"), key("other")...)
				if err == nil && first.status != 201 {
					err = fmt.Errorf("an instance answers %v", first)
				}
				return err
			})
		},
		func() error { return replayed(s.url, "other", order(1, "keyed"), first) },
		func() error { return s.rest("keyed") },
		func() error { return s.expect(409, false, order(1, "keyed")) },
		func() error { return replayed(s.url, "other", order(1, "keyed"), first) },
		func() error { return s.expect(409, true, order(1, "keyed"), key("third")...) },
		func() error { return s.expect(409, false, order(1, "keyed"), key("third")...) },
	)
}

// Strategies of stubs, as instances describe them.
const (
	lua        = `{"name":"lua","gate":"script","sound":true}`
	unsound    = `{"name":"none","gate":"readwrite","sound":false}`
	withNoGate = `{"name":"conditional","gate":null,"sound":true}`
)

// stub starts a server that answers every order with 409 and the given problem, and says that
// it runs the strategy. The detail is the value of X-Forwarded-For. stub returns the
// configuration that makes nginx use it instead of the shop's instances.
func stub(t *testing.T, problem, strategy string) map[string]string {
	var named struct{ Name string }
	if err := json.Unmarshal([]byte(strategy), &named); err != nil {
		t.Fatal(err)
	}
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path == "/strategies" {
			fmt.Fprintf(w, `{"running":%q,"strategies":[%s]}`, named.Name, strategy)
			return
		}
		w.Header().Set("Content-Type", "application/problem+json")
		w.WriteHeader(http.StatusConflict)
		fmt.Fprintf(w, `{"type":"/problems/%s","title":"","status":409,"detail":%q}`, problem, r.Header.Get("X-Forwarded-For"))
	}))
	t.Cleanup(server.Close)
	return map[string]string{"instances.conf": "server " + server.Listener.Addr().String() + ";\n"}
}

// inProgress checks that a 409 with another problem is not mistaken for sold out.
func inProgress(s *shop) error {
	return steps(
		func() error { return s.count("twin", 0, 1, 0) },
		func() error {
			for range 3 {
				a, err := call("POST", s.url+"/orders", order(1, "twin"), "Idempotency-Key", "k")
				if err != nil {
					return err
				}
				if !strings.Contains(a.body, "in-progress") {
					return fmt.Errorf("%w: %v", errWrong, a)
				}
			}
			return nil
		},
	)
}

// forwarded checks that instances get X-Forwarded-For. Without a token they trust
// only administrators on the same machine.
func forwarded(s *shop) error {
	for sent, want := range map[string]string{"": "127.0.0.1", "192.0.2.7": "192.0.2.7, 127.0.0.1"} {
		headers := []string{"X-Forwarded-For", sent}
		if sent == "" {
			headers = nil
		}
		a, err := call("POST", s.url+"/orders", order(1, "any"), headers...)
		if err != nil {
			return err
		}
		if !strings.Contains(a.body, fmt.Sprintf(`"detail":%q`, want)) {
			return fmt.Errorf("%w: %v, want %s", errWrong, a, want)
		}
	}
	return nil
}

// afterRestart checks that orders that were refused before a restart of Redis reach an instance
// after it. Redis may have lost an addition and the order that took it.
func afterRestart(own *testenv.RedisServer) func(*shop) error {
	return func(s *shop) error {
		const keys = 20 // several, because a worker may still have a connection that the restart has closed
		place := func() error {
			for n := range keys {
				if _, err := call("POST", s.url+"/orders", order(1, "back"), "Idempotency-Key", fmt.Sprint(n)); err != nil {
					return err
				}
			}
			return nil
		}
		repeated := func(want int) error {
			got, err := s.series()
			if n := got[`holdfast_gateway_orders_total{result="refused",reason="repeated"}`]; err == nil && n != want {
				err = fmt.Errorf("%w: %d keyed orders were refused, want %d", errWrong, n, want)
			}
			return err
		}
		return steps(
			func() error { return s.count("back", 0, 1, 0) },
			place,
			place,
			func() error { return repeated(keys) },
			func() error { own.Kill(); own.Restart(); return s.seed() },
			func() error { return s.count("back", 0, 1, 0) },
			func() error {
				return testenv.Poll(testenv.Patience, func() error {
					a, err := call("POST", s.url+"/orders", order(1, "back"))
					if err == nil && a.header.Get("Proxy-Status") == "" {
						err = fmt.Errorf("%w: the gateway does not reconnect to Redis: %v", errWrong, a)
					}
					return err
				})
			},
			place,
			func() error { return repeated(keys) },
		)
	}
}

// unsoundKeyed checks that a keyed order always reaches an instance under a strategy
// that loses updates, because its counts are not reliable.
func unsoundKeyed(s *shop) error {
	return steps(
		func() error { return s.count("lossy", 0, 1, 0) },
		func() error { return s.expect(409, false, order(1, "lossy")) },
		func() error { return s.expect(409, true, order(1, "lossy"), "Idempotency-Key", "k") },
		func() error { return s.expect(409, true, order(1, "lossy"), "Idempotency-Key", "k") },
	)
}

// contentTypes checks that the media type may have a charset and be in any case.
func contentTypes(s *shop) error {
	if err := s.sell("typed", 1); err != nil {
		return err
	}
	for _, value := range []string{
		"application/json", "application/json; charset=utf-8", "application/json;charset=UTF-8", "Application/JSON; Charset=\"utf-8\"",
		"application/json ;\tcharset=utf-8 ",
	} {
		if err := s.expect(409, false, order(1, "typed"), "Content-Type", value); err != nil {
			return err
		}
	}
	for _, value := range []string{"application/json; charset=latin-1", "application/jsonx", "application/json charset=utf-8", "text/plain; charset=utf-8"} {
		alone, err := call("POST", s.instances[0].URL()+"/orders", order(1, "typed"), "Content-Type", value)
		if err != nil {
			return err
		}
		a, err := call("POST", s.url+"/orders", order(1, "typed"), "Content-Type", value)
		if err != nil {
			return err
		}
		if err := same(a, alone); err != nil {
			return err
		}
	}
	return nil
}

// severalLines checks orders with several lines. One sold-out line is enough to refuse an order.
// The answer must name the same SKU as an instance would, and an order with an unknown SKU must
// reach an instance.
func severalLines(s *shop) error {
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
		func() error { return s.setStock("y", 5) },
		func() error { return compare(1, "x", 1, "y") },
		func() error { return compare(1, "y", 1, "x") },
		func() error { return compare(1, "y", 6, "x", 1, "x-1", 2, "x.1") },
		func() error { return compare(1, "x.1", 6, "y", 1, "x-1") },
		func() error { return s.expect(404, true, order(1, "nowhere", 1, "x")) },
		func() error { return s.expect(201, true, order(5, "y")) },
	)
}

// malformed checks that malformed and invalid orders are answered by an instance.
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
			return fmt.Errorf("%w: an instance accepts %.100q as an order: %v", errWrong, body, alone)
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
		// Unusual but valid: an instance refuses it.
		func() error { return s.expect(409, true, `{"buyer_id":"u","lines":[{"sku":"\u006fut","quantity":1}]}`) },
		func() error { return s.expect(409, true, strings.Repeat(" ", 10_000)+order(1, "out")) },
		// White space and the order of members do not matter.
		func() error {
			return s.expect(409, false, " {\r\n\"lines\" : [ { \"quantity\" :\t1 , \"sku\":\"out\" } ] , \"buyer_id\":\"u\" } ")
		},
	)
}

// segmented checks that a SKU in segments is sold out only if all segments are.
func segmented(s *shop) error {
	return steps(
		func() error { return s.setStock("parts", 6) }, // gives segments of 2, 2, 1 and 1 units
		func() error { return s.expect(409, false, order(7, "parts")) },
		func() error { return s.expect(201, true, order(2, "parts")) },
		func() error { return s.expect(201, true, order(3, "parts")) }, // takes units from several segments
		func() error { return s.rest("parts") },
		func() error { return s.expect(409, false, order(2, "parts")) },
		func() error { return s.expect(201, true, order(1, "parts")) },
		func() error { return s.rest("parts") },
		func() error { return s.expect(409, false, order(1, "parts")) },
	)
}

// invalidHTTP checks that a request that is not valid HTTP is answered with a problem
// document.
func invalidHTTP(s *shop) error {
	for _, request := range []string{
		"GARBAGE\r\n\r\n", "GET / HTTP/1.1\r\n\r\n", "GET / HTTP/3.1\r\nHost: x\r\n\r\n",
		"GET /" + strings.Repeat("x", 10_000) + " HTTP/1.1\r\nHost: x\r\n\r\n",
		"GET / HTTP/1.1\r\nHost: x\r\nX-Long: " + strings.Repeat("x", 10_000) + "\r\n\r\n",
		"POST /orders HTTP/1.1\r\nHost: x\r\nContent-Length: x\r\n\r\n",
		"POST /orders HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: gzip\r\n\r\n",
		"GET /stock HTTP/1.1\r\nHost: a\"b\r\n\r\n", "GET /stock HTTP/1.1\r\nHost: \xc3\xa4\r\n\r\n",
		"GET /stock HTTP/1.1\r\nHost: x\r\nX-Control: \x01\r\n\r\n",
		"GET /st\x01ock HTTP/1.1\r\nHost: x\r\n\r\n",
		"GET /stock/%zz HTTP/1.1\r\nHost: x\r\n\r\n", "GET /stock/\x7f HTTP/1.1\r\nHost: x\r\n\r\n",
	} {
		if err := s.malformed(request); err != nil {
			return fmt.Errorf("%.40q: %w", request, err)
		}
	}
	return nil
}

// malformed sends bytes and expects the answer 400.
func (s *shop) malformed(request string) error {
	a, err := s.raw(request)
	if err == nil && (a.status != 400 || strings.TrimSuffix(a.header.Get("Content-Type"), "; charset=utf-8") != "application/problem+json" ||
		!strings.HasPrefix(a.body, `{"type":"/problems/malformed"`)) {
		err = fmt.Errorf("%w: %v %v", errWrong, a, a.header)
	}
	return err
}

// raw sends bytes and returns the answer.
func (s *shop) raw(request string) (answer, error) {
	conn, err := net.Dial("tcp", strings.TrimPrefix(s.url, "http://"))
	if err != nil {
		return answer{}, err
	}
	defer conn.Close()
	if err := conn.SetDeadline(time.Now().Add(30 * time.Second)); err != nil {
		return answer{}, err
	}
	if _, err := io.WriteString(conn, request); err != nil {
		return answer{}, err
	}
	response, err := http.ReadResponse(bufio.NewReader(conn), nil)
	if err != nil {
		return answer{}, fmt.Errorf("%w: %w", errWrong, err)
	}
	defer response.Body.Close()
	body, err := io.ReadAll(response.Body)
	if err != nil {
		err = fmt.Errorf("%w: %w", errWrong, err)
	}
	return answer{response.StatusCode, response.Header, string(body)}, err
}

// withoutHost checks that a request of HTTP/1.0, which needs no Host, reaches an instance.
func withoutHost(s *shop) error {
	body := order(1, "old")
	return steps(
		func() error { return s.setStock("old", 1) },
		func() error {
			a, err := s.raw(fmt.Sprintf("POST /orders HTTP/1.0\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n%s", len(body), body))
			if err == nil && (a.status != 201 || a.header.Get("Content-Type") != "application/json") {
				err = fmt.Errorf("%w: %v", errWrong, a)
			}
			return err
		},
		func() error {
			a, err := s.raw("GET /stock HTTP/1.0\r\n\r\n")
			if err == nil && (a.status != 200 || a.header.Get("Content-Type") != "application/json") {
				err = fmt.Errorf("%w: %v", errWrong, a)
			}
			return err
		},
	)
}

// passes checks that an order for an unknown SKU reaches an instance, whatever its
// answer.
func (s *shop) passes(sku string) error {
	a, passed, err := s.ask(order(1, sku))
	if err == nil && !passed {
		err = fmt.Errorf("%w: refused: %v", errWrong, a)
	}
	return err
}

// refilling checks that orders reach an instance while the segments of a SKU are
// being filled: some are missing, or their epochs differ.
func refilling(s *shop) error {
	set := func(segment, n, available int) error {
		return s.count(fmt.Sprintf("new/%d", segment), 0, n, available)
	}
	passes := func() error { return s.passes("new") }
	return steps(
		passes,
		func() error { return set(0, 7, 0) },
		func() error { return set(1, 7, 0) },
		func() error { return set(2, 7, 0) },
		passes,
		func() error { return set(3, 6, 0) },
		passes,
		func() error { return set(3, 7, 0) },
		func() error { return s.expect(409, false, order(1, "new")) },
		func() error { s.expireCache(); return errors.Join(s.seed(), set(3, 8, 0)) },
		passes,
	)
}

// generations checks that a count is used only if it has the current generation, the
// generation key is valid, and its BEAT changes.
func generations(s *shop) error {
	current := func(text string) func() error {
		return func() error { s.expireCache(); return s.setGeneration(text) }
	}
	passes := func() error { return s.passes("heir") }
	refused := func() error { return s.expect(409, false, order(1, "heir")) }
	return steps(
		func() error { return s.count("heir", 1, 0, 0) },
		passes,
		func() error { return s.count("heir", 0, 1<<28-1, 0) },
		current("3 0"), refused,
		current("4 0"), passes,
		current("3"), passes,
		current("3 4"), passes, // the SKU has no segments
		current("3 1000000000"), passes,
		current("3 0"), refused,
		func() error { return testenv.Poll(2*beatTimeout, passes) }, // wait until the gateway sees that BEAT does not change
		current("3 0"), refused,
		func() error { return s.redis.Del(context.Background(), s.generationKey()).Err() },
		func() error { s.expireCache(); return passes() },
	)
}

// otherLedger checks that a gateway with the ID of another ledger logs a warning, but not
// with every order.
func otherLedger(s *shop) error {
	began := time.Now()
	if err := passesAll(s); err != nil {
		return err
	}
	const warning = "it has no valid key holdfast:{"
	if err := testenv.Poll(testenv.Patience, func() error {
		if !strings.Contains(s.gateway.Output(), warning) {
			return fmt.Errorf("%w: no warning:\n%s", errWrong, s.gateway.Output())
		}
		return nil
	}); err != nil {
		return err
	}
	before, err := s.placed()
	if err != nil {
		return err
	}
	for range 20 {
		if a, err := call("POST", s.url+"/orders", order(1, "unseen")); err != nil || a.status != 409 {
			return fmt.Errorf("%w: %v, %w", errWrong, a, err)
		}
	}
	if after, err := s.placed(); err != nil || after != before+20 {
		return fmt.Errorf("%w: %v of 20 orders reached an instance, %w", errWrong, after-before, err)
	}
	if n, most := strings.Count(s.gateway.Output(), warning), 2+int(time.Since(began)/(10*time.Second)); n > most {
		return fmt.Errorf("%w: %d warnings", errWrong, n)
	}
	return nil
}

// metrics checks that orders are counted by result and reason, and that only this
// machine can read the counters.
func metrics(s *shop) error {
	const refused, passed = `holdfast_gateway_orders_total{result="refused",reason=%q}`, `holdfast_gateway_orders_total{result="passed",reason=%q}`
	repeat := func(n int, body string, headers ...string) func() error {
		return func() error {
			for range n {
				if _, err := call("POST", s.url+"/orders", body, headers...); err != nil {
					return err
				}
			}
			return nil
		}
	}
	return steps(
		func() error { return s.sell("counted", 1) },
		func() error { return s.setStock("plenty", 9) },
		repeat(3, order(1, "counted")),
		repeat(5, order(1, "counted"), "Idempotency-Key", "counted"),
		repeat(2, order(1, "plenty")),
		repeat(1, "{"),
		repeat(1, order(1, "nowhere")),
		repeat(2, order(1, "counted"), "Content-Type", "text/plain"),
		func() error { _, err := call("PUT", s.url+"/stock/counted", "{}"); return err },
		func() error {
			got, err := s.series()
			if err != nil {
				return err
			}
			for name, want := range map[string]int{
				fmt.Sprintf(refused, "sold-out"): 3, fmt.Sprintf(refused, "repeated"): 4,
				fmt.Sprintf(passed, "key"): 1, fmt.Sprintf(passed, "available"): 2, fmt.Sprintf(passed, "unusual"): 3,
				fmt.Sprintf(passed, "no-count"): 1, fmt.Sprintf(passed, "no-generation"): 0, fmt.Sprintf(passed, "no-gate"): 0,
				fmt.Sprintf(passed, "redis"): 0, fmt.Sprintf(passed, "no-ledger"): 0,
				`holdfast_gateway_problems_total{type="method-not-allowed"}`: 1,
			} {
				if n, ok := got[name]; !ok || n != want {
					return fmt.Errorf("%w: %s is %d (%v), want %d", errWrong, name, n, ok, want)
				}
			}
			return nil
		},
		func() error {
			return s.problem(404, "not-found", "GET", "/gateway/metrics", "", "X-Forwarded-For", "192.0.2.1")
		},
		func() error {
			return s.problem(404, "not-found", "GET", "/gateway/metrics", "", "Forwarded", "for=192.0.2.1")
		},
	)
}

// problem sends a request and checks that the gateway itself answers with this
// problem.
func (s *shop) problem(status int, name, method, path, body string, headers ...string) error {
	a, err := call(method, s.url+path, body, append([]string{"X-Request-Id", "mine"}, headers...)...)
	if err != nil {
		return err
	}
	if a.status != status || !strings.HasPrefix(a.body, fmt.Sprintf(`{"type":"/problems/%s","title":`, name)) ||
		!strings.Contains(a.body, fmt.Sprintf(`"status":%d,`, status)) ||
		a.header.Get("Content-Type") != "application/problem+json" || a.header.Get("X-Request-Id") != "mine" ||
		a.header.Get("Proxy-Status") != "holdfast-gateway" {
		return fmt.Errorf("%w: %s %s: %v %v; want %d %s from the gateway", errWrong, method, path, a, a.header, status, name)
	}
	return nil
}

// routes checks which routes and methods are public, and that calls to others change nothing.
func routes(s *shop) error {
	id := uuid.NewString()
	return steps(
		func() error { return s.setStock("here", 3) },
		func() error { return hiddenRoutes(s, id) },
		func() error { return wrongMethods(s, id) },
		func() error { return publicRoutes(s, id) },
		func() error {
			a, err := call("GET", s.instances[0].URL()+"/stock/here", "")
			if err == nil && !strings.Contains(a.body, `"total":3`) {
				err = fmt.Errorf("%w: the stock was changed: %v", errWrong, a)
			}
			return err
		},
	)
}

// hiddenRoutes checks that routes that are not public are 404.
func hiddenRoutes(s *shop, id string) error {
	for _, path := range []string{
		"/metrics", "/readyz", "/healthz", "/strategies", "/openapi.yaml", "/payments", "/", "/gateway/problem", "/gateway/strategies",
		"/stock/here/audit", "/stock/here%2faudit", "/stock/", "/stock/here/", "//stock", "/stock//here", "/metrics/../stock", "/stock/%2e%2e/metrics",
		"/%73tock", "/orders/" + id + "/refund", "/orders/" + id + "/pay", "/payments?status=refund-due",
	} {
		if err := s.problem(404, "not-found", "GET", path, ""); err != nil {
			return err
		}
	}
	for _, path := range []string{
		"/orders/" + id + "/refund", "/orders/" + id + "/pay", "/orders/" + id + "/%63ancel", "/orders/" + id + "/cancel/",
		"/orders//cancel", "/payments/p-1/refunded",
	} {
		if err := s.problem(404, "not-found", "POST", path, "{}"); err != nil {
			return err
		}
	}
	return nil
}

// wrongMethods checks that other methods on public routes are 405 with Allow.
func wrongMethods(s *shop, id string) error {
	for _, request := range []string{"PUT /stock/here", "DELETE /stock/here", "POST /stock", "PATCH /orders/" + id, "GET /orders", "GET /orders?buyer_id=b-1", "DELETE /orders", "PUT /orders?x", "GET /orders/" + id + "/cancel"} {
		method, path, _ := strings.Cut(request, " ")
		body := `{"kind":"product","total":9}`
		if method == "GET" {
			body = ""
		}
		if err := s.problem(405, "method-not-allowed", method, path, body); err != nil {
			return err
		}
	}
	if a, err := call("PUT", s.url+"/stock/here", "{}"); err != nil || a.header.Get("Allow") != "GET" {
		return fmt.Errorf("%w: Allow: %q, %w", errWrong, a.header.Get("Allow"), err)
	}
	return nil
}

// publicRoutes checks that public routes have the answer of an instance.
func publicRoutes(s *shop, id string) error {
	for _, path := range []string{"/stock", "/stock?limit=1", "/stock/here", "/stock/h%3Aere", "/orders/" + id, "/orders/x"} {
		alone, err := call("GET", s.instances[0].URL()+path, "")
		if err != nil {
			return err
		}
		a, err := call("GET", s.url+path, "")
		if err != nil {
			return err
		}
		if err := same(a, alone); err != nil || a.header.Get("Proxy-Status") != "" {
			return fmt.Errorf("%s: %v, %w", path, a.header, err)
		}
	}
	for _, path := range []string{"/orders/" + id + "/cancel", "/orders/" + id + "/cancel?x"} {
		a, err := call("POST", s.url+path, "")
		if err != nil || a.status != 404 || !strings.Contains(a.body, "/problems/unknown-order") || a.header.Get("Proxy-Status") != "" {
			return fmt.Errorf("%w: POST %s: %v %v, %w; want an instance's 404 unknown-order", errWrong, path, a, a.header, err)
		}
	}
	return nil
}

// counted returns a scenario for a SKU whose count at the gate is 0. It checks whether an order
// reaches an instance, which it must if the count cannot be read or does not matter.
func counted(passed bool) func(*shop) error {
	return func(s *shop) error {
		return steps(
			func() error { return s.count("left", 0, 1, 0) },
			func() error { return s.expect(409, passed, order(1, "left")) },
		)
	}
}

// clusterNodes checks that on a cluster the gateway reads a count from the node that has
// it.
func clusterNodes(s *shop) error {
	for n := range 8 {
		sku := fmt.Sprintf("far-%d", n)
		if err := steps(
			func() error { return s.setStock(sku, 3) },
			func() error { return s.expect(201, true, order(3, sku)) },
			func() error { return s.rest(sku) },
			func() error { return s.expect(409, false, order(1, sku)) },
		); err != nil {
			return err
		}
	}
	return s.expect(409, false, order(1, "far-0", 1, "far-1", 1, "far-2"))
}

// passesAll checks that a gateway that cannot read the counts passes every order.
func passesAll(s *shop) error {
	return steps(
		func() error { return s.sell("unseen", 1) },
		func() error { return s.expect(409, true, order(1, "unseen")) },
		func() error { return s.expect(409, true, order(1, "unseen")) },
	)
}

var inSegments = []string{"--strategy", "segment", "--segments", "4"}

// TestGateway runs every scenario at its own gateway. By default it leaves out a cluster without
// segments, and rate limits. Another scenario checks that instances get the client's address, and a
// test of httpapi checks its use.
func TestGateway(t *testing.T) {
	t.Parallel()
	secretive := testenv.OwnRedis(t, "--requirepass", "secret", "--databases", "4")
	for _, test := range []struct {
		name     string
		plan     func(t *testing.T) plan
		scenario func(*shop) error
	}{
		{"sold out", nil, soldOut},
		{"the last units", nil, lastUnits},
		{"in flight", nil, inFlight("held", "held")},
		{"restocked", nil, restocked},
		{"a key", func(*testing.T) plan { return plan{ttl: longTTL} }, keyed},
		{"several lines", nil, severalLines},
		{"malformed", nil, malformed},
		{"content types", nil, contentTypes},
		{"generations", func(*testing.T) plan { return plan{fakeLedger: true, beatTimeout: beatTimeout} }, generations},
		{"metrics", nil, metrics},
		{"private routes", nil, routes},
		{"invalid HTTP", nil, invalidHTTP},
		{"without Host", nil, withoutHost},
		{"forwarded", func(t *testing.T) plan { return plan{fakeLedger: true, files: stub(t, "in-progress", lua)} }, forwarded},
		{"a key in progress", func(t *testing.T) plan { return plan{fakeLedger: true, files: stub(t, "in-progress", lua)} }, inProgress},
		{"a key under a broken strategy", func(t *testing.T) plan { return plan{fakeLedger: true, files: stub(t, "sold-out", unsound)} }, unsoundKeyed},
		{"a key and segments", func(*testing.T) plan { return plan{args: inSegments} }, keyed},
		{"segments", func(*testing.T) plan { return plan{args: inSegments} }, segmented},
		{"segments sold out", func(*testing.T) plan { return plan{args: inSegments} }, soldOut},
		{"several lines in segments", func(*testing.T) plan { return plan{args: inSegments} }, severalLines},
		{"a segment in flight", func(*testing.T) plan { return plan{args: inSegments} }, inFlight("pieces", "pieces/0")},
		{"segments refilled", func(*testing.T) plan { return plan{fakeLedger: true, args: inSegments} }, refilling},
		{"no gate", func(t *testing.T) plan { return plan{fakeLedger: true, files: stub(t, "sold-out", withNoGate)} }, counted(true)},
		{"a cluster", func(t *testing.T) plan { return plan{redis: testenv.RedisCluster(t)} }, clusterNodes},
		{"segments on a cluster", func(t *testing.T) plan { return plan{redis: testenv.RedisCluster(t), args: inSegments} }, clusterNodes},
		{"rate limits", func(*testing.T) plan {
			return plan{args: []string{"--rate-limit", "1", "--rate-burst", "3", "--trusted-proxies", "127.0.0.1"}}
		}, rateLimits},
		{"no ledger ID", func(*testing.T) plan { return plan{environment: []string{"HOLDFAST_LEDGER_ID="}} }, passesAll},
		{"a wrong ledger ID", func(*testing.T) plan {
			return plan{environment: []string{"HOLDFAST_LEDGER_ID=" + strings.Repeat("x", 32)}}
		}, passesAll},
		{"another ledger's ID", func(*testing.T) plan { return plan{environment: []string{"HOLDFAST_LEDGER_ID=" + uuid.NewString()}} }, otherLedger},
		{"an unreachable Redis", func(*testing.T) plan { return plan{environment: []string{"HOLDFAST_GATEWAY_REDIS=127.0.0.1:1"}} }, passesAll},
		{"a password", func(t *testing.T) plan {
			return plan{
				fakeLedger: true, files: stub(t, "sold-out", lua),
				redis:       "redis://:secret@" + secretive.Addr() + "/3",
				environment: []string{"HOLDFAST_GATEWAY_REDIS_PASSWORD=secret", "HOLDFAST_GATEWAY_REDIS_DB=3"},
			}
		}, counted(false)},
		{"a wrong password", func(t *testing.T) plan {
			return plan{
				fakeLedger: true, files: stub(t, "sold-out", lua),
				redis:       "redis://:secret@" + secretive.Addr() + "/3",
				environment: []string{"HOLDFAST_GATEWAY_REDIS_PASSWORD=guess", "HOLDFAST_GATEWAY_REDIS_DB=3"},
			}
		}, counted(true)},
	} {
		if (test.name == "a cluster" || test.name == "rate limits") && !testenv.Thorough() {
			continue
		}
		t.Run(test.name, func(t *testing.T) {
			t.Parallel()
			var p plan
			if test.plan != nil {
				p = test.plan(t)
			}
			if p.files == nil {
				p.on = shared.of(t, p)
			}
			s := build(t, p)
			if err := test.scenario(s); err != nil {
				t.Fatalf("%v\n%s", err, s.gateway.Output())
			}
		})
	}
}

// TestOpenResty runs scenarios with the Redis client under OpenResty's name only. The module is the
// same, so by default only the first scenario runs.
func TestOpenResty(t *testing.T) {
	t.Parallel()
	client, err := os.ReadFile("/usr/share/lua/5.1/nginx/redis.lua")
	if err != nil {
		t.Skipf("no Redis client for nginx: %v", err) // OwnNginx reports the packages to install
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
		{"segments on a cluster", func(t *testing.T) plan { return plan{redis: testenv.RedisCluster(t), args: inSegments} }, clusterNodes},
		{"a password", func(t *testing.T) plan {
			own := testenv.OwnRedis(t, "--requirepass", "secret")
			return plan{redis: "redis://:secret@" + own.Addr() + "/0", environment: []string{"HOLDFAST_GATEWAY_REDIS_PASSWORD=secret"}}
		}, soldOut},
	} {
		if test.name != "sold out" && !testenv.Thorough() {
			continue
		}
		t.Run(test.name, func(t *testing.T) {
			t.Parallel()
			p := test.plan(t)
			p.files = files
			if p.redis == "" {
				p.on = shared.of(t, p)
			}
			s := build(t, p)
			if err := test.scenario(s); err != nil {
				t.Fatalf("%v\n%s", err, s.gateway.Output())
			}
		})
	}
}

// TestMutants removes one rule of the gateway at a time and checks that a scenario fails. It tests
// the tests, like internal/mutants.
func TestMutants(t *testing.T) {
	t.Parallel()
	if !testenv.Thorough() {
		t.Log("only in a thorough run: it tests the tests")
		return
	}
	for _, test := range []struct {
		name, rule, without string
		plan                plan
		scenario            func(*shop) error
	}{
		{"<= for <", "line.most < line.quantity", "line.most <= line.quantity", plan{}, lastUnits},
		{"units in flight do not count", "one.in_flight ~= 0", "false", plan{}, inFlight("held", "held")},
		{"units in flight of segments do not count", "all.in_flight + in_flight", "0", plan{args: inSegments}, inFlight("pieces", "pieces/0")},
		{"keys are ignored", "elseif not key then", "else", plan{}, keyed},
		{"a refusal of another body", `key .. "\0" .. body`, "key", plan{}, keyed},
		{"additions do not count", `change .. "@"`, `"@"`, plan{}, keyed},
		{"any 409 is a refusal", `find(ngx.arg[1], '"type":"/problems/sold-out"', 1, true)`, "true", plan{fakeLedger: true, files: stub(t, "in-progress", lua)}, inProgress},
		{"a broken strategy's refusal", `strategy.sound == true`, "true", plan{fakeLedger: true, files: stub(t, "sold-out", unsound)}, unsoundKeyed},
		{"no unquoted charset", `charset == "utf-8" or `, "", plan{}, contentTypes},
		{"a case-sensitive media type", "lower(content_type)", "content_type", plan{}, contentTypes},
		{"any charset", `rest == "" or charset == "utf-8"`, "rest", plan{}, contentTypes},
		{"a beat that does not change", "now() - since < BEAT_TIMEOUT", "true", plan{fakeLedger: true, beatTimeout: beatTimeout}, generations},
		{"any generation", "floor(epoch / EPOCHS) ~= generation", "false", plan{fakeLedger: true, beatTimeout: beatTimeout}, generations},
		{"no warning of another ledger", "elseif reason then", "elseif false then", plan{environment: []string{"HOLDFAST_LEDGER_ID=" + uuid.NewString()}}, otherLedger},
		{"nothing is counted", `count("orders", result, reason)`, "", plan{}, metrics},
		{"everything is public", `"~ $" 404;`, `"~ $" "";`, plan{}, routes},
		{"every method is public", "default 405;", `default "";`, plan{}, routes},
		{"no X-Forwarded-For", "proxy_set_header X-Forwarded-For $proxy_add_x_forwarded_for;", "", plan{fakeLedger: true, files: stub(t, "in-progress", lua)}, forwarded},
		{"nginx's error page for malformed requests", "error_page 400 ", "error_page ", plan{}, invalidHTTP},
		{"nginx's own error pages", "error_page 400 403 404 405", "error_page 400", plan{}, routes},
		{"one segment only", "all.available = all.available + available", "all.available = tonumber(available)", plan{args: inSegments}, segmented},
		{"segments with different epochs", "epoch ~= (all.epoch or epoch)", "false", plan{fakeLedger: true, args: inSegments}, refilling},
		{"no gate", "type(strategy.gate) == \"string\" and", "", plan{fakeLedger: true, files: stub(t, "sold-out", withNoGate)}, counted(true)},
		{"the client's order of lines", "table.sort(lines, before)", "", plan{}, severalLines},
		{"order of SKUs for segments", "all.segmented = segments > 0", "", plan{args: inSegments}, severalLines},
		{"a SKU without a count is sold out", `return "passed", "no-count" -- an`, `one = { available = 0, in_flight = 0, mark = "0" } -- an`, plan{}, severalLines},
		{"sold out for an hour", "milliseconds / 1000", "3600", plan{}, restocked},
	} {
		t.Run(test.name, func(t *testing.T) {
			t.Parallel()
			p := test.plan
			p.edit = func(text string) string { return strings.ReplaceAll(text, test.rule, test.without) }
			// A scenario may miss the fault on a slow machine, because cached counts
			// expire. So it runs up to 5 times.
			var err error
			for range 5 {
				if err = test.scenario(build(t, p)); errors.Is(err, errWrong) {
					return
				}
			}
			t.Errorf("the scenario did not fail: %v", err)
		})
	}
}

// TestRedisRestarted runs the scenario afterRestart. A thorough run repeats it without the rule
// that a mark contains the run ID of Redis.
func TestRedisRestarted(t *testing.T) {
	t.Parallel()
	for _, mutated := range []bool{false, true} {
		if mutated && !testenv.Thorough() {
			continue
		}
		own := testenv.OwnRedis(t)
		p := plan{fakeLedger: true, redis: own.URL(), files: stub(t, "sold-out", lua)}
		if mutated {
			p.edit = func(text string) string { return strings.ReplaceAll(text, ` .. "@" .. runs[n]`, "") }
		}
		s := build(t, p)
		switch err := afterRestart(own)(s); {
		case mutated && !errors.Is(err, errWrong):
			t.Errorf("the scenario did not fail without the run ID: %v", err)
		case !mutated && err != nil:
			t.Errorf("%v\n%s", err, s.gateway.Output())
		}
	}
}

// TestLedgerIDFile checks that the ledger's ID can be in a file, in upper case and
// without hyphens.
func TestLedgerIDFile(t *testing.T) {
	t.Parallel()
	on := shared.of(t, plan{})
	name := file(t, strings.ToUpper(strings.ReplaceAll(on.ledger.String(), "-", ""))+"\n")
	s := build(t, plan{on: on, environment: []string{"HOLDFAST_LEDGER_ID=", "HOLDFAST_LEDGER_ID_FILE=" + name}})
	if err := soldOut(s); err != nil {
		t.Fatal(err)
	}
}

// redisGone checks that orders reach an instance while Redis is stopped or killed, and that
// the gateway refuses orders again afterwards.
func redisGone(s *shop, own *testenv.RedisServer) error {
	refused := func() error { return s.expect(409, false, order(1, "gone")) }
	passed := func() error { return s.expect(503, true, order(1, "gone")) }
	// The counts cannot be read, so every order passes once they are no longer cached. Until then,
	// only orders that would read them again pass: fewer than three in succession.
	pass := func() error {
		return testenv.Poll(testenv.Patience, func() error { return steps(passed, passed, passed) })
	}
	return steps(
		func() error { return s.sell("gone", 2) },
		func() error { return testenv.Poll(testenv.Patience, refused) },
		func() error { own.Stop(); return pass() },
		func() error { own.Cont(); return testenv.Poll(testenv.Patience, refused) },
		func() error { own.Kill(); return pass() },
		func() error { own.Restart(); return testenv.Poll(testenv.Patience, refused) },
	)
}

// TestRedisPause checks that the gateway pauses after a failure of Redis: the next orders pass
// without a request to Redis. In a thorough run, it also removes two rules, without which each
// order asks Redis.
func TestRedisPause(t *testing.T) {
	t.Parallel()
	on := shared.of(t, plan{})
	for _, test := range []struct{ rule, without string }{
		{},
		{`levels:set(" redis failed", true, REDIS_PAUSE)`, ""},
		{`levels:get(" redis failed")`, "false"},
	} {
		if test.rule != "" && !testenv.Thorough() {
			continue
		}
		// Redis accepts connections and closes them.
		listener, err := net.Listen("tcp", "127.0.0.1:0")
		if err != nil {
			t.Fatal(err)
		}
		defer listener.Close()
		var asked atomic.Int64
		go func() {
			for {
				conn, err := listener.Accept()
				if err != nil {
					return
				}
				asked.Add(1)
				conn.Close()
			}
		}()
		p := plan{on: on, environment: []string{"HOLDFAST_GATEWAY_REDIS=" + listener.Addr().String()}}
		p.edit = func(text string) string {
			text = strings.Replace(text, "REDIS_PAUSE = 0.2", "REDIS_PAUSE = 3600", 1)
			return strings.Replace(text, test.rule, test.without, 1)
		}
		s := build(t, p)
		for range 20 {
			if err := s.passes("any"); err != nil {
				t.Fatal(err)
			}
		}
		if n := asked.Load(); (n == 1) != (test.rule == "") {
			t.Errorf("without %q: Redis was asked %d times for 20 orders", test.rule, n)
		}
	}
}

var accepted = regexp.MustCompile(`holdfast_orders_total\{result="accepted"\} (\d+)`)

// bothInstances checks that orders are spread over both instances. nginx skips an instance for ten
// seconds after it was too busy for a connection.
func bothInstances(s *shop) error {
	for range 20 {
		if err := s.expect(201, true, order(1, "plenty")); err != nil {
			return err
		}
	}
	return testenv.Poll(testenv.Patience, func() error {
		alone := areUsed(s.instances)
		if alone != nil {
			alone = errors.Join(alone, s.expect(201, true, order(1, "plenty")))
		}
		return alone
	})
}

// areUsed checks that each instance has had at least five orders.
func areUsed(instances []*testenv.APIServer) error {
	for _, api := range instances {
		metrics, err := call("GET", api.URL()+ordersMetric, "")
		if err != nil {
			return err
		}
		if found := accepted.FindStringSubmatch(metrics.body); found == nil || len(found[1]) == 1 && found[1] < "5" {
			return fmt.Errorf("%w: %s had %v of the orders", errWrong, api.URL(), found)
		}
	}
	return nil
}

// oneInstance checks that orders are accepted while one instance is down.
func oneInstance(s *shop) error {
	for range 5 {
		if a, err := call("POST", s.url+"/orders", order(1, "plenty")); err != nil || a.status != 201 {
			return fmt.Errorf("%w: with one instance: %v, %w", errWrong, a, err)
		}
	}
	return nil
}

// noInstance checks the gateway's own answers while no instance runs.
func noInstance(s *shop) error {
	return steps(
		func() error { return s.problem(503, "unavailable", "POST", "/orders", order(1, "plenty")) },
		func() error {
			a, err := call("POST", s.url+"/orders", order(1, "plenty"))
			if err != nil || a.header.Get("Retry-After") != "1" || a.header.Get("X-Request-Id") == "" {
				err = fmt.Errorf("%w: %v %v, %w", errWrong, a, a.header, err)
			}
			return err
		},
		func() error {
			a, err := call("GET", s.url+"/gateway/healthz", "")
			if err != nil || a.status != 200 {
				err = fmt.Errorf("%w: /gateway/healthz: %v, %w", errWrong, a, err)
			}
			return err
		},
		func() error {
			a, err := call("GET", s.url+"/gateway/strategies", "")
			if err != nil || a.status != 404 {
				err = fmt.Errorf("%w: an internal route answers: %v, %w", errWrong, a, err)
			}
			return err
		},
	)
}

// rateLimits checks that the instances limit each client of the gateway separately, and that a
// client cannot pretend to be another one.
func rateLimits(s *shop) error {
	from := func(address string) (status int, err error) {
		dialer := &net.Dialer{LocalAddr: &net.TCPAddr{IP: net.ParseIP(address)}}
		own := &http.Client{Timeout: 20 * time.Second, Transport: &http.Transport{DialContext: dialer.DialContext, DisableKeepAlives: true}}
		r, err := http.NewRequest("GET", s.url+"/stock", nil)
		if err != nil {
			return 0, err
		}
		r.Header.Set("X-Forwarded-For", fmt.Sprintf("192.0.2.%d", rand.IntN(255)))
		response, err := own.Do(r)
		if err != nil {
			return 0, err
		}
		return response.StatusCode, response.Body.Close()
	}
	limited := false
	for n := 0; n < 100 && !limited; n++ {
		status, err := from("127.0.0.2")
		if err != nil {
			return err
		}
		limited = status == http.StatusTooManyRequests
	}
	if !limited {
		return fmt.Errorf("%w: a client that claims to be many is not limited", errWrong)
	}
	if status, err := from("127.0.0.3"); err != nil || status != http.StatusOK {
		return fmt.Errorf("%w: another client: %d, %w", errWrong, status, err)
	}
	return nil
}

// selling waits until each instance sells.
func selling(s *shop) error {
	for _, api := range s.instances {
		if err := testenv.Poll(testenv.Patience, func() error {
			a, err := call("POST", api.URL()+"/orders", order(1, "plenty"))
			if err == nil && a.status != 201 {
				err = fmt.Errorf("an instance answers %v", a)
			}
			return err
		}); err != nil {
			return err
		}
	}
	return nil
}

// TestOutages stops and kills Redis, and then kills the instances one after the other.
func TestOutages(t *testing.T) {
	t.Parallel()
	own := testenv.OwnRedis(t)
	p := plan{redis: own.URL()}
	p.on = start(t, p)
	s := build(t, p)
	p.redisTimeout = time.Second
	impatient := build(t, p)
	if err := steps(
		func() error { return s.setStock("plenty", 200) },
		func() error { return bothInstances(s) },
		func() error {
			a, err := call("GET", s.url+"/stock/plenty", "", "X-Request-Id", "mine")
			if err != nil || a.status != 200 || strings.Join(a.header["X-Request-Id"], "|") != "mine" {
				err = fmt.Errorf("%w: %v %v, %w", errWrong, a, a.header, err)
			}
			return err
		},
		func() error { return redisGone(impatient, own) },
		func() error { return selling(s) },
		func() error { s.instances[0].Kill(); return oneInstance(s) },
		func() error { s.instances[1].Kill(); return noInstance(s) },
	); err != nil {
		t.Fatalf("%v\n%s\n%s", err, s.gateway.Output(), impatient.gateway.Output())
	}
}
