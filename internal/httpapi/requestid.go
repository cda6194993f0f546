package httpapi

import (
	"context"
	"encoding/binary"
	"encoding/hex"
	"log/slog"
	"math/rand/v2"
	"net/http"
)

// maxRequestID bounds a client's own request ID, in bytes.
const maxRequestID = 128

// requestIDs returns the request's ID as a header value: the client's, where
// it brought one of 1 to maxRequestID visible ASCII characters, else a new
// one.
func requestIDs(h http.Header) []string {
	if own := h[requestIDHeader]; len(own) == 1 && visible(own[0], maxRequestID) {
		return own
	}
	var raw [16]byte // names a request among others, and keeps no secret
	binary.LittleEndian.PutUint64(raw[:8], rand.Uint64())
	binary.LittleEndian.PutUint64(raw[8:], rand.Uint64())
	var text [2 * len(raw)]byte
	hex.Encode(text[:], raw[:])
	return []string{string(text[:])}
}

// visible reports whether s is 1 to most visible ASCII characters.
func visible(s string, most int) bool {
	if s == "" || len(s) > most {
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

// identified is a context that knows its request's ID. It is a type of its own
// because a context per order is one too many already.
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

func withRequestID(ctx context.Context, id string) context.Context { return &identified{ctx, id} }

// RequestID returns the ID of the request that ctx belongs to, or "".
func RequestID(ctx context.Context) string {
	id, _ := ctx.Value(requestIDKey{}).(string)
	return id
}

// LogHandler returns a handler that adds request_id to what is logged under a
// request's context, and leaves the rest to h. Wrapping twice changes nothing.
func LogHandler(h slog.Handler) slog.Handler {
	if own, ok := h.(logHandler); ok {
		return own
	}
	return logHandler{h}
}

type logHandler struct{ slog.Handler }

func (h logHandler) Handle(ctx context.Context, r slog.Record) error {
	if id := RequestID(ctx); id != "" {
		r = r.Clone()
		r.AddAttrs(slog.String("request_id", id))
	}
	return h.Handler.Handle(ctx, r)
}

func (h logHandler) WithAttrs(attrs []slog.Attr) slog.Handler {
	return logHandler{h.Handler.WithAttrs(attrs)}
}

func (h logHandler) WithGroup(name string) slog.Handler {
	return logHandler{h.Handler.WithGroup(name)}
}
