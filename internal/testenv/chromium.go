package testenv

// chromium lists the programs of the browser: one of them is enough.
var chromium = []dependency{
	{"chromium", "chromium", ""},
	{"chromium-browser", "chromium", ""},
	{"google-chrome", "chromium", ""},
}

// Chromium returns the path of an installed Chromium, or of Chrome.
func Chromium(t T) string {
	t.Helper()
	var missing error
	for _, d := range chromium {
		path, err := lookPath(d)
		if err == nil {
			return path
		}
		if missing == nil {
			missing = err
		}
	}
	check(t, "Chromium", missing)
	return ""
}
