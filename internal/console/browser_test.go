package console_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	"github.com/chromedp/cdproto/cdp"
	"github.com/chromedp/cdproto/emulation"
	"github.com/chromedp/cdproto/page"
	"github.com/chromedp/chromedp"

	"github.com/holdfast-stock/holdfast/internal/stock"
	"github.com/holdfast-stock/holdfast/internal/testenv"
	"github.com/holdfast-stock/holdfast/internal/testenv/chromium"
)

// TestBrowser tests the page in a real Chromium. The tests share the browser, but each has a
// browser context with separate storage.
func TestBrowser(t *testing.T) {
	t.Parallel()
	browser := chromium.Start(t)
	for name, test := range map[string]func(*testing.T, context.Context){
		"Live": testLive, "Language": testLanguage, "Phone": testPhone, "Away": testAway, "SignIn": testSignIn, "Search": testSearch, "Rush": testRush,
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			test(t, browser)
		})
	}
}

// tab is a page in the browser.
type tab struct {
	t   *testing.T
	ctx context.Context
}

// recordFaults makes a page record its errors and the violations of its policy.
const recordFaults = `window.faults = [];
addEventListener("error", (e) => faults.push(String(e.message)));
addEventListener("unhandledrejection", (e) => faults.push(String(e.reason)));
addEventListener("securitypolicyviolation", (e) => faults.push("policy: " + e.violatedDirective + " " + e.blockedURI));`

// newTab opens an empty page of this size, for a user of the language. When the test ends, the page
// must have had no errors.
func newTab(t *testing.T, browser context.Context, width int64, language string) *tab {
	t.Helper()
	ctx, closeTab := chromedp.NewContext(browser, chromedp.WithNewBrowserContext())
	w := &tab{t, ctx}
	t.Cleanup(func() {
		if !t.Failed() {
			if faults := read[[]string](w, "window.faults"); len(faults) > 0 {
				t.Errorf("the page had errors: %q", faults)
			}
		} else {
			w.picture(filepath.Join(os.TempDir(), "console-"+strings.ReplaceAll(t.Name(), "/", "-")+".png"))
		}
		closeTab()
	})
	w.do(
		command(emulation.SetDeviceMetricsOverride, emulation.SetDeviceMetricsOverrideParams{Width: width, Height: 900, DeviceScaleFactor: 1, Mobile: width < 500}),
		command(emulation.SetUserAgentOverride, emulation.SetUserAgentOverrideParams{UserAgent: "Chromium", AcceptLanguage: language}),
		command(page.AddScriptToEvaluateOnNewDocument, page.AddScriptToEvaluateOnNewDocumentParams{Source: recordFaults}),
	)
	return w
}

// command is a command of the protocol whose answer is ignored.
func command[P, R any](c cdp.Command[P, R], params P) chromedp.Action[chromedp.Void] {
	return func(ctx context.Context, target *chromedp.Target) (chromedp.Void, error) {
		_, err := cdp.Call(ctx, target, c, params)
		return chromedp.Void{}, err
	}
}

// do runs the actions.
func (w *tab) do(actions ...chromedp.Action[chromedp.Void]) {
	w.t.Helper()
	if err := chromedp.Do(w.ctx, actions...); err != nil {
		w.t.Fatal(err)
	}
}

func (w *tab) open(url string) {
	w.t.Helper()
	w.do(chromedp.Navigate(url))
}

// read returns the value of an expression in the page.
func read[V any](w *tab, expression string) V {
	w.t.Helper()
	value, err := chromedp.Run(w.ctx, chromedp.Evaluate[V](expression))
	if err != nil {
		w.t.Fatalf("%s: %v", expression, err)
	}
	return value
}

// until waits until the expression is true. The page checks it every 50 ms. If the page is left
// meanwhile, the next page continues.
func (w *tab) until(expression string) {
	w.t.Helper()
	look := fmt.Sprintf(`new Promise((resolve) => {
		const look = () => (%s) ? resolve(true) : setTimeout(look, 20);
		look();
	})`, expression)
	ctx, cancel := context.WithTimeout(w.ctx, testenv.Patience)
	defer cancel()
	for {
		_, err := chromedp.Run(ctx, chromedp.Evaluate[bool](look, chromedp.EvalAwaitPromise))
		switch {
		case err == nil:
			return
		case ctx.Err() != nil:
			w.t.Fatalf("not true within %v: %s\nthe page: %s", testenv.Patience, expression, read[string](w, "document.body.innerText"))
		case errors.As(err, new(*chromedp.ExceptionError)):
			w.t.Fatalf("%s: %v", expression, err)
		}
	}
}

