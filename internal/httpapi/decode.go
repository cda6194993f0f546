package httpapi

import (
	"bytes"
	"errors"
	"io"
	"mime"
	"net"
	"net/http"
	"os"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/go-json-experiment/json/jsontext"

	"github.com/holdfast-stock/holdfast/internal/order"
	"github.com/holdfast-stock/holdfast/internal/stock"
)

const (
	// maxBody is the largest request body, in bytes.
	maxBody = 64 << 10
	// maxErrors is how many bad fields one answer lists. A body of 64 KiB can
	// have thousands.
	maxErrors = 100
	// maxEcho is how many bytes of a client's text an answer repeats.
	maxEcho = 128
	// maxKeptBody is the largest buffer capacity that is kept for the next
	// body, in bytes.
	maxKeptBody = 16 << 10
	// lateBodyTimeout is how much longer a body is read once its deadline has
	// passed. lateAnswerTimeout bounds the whole request from that moment.
	lateBodyTimeout   = time.Second
	lateAnswerTimeout = 30 * time.Second
)

const (
	idDetail       = "must be 1 to 64 of A-Z a-z 0-9 . _ : - and start with a letter or digit"
	requiredDetail = "is required"
	repeatedDetail = "is given more than once"
	unknownDetail  = "is not a known field"
	objectDetail   = "must be an object"
	linesDetail    = "must be an array of 1 to 20 lines"
	quantityDetail = "must be an integer from 1 to 1000"
	countDetail    = "must be an integer from 0 to 1000000000"
	kindDetail     = "must be product or coupon"
	boolDetail     = "must be true or false"
	timeDetail     = "must be an RFC 3339 time in the years 1970 to 9999, or null"
	hoursDetail    = "must be after opens_at"
)

// fieldError describes one bad field of a request.
type fieldError struct{ field, detail string }

// reader decodes one request body. It is a hand-written walk over JSON tokens,
// because decoding runs for every order. After a JSON error every method does
// nothing, so callers check once, with finish. A reader is reused; its results
// share no memory with it.
type reader struct {
	limited io.LimitedReader
	body    bytes.Buffer
	json    *jsontext.Decoder
	options []jsontext.Options
	text    []byte                     // an unescaped string
	lines   [stock.MaxLines]stock.Line // lines read so far
	broken  error                      // the JSON error, or io.EOF after one whole value
	bad     []fieldError
	omitted int // bad fields beyond maxErrors
}

func newReader() *reader {
	return &reader{
		json: new(jsontext.Decoder),
		// The reader itself finds duplicate names, so that the answer can name the field.
		options: []jsontext.Options{jsontext.AllowDuplicateNames(true)},
	}
}

// isJSON reports whether the headers declare an uncompressed JSON body in UTF-8.
// A request without a body needs no Content-Type.
func isJSON(r *http.Request) bool {
	if coding := r.Header["Content-Encoding"]; len(coding) > 0 && (len(coding) > 1 || coding[0] != "identity") {
		return false
	}
	types := r.Header["Content-Type"]
	if len(types) == 1 && types[0] == "application/json" {
		return true
	}
	if len(types) != 1 {
		return len(types) == 0 && r.ContentLength == 0
	}
	mediaType, params, err := mime.ParseMediaType(types[0])
	if err != nil || mediaType != "application/json" {
		return false
	}
	charset, given := params["charset"]
	return !given || strings.EqualFold(charset, "utf-8")
}

