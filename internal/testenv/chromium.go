package testenv

import "cmp"

// Chromium returns the path of an installed Chromium, or of Chrome.
func Chromium(t T) string {
	t.Helper()
	var missing error
	for _, file := range []string{"chromium", "chromium-browser", "google-chrome"} {
		path, err := lookPath(dependency{file, "chromium", ""})
		if err == nil {
			return path
		}
		missing = cmp.Or(missing, err)
	}
	check(t, "Chromium", missing)
	return ""
}