// click clicks the element that the selector names.
func (w *tab) click(selector string) {
	w.t.Helper()
	read[chromedp.Void](w, fmt.Sprintf("document.querySelector(%q).click()", selector))
}

// fill types a text into a field and submits its form.
func (w *tab) fill(selector, text string) {
	w.t.Helper()
	value, _ := json.Marshal(text)
	read[chromedp.Void](w, fmt.Sprintf("(() => { const e = document.querySelector(%q); e.value = %s; e.form.requestSubmit(); })()", selector, value))
}

// cell is the text of a cell of the stock table.
func cell(sku stock.SKU, label string) string {
	return fmt.Sprintf(`[...document.querySelectorAll("#stock tbody tr")].find((r) => r.querySelector(".sku").textContent === %q)?.querySelector('[data-label=%q]')?.textContent`, sku, label)
}

// text is the text of an element.
func text(id string) string { return fmt.Sprintf("document.getElementById(%q).innerText", id) }

// picture saves a screenshot of the whole page.
func (w *tab) picture(file string) {
	shot, err := chromedp.Run(w.ctx, chromedp.FullScreenshot(100))
	if err == nil {
		err = os.WriteFile(file, shot, 0o600)
	}
	w.t.Log(file, err)
}

// testLive follows orders in the page, and then a unit that is sold twice.
func testLive(t *testing.T, browser context.Context) {
	s := openShop(t, withStrategy("none"))
	s.setStock("apple", 50)
	w := newTab(t, browser, 1440, "en-US")
	w.open(s.url())
	w.until(`document.getElementById("link").dataset.state === "live"`)
	w.until(cell("apple", "Total") + ` === "50"`)
	o, err := s.place("apple")
	if err != nil {
		t.Fatal(err)
	}
	w.until(cell("apple", "Sold") + ` === "1"`)
	w.until(cell("apple", "In the ledger") + ` === "49"`)
	if alarm := read[string](w, text("alarm")); alarm != "" {
		t.Errorf("an alarm without a cause: %s", alarm)
	}
	sku := s.oversell()
	w.until(fmt.Sprintf(`%s.includes("sold that") && %s.includes(%q)`, text("alarm"), text("alarm"), sku))
	w.until(`Number(` + cell(sku, "Oversold") + `) > 0`)
	if colour := read[string](w, `getComputedStyle(document.querySelector("tr.oversold td.bad")).color`); colour != "rgb(179, 18, 29)" {
		t.Errorf("oversold units are %s, want red", colour)
	}
	if read[bool](w, `document.getElementById("alarm").getBoundingClientRect().top > document.querySelector(".facts").getBoundingClientRect().top`) {
		t.Error("the alarm is not the first thing on the page")
	}
	w.fill("#order-id", o.ID.String())
	w.until(text("order") + `.includes("pending") && ` + text("order") + `.includes("1 × apple")`)
	w.fill("#order-id", "00000000-0000-0000-0000-000000000000")
	w.until(text("order-error") + ` === "There is no order with this ID."`)
	w.click("#stock tbody button")
	w.until(text("audit") + `.startsWith("Audit of apple: 1 of 50 sold")`)

	// All this took about as long as the timeouts of the server, on one stream.
	for range 3 {
		if _, err := s.place("apple"); err != nil {
			t.Fatal(err)
		}
	}
	w.until(cell("apple", "Sold") + ` === "4"`)
	w.until(`[...document.querySelectorAll(".plot")].every((p) => p.querySelector(".line[d^=M]"))`) // each chart has a line
	low, err := chromedp.Run(w.ctx, chromedp.Evaluate[[]float64](
		`import("/console/assets/plot.js").then(({top}) => [0.2, 0.98, 0.99, 0.999, 1, 9.9, 99, 2017].filter((v) => !(top(v) > v)))`, chromedp.EvalAwaitPromise))
	if err != nil || len(low) > 0 {
		t.Errorf("the charts do not reach to %v: %v", low, err)
	}
	// A sample without a value, and a time without samples, interrupt a line.
	line, err := chromedp.Run(w.ctx, chromedp.Evaluate[string](
		`import("/console/assets/plot.js").then(({path}) => path([[0, 0], [1, 5], [2, null], [3, 10], [20, 10]], 100, 10))`, chromedp.EvalAwaitPromise))
	if want := "M0.00 100.00H0.00L1.00 50.00M2.00 0.00H3.00M19.00 0.00H20.00"; err != nil || line != want {
		t.Errorf("the line is %s (%v), want %s", line, err, want)
	}
	s.loseAnswer.Store(true) // the order is repeated, but placed only once
	w.click("#order-place")
	w.until(cell("apple", "Sold") + ` === "5" && ` + text("order") + `.includes("console") && document.getElementById("order-id").value.length === 36`)
	if n := s.streams.Load(); n != 1 {
		t.Errorf("%d streams were opened, want 1", n)
	}
}

