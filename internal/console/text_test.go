package console

import (
	"encoding/json"
	"maps"
	"net/http"
	"net/http/httptest"
	"path"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/holdfast-stock/holdfast/internal/assembly"
)

// texts reads the dictionary of a language.
func texts(t *testing.T, language string) map[string]string {
	t.Helper()
	file := string(loadAssets()["text/"+language+".js"].body)
	object := strings.TrimSuffix(strings.TrimPrefix(strings.TrimSpace(file), "export default "), ";")
	var found map[string]string
	if err := json.Unmarshal([]byte(object), &found); err != nil {
		t.Fatalf("%s: %v", language, err)
	}
	return found
}

// TestTexts checks that both languages have the same texts with the same placeholders, and that the
// page uses exactly these.
func TestTexts(t *testing.T) {
	t.Parallel()
	en, zh := texts(t, "en"), texts(t, "zh")
	values := func(text string) []string {
		return slices.Compact(slices.Sorted(slices.Values(regexp.MustCompile(`\{\w+\}`).FindAllString(text, -1))))
	}
	for name := range en {
		chinese, known := zh[name]
		switch {
		case !known:
			t.Errorf("%q has no Chinese text", name)
		case strings.TrimSpace(chinese) == "" || strings.TrimSpace(en[name]) == "":
			t.Errorf("%q is empty", name)
		case !slices.Equal(values(en[name]), values(chinese)):
			t.Errorf("%q has the values %v in English and %v in Chinese", name, values(en[name]), values(chinese))
		}
	}
	for name := range zh {
		if _, known := en[name]; !known {
			t.Errorf("%q has no English text", name)
		}
	}
	used := make(map[string]bool)
	for name, file := range loadAssets() {
		if strings.HasPrefix(name, "text/") {
			continue
		}
		for _, found := range regexp.MustCompile(`"([a-zA-Z]+(?:\.[a-zA-Z0-9-]*)*)"`).FindAllStringSubmatch(string(file.body), -1) {
			used[found[1]] = true
		}
	}
	for _, name := range slices.Sorted(maps.Keys(en)) {
		group, _, _ := strings.Cut(name, ".")
		if !used[name] && !used[group+"."] && !used[name[:strings.LastIndex(name, ".")+1]] {
			t.Errorf("%q is not used", name)
		}
	}
	for name := range used {
		_, known := en[name]
		group, _, dotted := strings.Cut(name, ".")
		if _, group := en[group+".title"]; dotted && group && !known && !strings.HasSuffix(name, ".") {
			t.Errorf("%q is used, but there is no such text", name)
		}
	}
}

// TestStrategiesAreExplained checks that the page has an explanation of each strategy.
func TestStrategiesAreExplained(t *testing.T) {
	t.Parallel()
	for _, language := range []string{"en", "zh"} {
		known := texts(t, language)
		for _, name := range assembly.StrategyNames() {
			if known["strategy."+name] == "" {
				t.Errorf("%s: no text for strategy %s", language, name)
			}
		}
	}
}

// TestAssets checks that every file has a media type. The page must need nothing that its policy
// forbids: inline code or styles, or files of another server.
func TestAssets(t *testing.T) {
	t.Parallel()
	loaded := loadAssets()
	for name, file := range loaded {
		if file.mediaType == "" {
			t.Errorf("%s has no media type", name)
		}
		if path.Ext(name) == ".svg" {
			continue
		}
		if found := regexp.MustCompile(`(?i)https?://|<style|style="|\son\w+="|innerHTML|\beval\(`).FindString(string(file.body)); found != "" {
			t.Errorf("%s contains %s", name, found)
		}
	}
	for _, found := range regexp.MustCompile(`(?:src|href)="([^"#]+)"`).FindAllStringSubmatch(string(loaded["index.html"].body), -1) {
		if _, known := loaded[strings.TrimPrefix(found[1], "assets/")]; !known {
			t.Errorf("the page refers to %s, which does not exist", found[1])
		}
	}
}

// TestAssetsUnchanged checks that a file is sent again only to a browser that does not have it.
func TestAssetsUnchanged(t *testing.T) {
	t.Parallel()
	index := loadAssets()["index.html"]
	for tag, want := range map[string]int{`"of another version"`: http.StatusOK, index.tag: http.StatusNotModified} {
		request := httptest.NewRequestWithContext(t.Context(), http.MethodGet, "/console/", nil)
		request.Header.Set("If-None-Match", tag)
		answer := httptest.NewRecorder()
		index.ServeHTTP(answer, request)
		if sent := answer.Body.Len() > 0; answer.Code != want || sent != (want == http.StatusOK) || answer.Header().Get("ETag") != index.tag {
			t.Errorf("a browser that has %s is answered %d with %d bytes, tag %s", tag, answer.Code, answer.Body.Len(), answer.Header().Get("ETag"))
		}
		if h := answer.Header(); h.Get("Content-Security-Policy") != policy || h.Get("X-Content-Type-Options") != "nosniff" || h.Get("Cache-Control") != "no-cache" {
			t.Errorf("a browser that has %s is answered with %v", tag, h)
		}
	}
}
