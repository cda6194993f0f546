package report

import (
	"bytes"
	"context"
	"flag"
	"fmt"
	"image"
	_ "image/png"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/chromedp/cdproto/emulation"
	"github.com/chromedp/cdproto/page"
	"github.com/chromedp/chromedp"

	"github.com/holdfast-stock/holdfast/internal/testenv"
	"github.com/holdfast-stock/holdfast/internal/testenv/chromium"
	"github.com/holdfast-stock/holdfast/loadtest/results"
)

var (
	lookReport = flag.String("look.report", "", "the report that TestLook takes pictures of")
	lookFolder = flag.String("look.folder", "", "the folder for the pictures of TestLook")
)

// recordFaults makes a page record its errors and the violations of its policy.
const recordFaults = `window.faults = [];
addEventListener("error", (e) => faults.push(String(e.message)));
addEventListener("securitypolicyviolation", (e) => faults.push("policy: " + e.violatedDirective + " " + e.blockedURI));`

// tab opens a tab.
func tab(t *testing.T, browser context.Context) context.Context {
	t.Helper()
	ctx, closeTab := chromedp.NewContext(browser)
	t.Cleanup(closeTab)
	ctx, cancel := context.WithTimeout(ctx, 5*testenv.Patience)
	t.Cleanup(cancel)
	if _, err := chromedp.Call(ctx, page.AddScriptToEvaluateOnNewDocument, page.AddScriptToEvaluateOnNewDocumentParams{Source: recordFaults}); err != nil {
		t.Fatal(err)
	}
	return ctx
}

// save writes a report to a file, and returns its URL.
func save(t *testing.T, report string) string {
	t.Helper()
	file := filepath.Join(t.TempDir(), "report.html")
	if err := os.WriteFile(file, []byte(report), 0o600); err != nil {
		t.Fatal(err)
	}
	return fileURL(file)
}

func fileURL(file string) string { return (&url.URL{Scheme: "file", Path: file}).String() }

// do runs the steps in the tab.
func do(t *testing.T, ctx context.Context, steps ...chromedp.Action[chromedp.Void]) {
	t.Helper()
	if err := chromedp.Do(ctx, steps...); err != nil {
		t.Fatal(err)
	}
}

// eval evaluates an expression in the tab.
func eval[T any](t *testing.T, ctx context.Context, expression string) T {
	t.Helper()
	value, err := chromedp.Run(ctx, chromedp.Evaluate[T](expression))
	if err != nil {
		t.Fatalf("%s: %v", expression, err)
	}
	return value
}

// press clicks an element, and returns when the page has handled the click.
func press(t *testing.T, ctx context.Context, selector string) {
	t.Helper()
	eval[chromedp.Void](t, ctx, fmt.Sprintf("document.querySelector(%q).click()", selector))
}

// reload reloads the page until the expression has the value, because Chromium stores a choice with
// a short delay.
func reload(t *testing.T, ctx context.Context, expression, want string) {
	t.Helper()
	testenv.Await(t, "after a reload, "+expression+" is "+want, func() bool {
		do(t, ctx, chromedp.Reload())
		return eval[string](t, ctx, expression) == want
	})
}

// scheme sets the colours that the system prefers.
func scheme(t *testing.T, ctx context.Context, media, colors string) {
	t.Helper()
	params := emulation.SetEmulatedMediaParams{Media: media, Features: []*emulation.MediaFeature{{Name: "prefers-color-scheme", Value: colors}}}
	if _, err := chromedp.Call(ctx, emulation.SetEmulatedMedia, params); err != nil {
		t.Fatal(err)
	}
}

// TestBrowser uses reports like a reader.
func TestBrowser(t *testing.T) {
	t.Parallel()
	ctx := chromium.Start(t)
	t.Run("reader", func(t *testing.T) { useReport(t, tab(t, ctx)) })
	t.Run("without scripts", func(t *testing.T) { useWithoutScripts(t, tab(t, ctx)) })
}