// testLanguage checks that the page begins in the language of the browser, and remembers another
// language and a theme.
func testLanguage(t *testing.T, browser context.Context) {
	s := openShop(t)
	s.setStock("apple", 5)
	w := newTab(t, browser, 1440, "zh-CN")
	w.open(s.url())
	w.until(text("stock-title") + ` === "库存" && document.documentElement.lang === "zh-CN"`)
	w.until(cell("apple", "总量") + ` === "5"`)
	w.click("#language")
	w.until(text("stock-title") + ` === "Stock" && document.documentElement.lang === "en"`)
	w.until(cell("apple", "Total") + ` === "5"`)
	light := read[string](w, "getComputedStyle(document.documentElement).backgroundColor")
	w.click("#theme")
	w.until(fmt.Sprintf("getComputedStyle(document.documentElement).backgroundColor !== %q", light))
	dark := read[string](w, "getComputedStyle(document.documentElement).backgroundColor")
	// Chromium stores the choice with a short delay.
	testenv.Await(t, "the theme is remembered", func() bool {
		w.open(s.url())
		w.until(cell("apple", "Total") + ` === "5"`)
		return read[string](w, "getComputedStyle(document.documentElement).backgroundColor") == dark
	})
}

// testPhone checks that no part is wider than a phone, and that buttons and fields are large enough
// for fingers.
func testPhone(t *testing.T, browser context.Context) {
	s := openShop(t, withStrategy("none"))
	s.setStock(stock.SKU("a-"+strings.Repeat("long-", 12)), 1_000_000_000)
	sku := s.oversell()
	w := newTab(t, browser, 390, "en-US")
	w.open(s.url())
	for range 2 { // in both languages
		w.until(fmt.Sprintf(`%s.includes(%q) && document.querySelectorAll(".plot").length === 3 && document.querySelector(".plot .line[d^=M]")`, text("alarm"), sku))
		if width := read[int](w, "document.documentElement.scrollWidth"); width > 390 {
			t.Errorf("the page is %d wide", width)
		}
		wide := read[[]string](w, `[...document.querySelectorAll("main *")].filter((e) => e.getBoundingClientRect().right > 391 && !e.closest(".unseen, .skip")).map((e) => e.tagName + "." + e.className)`)
		if len(wide) > 0 {
			t.Errorf("wider than the screen: %v", wide)
		}
		w.click("#language")
	}
	w.do(command(emulation.SetDeviceMetricsOverride, emulation.SetDeviceMetricsOverrideParams{Width: 768, Height: 900, DeviceScaleFactor: 1}))
	w.until("innerWidth === 768")
	if width := read[int](w, "document.documentElement.scrollWidth"); width > 768 {
		t.Errorf("on a tablet, the page is %d wide", width)
	}
	if small := read[[]string](w, `[...document.querySelectorAll("button, input, select")].filter((e) => e.offsetHeight && e.offsetHeight < 30).map((e) => e.id)`); len(small) > 0 {
		t.Errorf("too small to hit: %v", small)
	}
}

// testAway checks that the page shows that the service cannot be reached, and continues when it
// can.
func testAway(t *testing.T, browser context.Context) {
	s := openShop(t)
	s.setStock("apple", 5)
	w := newTab(t, browser, 1440, "en-US")
	w.open(s.url())
	w.until(cell("apple", "Sold") + ` === "0"`)
	s.close()
	w.until(`document.getElementById("link").dataset.state === "unreachable" && document.body.classList.contains("stale")`)
	if _, err := s.place("apple"); err != nil {
		t.Fatal(err)
	}
	s.listen()
	s.serve()
	w.until(`document.getElementById("link").dataset.state === "live"`)
	w.until(cell("apple", "Sold") + ` === "1"`)

	// A tab that nobody sees stops reading after a while, even if it was opened in the background.
	// It does not begin again when the network is back.
	unseen, err := chromedp.Run(w.ctx, chromedp.Evaluate[string](`(async () => {
		const { Stream } = await import("/console/assets/stream.js");
		Object.defineProperty(document, "hidden", { value: true, configurable: true });
		const stream = new Stream(() => "", () => {}, () => {});
		let opened = 0;
		stream.open = () => opened++;
		const stops = stream.hidden !== 0;
		clearTimeout(stream.hidden);
		stream.paused = true;
		dispatchEvent(new Event("online"));
		delete document.hidden;
		return "stops: " + stops + ", opened: " + opened;
	})()`, chromedp.EvalAwaitPromise))
	if want := "stops: true, opened: 0"; err != nil || unseen != want {
		t.Errorf("the stream of a hidden tab: %s (%v), want %s", unseen, err, want)
	}
}

