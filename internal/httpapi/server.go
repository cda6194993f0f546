package httpapi

import (
	"log/slog"
	"net/http"
	"time"
)

// Limits of a connection. A client that keeps the service waiting longer, or
// sends more, is cut off.
const (
	headerTimeout  = 5 * time.Second  // for the request line and headers
	bodyTimeout    = 10 * time.Second // for headers and body
	writeTimeout   = 10 * time.Second // for taking the answer
	idleTimeout    = 90 * time.Second // between two requests
	maxHeaderBytes = 16 << 10         // package http allows 4 KiB more
)

// NewServer returns a server of h whose limits slow and greedy clients cannot
// stretch. requestTimeout is how long h may work on one request. The address,
// or the listener, is the caller's to choose.
func NewServer(h http.Handler, requestTimeout time.Duration, log *slog.Logger) *http.Server {
	return &http.Server{
		Handler:           h,
		ReadHeaderTimeout: headerTimeout,
		ReadTimeout:       bodyTimeout,
		WriteTimeout:      bodyTimeout + requestTimeout + writeTimeout, // it runs from the end of the headers
		IdleTimeout:       idleTimeout,
		MaxHeaderBytes:    maxHeaderBytes,
		ErrorLog:          slog.NewLogLogger(log.Handler(), slog.LevelWarn),
		// OPTIONS * gets the API's answer, not package http's.
		DisableGeneralOptionsHandler: true,
	}
}
