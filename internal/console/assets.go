package console

import (
	"bytes"
	"crypto/sha256"
	"embed"
	"encoding/hex"
	"io/fs"
	"net/http"
	"path"
	"strings"
	"time"

	"github.com/holdfast-stock/holdfast/internal/palette"
)

// files are the page and everything that it loads, except the colours.
//
//go:embed assets
var files embed.FS

// policy lets the page load nothing but the files of this service, and run no code that
// is written in it. No other page may frame it.
const policy = "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'; " +
	"base-uri 'none'; form-action 'none'; frame-ancestors 'none'"

// mediaTypes are the media types of the files. The types that the system knows differ between
// machines.
var mediaTypes = map[string]string{
	".html": "text/html; charset=utf-8",
	".css":  "text/css; charset=utf-8",
	".js":   "text/javascript; charset=utf-8",
	".svg":  "image/svg+xml",
}

// asset is one file, ready to be sent.
type asset struct {
	body      []byte
	mediaType string
	tag       string // changes with the content
}

// loadAssets returns the files by their path below assets.
func loadAssets() map[string]asset {
	loaded := make(map[string]asset)
	err := fs.WalkDir(files, "assets", func(name string, entry fs.DirEntry, err error) error {
		if err != nil || entry.IsDir() {
			return err
		}
		body, err := files.ReadFile(name)
		if err != nil {
			return err
		}
		loaded[strings.TrimPrefix(name, "assets/")] = newAsset(name, body)
		return nil
	})
	if err != nil {
		panic(err) // the files are part of the program
	}
	loaded["palette.css"] = newAsset("palette.css", []byte(palette.CSS()))
	return loaded
}

func newAsset(name string, body []byte) asset {
	hash := sha256.Sum256(body)
	return asset{body, mediaTypes[path.Ext(name)], `"` + hex.EncodeToString(hash[:12]) + `"`}
}

// serveAssets serves the page itself at /console/, and its files below /console/assets/.
func serveAssets(mux *http.ServeMux) {
	loaded := loadAssets()
	mux.Handle("GET /console/{$}", loaded["index.html"])
	mux.HandleFunc("GET /console/assets/", func(w http.ResponseWriter, r *http.Request) {
		file, known := loaded[strings.TrimPrefix(r.URL.Path, "/console/assets/")]
		if !known {
			WriteProblem(w, http.StatusNotFound, "not-found", "Not found", "There is no such path.")
			return
		}
		file.ServeHTTP(w, r)
	})
}

// ServeHTTP sends the file, unless the browser has it. The browser asks each time, so that
// it never mixes files of two versions.
func (a asset) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	h := w.Header()
	h.Set("Content-Security-Policy", policy)
	h.Set("X-Content-Type-Options", "nosniff")
	h.Set("Referrer-Policy", "no-referrer")
	h.Set("Cross-Origin-Opener-Policy", "same-origin")
	h.Set("Cache-Control", "no-cache")
	h.Set("ETag", a.tag)
	h.Set("Content-Type", a.mediaType)
	http.ServeContent(w, r, "", time.Time{}, bytes.NewReader(a.body))
}