// testSignIn checks that the page asks for the token and reports a wrong one. It must show no data
// before, and keep the token out of addresses and of longer storage.
func testSignIn(t *testing.T, browser context.Context) {
	const token = "a-token-of-more-than-16"
	s := openShop(t, withToken(token))
	s.setStock("apple", 5)
	w := newTab(t, browser, 1440, "en-US")
	w.open(s.url())
	w.until(`!document.getElementById("sign-in").hidden`)
	if read[bool](w, `!document.getElementById("content").hidden || Boolean(document.querySelector("#stock tbody tr"))`) {
		t.Error("the page shows figures without the token")
	}
	w.fill("#token", "another-token-of-16")
	w.until(text("sign-in-error") + `.includes("not the administrator")`)
	w.fill("#token", token)
	w.until(cell("apple", "Total") + ` === "5"`)
	if found := read[bool](w, fmt.Sprintf(`(location.href + document.cookie + JSON.stringify(localStorage)).includes(%q)`, token)); found {
		t.Error("the token is in the address, in a cookie or in local storage")
	}
	w.open(s.url())
	w.until(cell("apple", "Total") + ` === "5"`) // the tab has kept the token
	w.click("#sign-out")
	w.until(`document.getElementById("sign-in")?.hidden === false && document.getElementById("content").hidden`)
}

// testRush runs a rush that oversells, and then the same with the strategy that the page
// suggests.
func testRush(t *testing.T, browser context.Context) {
	s := openShop(t)
	w := newTab(t, browser, 1440, "en-US")
	w.open(s.url())
	w.until(`!document.getElementById("rush").hidden`)
	read[chromedp.Void](w, `document.getElementById("rush-strategy").value = "none"`)
	w.fill("#rush-units", "20")
	w.until(`Number(` + text("rush-left") + `.replace("−", "-")) < 0 && document.getElementById("rush-stage").classList.contains("bad")`)
	w.until(text("rush-sentence") + `.includes("although there were only 20")`)
	if read[int](w, `document.querySelector("#rush-tank .below").clientWidth`) == 0 {
		t.Error("nothing is drawn below zero")
	}
	if !read[bool](w, `document.querySelectorAll("#rush .primary").length === 1 && !document.getElementById("flow-rush").hidden`) {
		t.Error("the next step is not the strategy that does not oversell, or the page does not say where the orders of the rush are")
	}
	w.click("#rush-sentence .primary") // the same with lua
	w.until(text("rush-sentence") + `.includes("exactly 20 of 20 units were sold") && document.querySelector("#rush .primary").id === "rush-start"`)
	if left := read[string](w, text("rush-left")); left != "0" {
		t.Errorf("%s units are left", left)
	}
	w.until(`document.querySelectorAll("#rush-runs li").length === 2 && document.querySelectorAll("#rush-runs li.bad").length === 1`)
	w.fill("#rush-clients", "5000")
	if read[bool](w, `document.getElementById("rush-clients").checkValidity()`) {
		t.Error("the form accepts 5000 clients")
	}
}

// testSearch finds one SKU among many. The page offers no order, because the stores are not
// embedded.
func testSearch(t *testing.T, browser context.Context) {
	s := openShop(t, withStores)
	var setting sync.WaitGroup
	const atOnce = 4 // all 60 at once would wait for SQLite's only writer, and some for too long
	for first := range atOnce {
		setting.Go(func() {
			for n := first; n < 60; n += atOnce {
				s.setStock(stock.SKU(fmt.Sprintf("sku-%02d", n)), 7)
			}
		})
	}
	setting.Wait()
	w := newTab(t, browser, 1440, "en-US")
	w.open(s.url())
	rows := `document.querySelectorAll("#stock tbody tr").length`
	w.until(rows + " === 50")
	w.click("#stock-next")
	w.until(rows + " === 10 && " + cell("sku-59", "Total") + ` === "7"`)
	w.fill("#stock-sku", "sku-33")
	w.until(rows + " === 1 && " + cell("sku-33", "Total") + ` === "7"`)
	if !read[bool](w, `document.getElementById("order-try").hidden`) {
		t.Error("the page offers an order of a service that sells")
	}
	w.fill("#stock-sku", "nothing")
	w.until(text("stock-empty") + `.includes("nothing")`)
	if status := s.open("?from=sku-10", http.Header{}).status; status != http.StatusOK {
		t.Error(status)
	}
}
