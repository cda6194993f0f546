// Package chromium starts the browser of the tests.
package chromium

import (
	"context"
	"testing"

	"github.com/chromedp/chromedp"

	"github.com/holdfast-stock/holdfast/internal/testenv"
)

// Start starts Chromium in English, and ends it after the test. It returns the context of its first
// page, from which chromedp opens others.
func Start(t *testing.T) context.Context {
	t.Helper()
	folder := testenv.Folder(t, "chromium") // Chromium is killed at the end, so it leaves its files behind
	options := append(chromedp.DefaultExecAllocatorOptions[:],
		chromedp.ExecPath(testenv.Chromium(t)), chromedp.NoSandbox, chromedp.DisableGPU,
		chromedp.UserDataDir(folder+"/user"), chromedp.Env("TMPDIR="+folder),
		chromedp.Flag("lang", "en-US"), chromedp.Flag("disable-quic", true),
		chromedp.Flag("disable-background-networking", true), chromedp.Flag("disable-component-update", true),
		chromedp.Flag("disable-dev-shm-usage", true),
		chromedp.WSURLReadTimeout(5*testenv.Patience))
	allocator, end := chromedp.NewExecAllocator(context.Background(), options...)
	browser, closeBrowser := chromedp.NewContext(allocator)
	t.Cleanup(func() {
		closeBrowser()
		end()
	})
	if err := chromedp.Do(browser); err != nil {
		t.Fatalf("starting Chromium: %v", err)
	}
	return browser
}
