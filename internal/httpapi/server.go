package httpapi

import (
	"bytes"
	stdlog "log"
	"log/slog"
	"net/http"
	"time"
)

// Limits of a connection. The server closes a connection that exceeds one.
const (
	headerTimeout  = 5 * time.Second  // for the request line and headers
	bodyTimeout    = 10 * time.Second // for the headers and the body
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
		ErrorLog:          stdlog.New(serverLog{log}, "", 0),
		// The API, not package http, answers OPTIONS *.
		DisableGeneralOptionsHandler: true,
	}
}

// serverLog logs the errors of package http at warn level. Failed handshakes are logged at debug
// level, because every client and every port scan can cause them.
type serverLog struct{ log *slog.Logger }

func (l serverLog) Write(line []byte) (int, error) {
	text := string(bytes.TrimSpace(line))
	if bytes.HasPrefix(line, []byte("http: TLS handshake error")) {
		l.log.Debug(text)
	} else {
		l.log.Warn(text)
	}
	return len(line), nil
}