// useReport uses the switches, the legend and the charts.
func useReport(t *testing.T, ctx context.Context) {
	run := read(t)
	run.Pitfalls = []results.Experiment{experiment()}
	address := save(t, written(t, run))
	do(t, ctx, chromedp.EmulateViewport(1440, 900), chromedp.Navigate(address))

	// The page has the language of the browser.
	const visible = "document.querySelector('h1').innerText.trim()"
	if got := eval[string](t, ctx, visible); got != "One strategy sold what was not there" {
		t.Errorf("the headline is %q", got)
	}
	if got := eval[float64](t, ctx, "document.getElementById('oversold').getBoundingClientRect().bottom"); got > 900 {
		t.Errorf("the oversold units end at %v, below the first screen", got)
	}

	// The legend hides a strategy everywhere.
	const shown = "[...document.querySelectorAll('[data-strategy=\"0\"]')].filter(e => getComputedStyle(e).display !== 'none').length"
	if n := eval[int](t, ctx, shown); n < 7 {
		t.Errorf("a strategy is shown in %d places", n)
	}
	do(t, ctx, chromedp.Click(chromedp.CSS(`[data-toggle="0"]`)))
	if n := eval[int](t, ctx, shown); n != 0 {
		t.Errorf("a hidden strategy is shown in %d places", n)
	}
	if got := eval[string](t, ctx, `document.querySelector('[data-toggle="0"]').getAttribute("aria-pressed")`); got != "false" {
		t.Errorf("aria-pressed is %q", got)
	}
	do(t, ctx, chromedp.Click(chromedp.CSS(".legend .all")))
	if n := eval[int](t, ctx, shown); n < 7 {
		t.Errorf("the strategy is back in %d places", n)
	}

	// Charts show their figures under the pointer.
	hover(t, ctx, "#latency-plot", 0.999)
	if got := eval[string](t, ctx, "document.querySelector('.readout').innerText"); !strings.Contains(got, "none") || !strings.Contains(got, "30.02 ms") || !strings.Contains(got, "max") {
		t.Errorf("the latency under the pointer is %q", got)
	}
	hover(t, ctx, `[data-panel="0"]`, 0.999)
	if got := eval[string](t, ctx, `document.querySelector('[data-panel="0"] + .x .reading').innerText`); !strings.HasSuffix(got, "−18 left") {
		t.Errorf("the stock under the pointer is %q", got)
	}
	// The keyboard works as well.
	do(t, ctx, chromedp.Focus(chromedp.CSS("#latency-plot")), chromedp.KeyEvent("\u0303")) // right arrow
	if got := eval[string](t, ctx, "document.querySelector('.readout').innerText"); !strings.HasPrefix(got, "p1\n") {
		t.Errorf("after an arrow key, the latency is %q", got)
	}

	// The language changes, and the choice is kept.
	press(t, ctx, `[data-language="zh-CN"]`)
	reload(t, ctx, visible+" + document.title", "一种策略卖出了不存在的库存一种策略卖出了不存在的库存 · Holdfast")
	if got := eval[int](t, ctx, "[...document.querySelectorAll('.en')].filter(e => e.getClientRects().length).length"); got != 0 {
		t.Errorf("%d English texts are visible", got)
	}
	// The colours change, and the choice is kept.
	press(t, ctx, `[data-theme-choice="dark"]`)
	const ground = "getComputedStyle(document.body).backgroundColor"
	reload(t, ctx, ground, "rgb(14, 17, 22)")
	do(t, ctx, chromedp.Click(chromedp.CSS(`[data-theme-choice="auto"]`)))
	for colors, want := range map[string]string{"light": "rgb(244, 245, 247)", "dark": "rgb(14, 17, 22)"} {
		scheme(t, ctx, "", colors)
		if got := eval[string](t, ctx, ground); got != want {
			t.Errorf("a system that prefers %s gets %s", colors, got)
		}
	}
	scheme(t, ctx, "print", "dark")
	if got := eval[string](t, ctx, ground); got != "rgb(255, 255, 255)" {
		t.Errorf("the printed page is %s", got)
	}
	scheme(t, ctx, "", "light")

	// No text is cut off at any width.
	for _, width := range []int64{1440, 768, 390, 320} {
		for _, language := range []string{"en", "zh"} {
			do(t, ctx, chromedp.EmulateViewport(width, 800), chromedp.Navigate(address+"?language="+language))
			if got := eval[int64](t, ctx, "document.documentElement.scrollWidth"); got > width {
				t.Errorf("at %d pixels (%s), the page is %d wide: %s", width, language, got, eval[string](t, ctx, widest))
			}
			if got := eval[[]string](t, ctx, "faults"); len(got) > 0 {
				t.Errorf("the page has faults: %q", got)
			}
		}
	}
}