// load reads the whole request body. It returns "", or the problem with the
// body: tooLarge, malformed or timeout. Once a read has failed, the answer closes
// the connection, even if a second read succeeds.
func (r *reader) load(w http.ResponseWriter, req *http.Request) problem {
	if req.ContentLength > maxBody {
		return tooLarge
	}
	r.limited = io.LimitedReader{R: req.Body, N: maxBody + 1}
	_, err := r.body.ReadFrom(&r.limited)
	if err != nil {
		w.Header().Set("Connection", "close")
	}
	if errors.Is(err, os.ErrDeadlineExceeded) {
		// The body may have arrived while this process was paused. Read what
		// is there.
		now, conn := time.Now(), http.NewResponseController(w)
		if conn.SetReadDeadline(now.Add(lateBodyTimeout)) == nil && conn.SetWriteDeadline(now.Add(lateAnswerTimeout)) == nil {
			_, err = r.body.ReadFrom(&r.limited)
		}
	}
	switch {
	case r.body.Len() > maxBody:
		return tooLarge
	case err != nil && brokenConnection(err):
		return timeout
	case err != nil:
		return malformed
	}
	r.json.Reset(&r.body, r.options...)
	return ""
}

// brokenConnection reports whether a read of a body failed because the rest of
// the body did not arrive. Otherwise the bytes that arrived are malformed.
func brokenConnection(err error) bool {
	var network net.Error
	return errors.As(err, &network) || errors.Is(err, io.ErrUnexpectedEOF) || errors.Is(err, net.ErrClosed)
}

// clear prepares the reader for the next body. It reports whether the reader is
// small enough to keep.
func (r *reader) clear() bool {
	r.limited.R = nil
	r.body.Reset()
	r.text = r.text[:0]
	clear(r.lines[:])
	r.broken = nil
	clear(r.bad)
	r.bad = r.bad[:0]
	r.omitted = 0
	return r.body.Cap() <= maxKeptBody
}

// finish reports whether the body is exactly one JSON value.
func (r *reader) finish() bool {
	if r.broken != nil {
		return false
	}
	_, r.broken = r.json.ReadToken()
	return r.broken == io.EOF
}

// offset returns the position of the JSON error, in bytes.
func (r *reader) offset() int64 { return r.json.InputOffset() }

// addError records that a field is bad. A repeated error is recorded once.
func (r *reader) addError(field, detail string) {
	e := fieldError{clip(field), detail}
	switch {
	case slices.Contains(r.bad, e):
	case len(r.bad) == maxErrors:
		r.omitted++
	default:
		r.bad = append(r.bad, e)
	}
}

// clip shortens a client's text to maxEcho bytes and an ellipsis.
func clip(s string) string {
	if len(s) <= maxEcho {
		return s
	}
	return strings.ToValidUTF8(s[:maxEcho], "") + "…"
}

// path is the position of an object in the body: the index of a line, or top.
type path int

const top path = -1

// field returns the full name of a field of the object, as answers give it. An
// empty name means the object itself.
func (p path) field(name string) string {
	switch {
	case p == top:
		return name
	case name == "":
		return "lines[" + strconv.Itoa(int(p)) + "]"
	default:
		return "lines[" + strconv.Itoa(int(p)) + "]." + name
	}
}

func (r *reader) kind() jsontext.Kind {
	if r.broken != nil {
		return jsontext.KindInvalid
	}
	return r.json.PeekKind()
}

func (r *reader) value() jsontext.Value {
	if r.broken != nil {
		return nil
	}
	v, err := r.json.ReadValue()
	r.broken = err
	return v
}

func (r *reader) skip() {
	if r.broken == nil {
		r.broken = r.json.SkipValue()
	}
}

// open enters the next value if it is an object or array that begins with begin.
// Otherwise it skips the value.
func (r *reader) open(begin jsontext.Kind) bool {
	if r.kind() != begin {
		r.skip()
		return false
	}
	_, r.broken = r.json.ReadToken()
	return r.broken == nil
}

// more reports whether the object or array has another element. At its end, more
// leaves it.
func (r *reader) more(end jsontext.Kind) bool {
	switch r.kind() {
	case end:
		_, r.broken = r.json.ReadToken()
		return false
	case jsontext.KindInvalid:
		r.skip() // sets r.broken
		return false
	default:
		return true
	}
}

// seen is the set of an object's fields that were read, by index.
type seen uint

