package httpapi

import (
	"context"
	"encoding/binary"
	"encoding/hex"
	"log/slog"
	"math/rand/v2"
	"net/http"

	"github.com/gin-gonic/gin"

	"github.com/holdfast-stock/holdfast/internal/tracing"
)

// requestIDHeader is X-Request-ID in the spelling of package http.
const requestIDHeader = "X-Request-Id"

// maxRequestID is the longest request ID that a client can set, in bytes.
const maxRequestID = 128

// requestIDs returns the value of the X-Request-ID header of the answer: the
// client's ID if it has 1 to maxRequestID visible ASCII characters, otherwise a
// new one.
func requestIDs(h http.Header) []string {
	if given := h[requestIDHeader]; len(given) == 1 && visible(given[0], maxRequestID) {
		return given
	}
	var raw [16]byte // the ID must be unique, but not secret: math/rand is enough
	binary.LittleEndian.PutUint64(raw[:8], rand.Uint64())
	binary.LittleEndian.PutUint64(raw[8:], rand.Uint64())
	var text [2 * len(raw)]byte
	hex.Encode(text[:], raw[:])
	return []string{string(text[:])}
}

// visible reports whether s is 1 to maxLength visible ASCII characters.
func visible(s string, maxLength int) bool {
	if s == "" || len(s) > maxLength {
		return false
	}
	for i := range len(s) {
		if s[i] < '!' || s[i] > '~' {
			return false
		}
	}
	return true
}

type requestIDKey struct{}

// identified is a context with a request ID. It has its own type because
// context.WithValue would allocate more for every order.
type identified struct {
	context.Context
	id string
}

func (c *identified) Value(key any) any {
	if key == (requestIDKey{}) {
		return c.id
	}
	return c.Context.Value(key)
}

// withID returns ctx with the ID of the request.
func (a *api) withID(c *gin.Context, ctx context.Context) context.Context {
	return &identified{ctx, c.Writer.Header()[requestIDHeader][0]}
}

// RequestID returns the ID of the request that ctx belongs to, or "".
func RequestID(ctx context.Context) string {
	id, _ := ctx.Value(requestIDKey{}).(string)
	return id
}

// LogHandler returns a handler that adds request_id to records logged with a request's context, and
// trace_id and span_id to those logged with the context of a trace. It passes all records to h.
// Wrapping twice has no further effect.
func LogHandler(h slog.Handler) slog.Handler {
	if wrapped, ok := h.(logHandler); ok {
		return wrapped
	}
	return logHandler{h}
}

type logHandler struct{ slog.Handler }

func (h logHandler) Handle(ctx context.Context, r slog.Record) error {
	r = r.Clone()
	if id := RequestID(ctx); id != "" {
		r.AddAttrs(slog.String("request_id", id))
	}
	r.AddAttrs(tracing.LogAttrs(ctx)...)
	return h.Handler.Handle(ctx, r)
}

func (h logHandler) WithAttrs(attrs []slog.Attr) slog.Handler {
	return logHandler{h.Handler.WithAttrs(attrs)}
}

func (h logHandler) WithGroup(name string) slog.Handler {
	return logHandler{h.Handler.WithGroup(name)}
}