// widest names the elements that extend beyond the right edge.
const widest = `[...document.querySelectorAll("body *")].filter(e => e.getBoundingClientRect().right > innerWidth + 1).slice(0, 5).map(e => e.outerHTML.slice(0, 80)).join("; ")`

// hover moves the pointer to an element, at a share of its width.
func hover(t *testing.T, ctx context.Context, selector string, share float64) {
	t.Helper()
	at := eval[[]float64](t, ctx, fmt.Sprintf(`(() => {
		const e = document.querySelector(%q);
		e.scrollIntoView({block: "center"});
		const box = e.getBoundingClientRect();
		return [box.left + box.width * %v, box.top + box.height / 2];
	})()`, selector, share))
	do(t, ctx, chromedp.MouseEvent(chromedp.MouseMoved, at[0], at[1]))
}

// useWithoutScripts checks that the report is complete without scripts.
func useWithoutScripts(t *testing.T, ctx context.Context) {
	if _, err := chromedp.Call(ctx, emulation.SetScriptExecutionDisabled, emulation.SetScriptExecutionDisabledParams{Value: true}); err != nil {
		t.Fatal(err)
	}
	do(t, ctx, chromedp.Navigate(save(t, written(t, read(t)))))
	text, err := chromedp.Run(ctx, chromedp.Text(chromedp.CSS("body")))
	if err != nil {
		t.Fatal(err)
	}
	for _, has := range []string{"One strategy sold what was not there", "+32", "p90", "52 sold of 20"} {
		if !strings.Contains(text, has) {
			t.Errorf("no %q in %s", has, text)
		}
	}
	for _, hasNot := range []string{"一种策略", "Show all"} {
		if strings.Contains(text, hasNot) {
			t.Errorf("%q in %s", hasNot, text)
		}
	}
}

// TestLook takes the screenshots for make report-look, which names the report.
func TestLook(t *testing.T) {
	if *lookReport == "" {
		return // not skipped: there is nothing to check
	}
	ctx, address := chromium.Start(t), fileURL(*lookReport)
	keep := func(name string, picture []byte, err error) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(filepath.Join(*lookFolder, name), picture, 0o644); err != nil {
			t.Fatal(err)
		}
	}
	for _, width := range []int64{1440, 768, 390} {
		for _, language := range []string{"en", "zh"} {
			for _, theme := range []string{"light", "dark"} {
				query := "?language=" + language + "&theme=" + theme
				do(t, ctx, chromedp.EmulateViewport(width, 900), chromedp.Navigate(address+query))
				picture, err := chromedp.Run(ctx, chromedp.FullScreenshot(100))
				name := fmt.Sprintf("%d-%s-%s.png", width, language, theme)
				keep(name, picture, err)
				if size, _, err := image.DecodeConfig(bytes.NewReader(picture)); err != nil || size.Width != int(width) {
					t.Errorf("%s is %d wide (%v)", name, size.Width, err)
				}
			}
		}
	}
	do(t, ctx, chromedp.EmulateViewport(1200, 780), chromedp.Navigate(address+"?language=en&theme=light"))
	fold, err := chromedp.Run(ctx, chromedp.CaptureScreenshot())
	keep("fold.png", fold, err)
	paper, err := chromedp.Run(ctx, chromedp.PrintToPDF(chromedp.PDFPaper(chromedp.PaperA4), chromedp.PDFPrintBackground(), chromedp.PDFPreferCSSPageSize()))
	keep("print.pdf", paper, err)
	scheme(t, ctx, "print", "dark")
	do(t, ctx, chromedp.EmulateViewport(718, 1000), chromedp.Navigate(address+"?language=en")) // A4 without its margins
	picture, err := chromedp.Run(ctx, chromedp.FullScreenshot(100))
	keep("print.png", picture, err)
}
