package httpapi

import (
	"log/slog"
	"net/http"
	"time"
)

// Limits of a connection. The server closes a connection that exceeds one.
const (
	headerTimeout  = 5 * time.Second  // for the request line and headers
	bodyTimeout    = 10 * time.Second // for headers and body
	writeTimeout   = 10 * time.Second // for the client to read the answer
	idleTimeout    = 90 * time.Second // between two requests
	maxHeaderBytes = 16 << 10         // package http accepts 4 KiB more
)

// NewServer returns a server of h with limits against slow clients and large
// headers. requestTimeout is how long h may work on one request. The caller
// chooses the address or the listener.
func NewServer(h http.Handler, requestTimeout time.Duration, log *slog.Logger) *http.Server {
	return &http.Server{
		Handler:           h,
		ReadHeaderTimeout: headerTimeout,
		ReadTimeout:       bodyTimeout,
		WriteTimeout:      bodyTimeout + requestTimeout + writeTimeout, // counted from the end of the headers
		IdleTimeout:       idleTimeout,
		MaxHeaderBytes:    maxHeaderBytes,
		ErrorLog:          slog.NewLogLogger(log.Handler(), slog.LevelWarn),
		// The API, not package http, answers OPTIONS *.
		DisableGeneralOptionsHandler: true,
	}
}