func (s seen) has(field int) bool { return s&(1<<field) != 0 }

// member reads the name of a member and returns its index in fields. If the name
// is unknown or repeated, member records that, skips the value and returns -1.
func (r *reader) member(p path, fields []string, met *seen) int {
	name := r.unquoted(r.value())
	if r.broken != nil {
		return -1
	}
	i := slices.Index(fields, string(name))
	switch {
	case i < 0:
		r.addError(p.field(string(name)), unknownDetail)
	case met.has(i):
		r.addError(p.field(fields[i]), repeatedDetail)
	default:
		*met |= 1 << i
		return i
	}
	r.skip()
	return -1
}

// unquoted returns the text of a JSON string. It is valid until the next call.
func (r *reader) unquoted(v jsontext.Value) []byte {
	if r.broken != nil {
		return nil
	}
	if inner := v[1 : len(v)-1]; bytes.IndexByte(inner, '\\') < 0 {
		return inner
	}
	r.text, r.broken = jsontext.AppendUnquote(r.text[:0], v)
	return r.text
}

// id reads the ID of a buyer, a SKU or a payment. It returns "" for an invalid one.
func (r *reader) id(p path, name string) string {
	if r.kind() != jsontext.KindString {
		r.addError(p.field(name), idDetail)
		r.skip()
		return ""
	}
	id := string(r.unquoted(r.value()))
	if !stock.ValidID(id) {
		r.addError(p.field(name), idDetail)
		return ""
	}
	return id
}

// integer reads a number from minimum to maximum, written without fraction and
// exponent.
func (r *reader) integer(p path, name string, minimum, maximum int64, detail string) int64 {
	if r.kind() != jsontext.KindNumber {
		r.addError(p.field(name), detail)
		r.skip()
		return 0
	}
	n, err := strconv.ParseInt(string(r.value()), 10, 64)
	if err != nil || n < minimum || n > maximum {
		r.addError(p.field(name), detail)
		return 0
	}
	return n
}

// boolean reads true or false.
func (r *reader) boolean(p path, name string) bool {
	kind := r.kind()
	if kind != jsontext.KindTrue && kind != jsontext.KindFalse {
		r.addError(p.field(name), boolDetail)
	}
	r.skip()
	return kind == jsontext.KindTrue
}

// requires records the fields that are missing.
func (r *reader) requires(p path, fields []string, met seen) {
	for i, name := range fields {
		if !met.has(i) {
			r.addError(p.field(name), requiredDetail)
		}
	}
}

// order reads an order. The result is valid only if finish returns true and no
// field is bad.
func (r *reader) order() order.Request {
	var (
		fields = [...]string{"buyer_id", "lines"}
		met    seen
		req    order.Request
	)
	if !r.open(jsontext.KindBeginObject) {
		r.addError("", objectDetail)
		return req
	}
	for r.more(jsontext.KindEndObject) {
		switch r.member(top, fields[:], &met) {
		case 0:
			req.Buyer = r.id(top, fields[0])
		case 1:
			req.Lines = r.readLines()
		}
	}
	r.requires(top, fields[:], met)
	return req
}

// readLines reads the lines of an order, in the order the client sent them.
func (r *reader) readLines() []stock.Line {
	if !r.open(jsontext.KindBeginArray) {
		r.addError("lines", linesDetail)
		return nil
	}
	count, kept := 0, 0
	for r.more(jsontext.KindEndArray) {
		line := r.line(path(count), r.lines[:kept])
		if kept < len(r.lines) {
			r.lines[kept] = line
			kept++
		}
		count++
	}
	if count == 0 || count > stock.MaxLines {
		r.addError("lines", linesDetail)
	}
	return slices.Clone(r.lines[:kept])
}

// line reads one line. Its SKU must differ from those of the earlier lines.
func (r *reader) line(p path, earlier []stock.Line) (line stock.Line) {
	var (
		fields = [...]string{"sku", "quantity"}
		met    seen
	)
	if !r.open(jsontext.KindBeginObject) {
		r.addError(p.field(""), objectDetail)
		return line
	}
	for r.more(jsontext.KindEndObject) {
		switch r.member(p, fields[:], &met) {
		case 0:
			line.SKU = stock.SKU(r.id(p, fields[0]))
		case 1:
			line.Quantity = r.integer(p, fields[1], 1, stock.MaxQuantity, quantityDetail)
		}
	}
	r.requires(p, fields[:], met)
	for _, other := range earlier {
		if line.SKU != "" && other.SKU == line.SKU {
			r.addError(p.field(fields[0]), "is the SKU of an earlier line")
			break
		}
	}
	return line
}

// payment reads the ID of the payment that pays an order.
func (r *reader) payment() (id string) {
	r.object([]string{"payment_id"}, func(name string) { id = r.id(top, name) })
	return id
}

// refund reads whether a refund returns the order's units to stock.
func (r *reader) refund() (restock bool) {
	r.object([]string{"restock"}, func(name string) { restock = r.boolean(top, name) })
	return restock
}

// nothing reads a body without fields, which may be empty. It returns an empty
// value.
func (r *reader) nothing() struct{} {
	if r.body.Len() > 0 {
		r.object(nil, nil)
	}
	return struct{}{}
}

// object reads an object of which all the fields are required. It calls read to
// read the value of each.
func (r *reader) object(fields []string, read func(name string)) {
	if !r.open(jsontext.KindBeginObject) {
		r.addError("", objectDetail)
		return
	}
	var met seen
	for r.more(jsontext.KindEndObject) {
		if i := r.member(top, fields, &met); i >= 0 {
			read(fields[i])
		}
	}
	r.requires(top, fields, met)
}

// setting reads an administrator's setting of a SKU, without the SKU itself.
func (r *reader) setting() stock.Setting {
	var (
		fields = [...]string{"kind", "total", "buyer_limit", "opens_at", "closes_at"}
		met    seen
		set    stock.Setting
	)
	if !r.open(jsontext.KindBeginObject) {
		r.addError("", objectDetail)
		return set
	}
	for r.more(jsontext.KindEndObject) {
		switch r.member(top, fields[:], &met) {
		case 0:
			set.Kind = r.stockKind(fields[0])
		case 1:
			set.Total = r.integer(top, fields[1], 0, stock.MaxTotal, countDetail)
		case 2:
			limit := r.integer(top, fields[2], 0, stock.MaxTotal, countDetail)
			set.BuyerLimit = &limit
		case 3:
			set.OpensAt = r.time(fields[3])
		case 4:
			set.ClosesAt = r.time(fields[4])
		}
	}
	r.requires(top, fields[:2], met)
	if set.OpensAt != nil && set.ClosesAt != nil && !set.ClosesAt.IsZero() && !set.ClosesAt.After(*set.OpensAt) {
		r.addError(fields[4], hoursDetail)
	}
	return set
}

// time reads a time. null is the zero time. It returns nil for an invalid one.
func (r *reader) time(name string) *time.Time {
	var t time.Time
	switch r.kind() {
	case jsontext.KindNull:
		r.skip()
		return &t
	case jsontext.KindString:
		err := t.UnmarshalText(r.unquoted(r.value()))
		t = t.UTC().Truncate(time.Microsecond)
		if err == nil && t.Year() >= 1970 && t.Year() <= 9999 {
			return &t
		}
	default:
		r.skip()
	}
	r.addError(name, timeDetail)
	return nil
}

func (r *reader) stockKind(name string) stock.Kind {
	if r.kind() != jsontext.KindString {
		r.addError(name, kindDetail)
		r.skip()
		return ""
	}
	kind := stock.Kind(r.unquoted(r.value()))
	if !kind.Valid() {
		r.addError(name, kindDetail)
	}
	return kind
}
