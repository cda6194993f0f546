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
	// maxBody bounds a body, in bytes.
	maxBody = 64 << 10
	// maxNamed bounds the fields that one answer calls bad. A body of 64 KiB
	// can hold thousands.
	maxNamed = 100
	// maxEcho bounds how much of a client's own text an answer repeats, in
	// bytes.
	maxEcho = 128
	// keptBody is the capacity above which a body's buffer is not kept for
	// the next request, in bytes.
	keptBody = 16 << 10
	// lateBody is how long a body may take after its deadline has passed, and
	// lateAnswer how long the request may take from then on.
	lateBody   = time.Second
	lateAnswer = 30 * time.Second
)

const (
	idDetail       = "must be 1 to 64 of A-Z a-z 0-9 . _ : - and start with a letter or digit"
	requiredDetail = "is required"
	repeatedDetail = "is given more than once"
	unknownDetail  = "is not a known field"
	objectDetail   = "must be an object"
	linesDetail    = "must be an array of 1 to 20 lines"
	quantityDetail = "must be an integer from 1 to 1000"
	totalDetail    = "must be an integer from 0 to 1000000000"
	kindDetail     = "must be product or coupon"
	limitDetail    = "must be 0: buyer limits are not enforced yet"
)

// fieldError says what is wrong with one field of a request.
type fieldError struct{ field, detail string }

// reader reads one body: a hand-written walk over JSON tokens, since a body is
// read for every order. Every method does nothing once the JSON has proved
// broken, so that callers ask once, at the end. A reader is reused; what it
// returns shares no memory with it.
type reader struct {
	limited io.LimitedReader
	body    bytes.Buffer
	json    *jsontext.Decoder
	options []jsontext.Options
	text    []byte                     // an unescaped string
	lines   [stock.MaxLines]stock.Line // lines read so far
	broken  error                      // the body is not one JSON value
	bad     []fieldError
	unnamed int // bad fields beyond maxNamed
}

func newReader() *reader {
	return &reader{
		json: new(jsontext.Decoder),
		// Names given twice are ours to find: the answer names the field.
		options: []jsontext.Options{jsontext.AllowDuplicateNames(true)},
	}
}

// isJSON reports whether the headers announce a JSON body. Without a body,
// they need not announce anything.
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

// load reads the request's body, all of it, and says what is wrong if
// something is: tooLarge, malformed, timeout, or "". After a failed read the
// answer closes the connection, also where the body could be read after all.
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
		// If this process was stopped for a while, the body may have arrived
		// in the meantime. Read what is there.
		now, conn := time.Now(), http.NewResponseController(w)
		if conn.SetReadDeadline(now.Add(lateBody)) == nil && conn.SetWriteDeadline(now.Add(lateAnswer)) == nil {
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
// it did not come, and not because of what came.
func brokenConnection(err error) bool {
	var network net.Error
	return errors.As(err, &network) || errors.Is(err, io.ErrUnexpectedEOF) || errors.Is(err, net.ErrClosed)
}

// clear readies the reader for the next body, and reports whether it is worth
// keeping.
func (r *reader) clear() bool {
	r.limited.R = nil
	r.body.Reset()
	r.text = r.text[:0]
	clear(r.lines[:])
	r.broken = nil
	clear(r.bad)
	r.bad = r.bad[:0]
	r.unnamed = 0
	return r.body.Cap() <= keptBody
}

// finish reports whether what was read is one JSON value, and nothing else.
func (r *reader) finish() bool {
	if r.broken != nil {
		return false
	}
	_, r.broken = r.json.ReadToken()
	return r.broken == io.EOF
}

// offset is where the JSON broke, in bytes.
func (r *reader) offset() int64 { return r.json.InputOffset() }

// call says that a field is bad, once.
func (r *reader) call(field, detail string) {
	e := fieldError{clip(field), detail}
	switch {
	case slices.Contains(r.bad, e):
	case len(r.bad) == maxNamed:
		r.unnamed++
	default:
		r.bad = append(r.bad, e)
	}
}

// clip shortens what a client sent to what an answer may repeat.
func clip(s string) string {
	if len(s) <= maxEcho {
		return s
	}
	return strings.ToValidUTF8(s[:maxEcho], "") + "…"
}

// at is the place of an object in the body: a line's index, or top.
type at int

const top at = -1

func (a at) field(name string) string {
	switch {
	case a == top:
		return name
	case name == "":
		return "lines[" + strconv.Itoa(int(a)) + "]"
	default:
		return "lines[" + strconv.Itoa(int(a)) + "]." + name
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

// open enters an object or an array, if that comes next. Else it skips what
// does.
func (r *reader) open(begin jsontext.Kind) bool {
	if r.kind() != begin {
		r.skip()
		return false
	}
	_, r.broken = r.json.ReadToken()
	return r.broken == nil
}

// more reports whether the object or array goes on, and leaves it if not.
func (r *reader) more(end jsontext.Kind) bool {
	switch r.kind() {
	case end:
		_, r.broken = r.json.ReadToken()
		return false
	case jsontext.KindInvalid:
		r.skip() // reports why
		return false
	default:
		return true
	}
}

// seen are the fields of an object that were met, by index.
type seen uint

func (s seen) has(field int) bool { return s&(1<<field) != 0 }

// member reads the name of a member and returns its index among fields. For a
// name that is not among them, or came before, it skips the value and returns
// -1.
func (r *reader) member(a at, fields []string, met *seen) int {
	name := r.unquoted(r.value())
	if r.broken != nil {
		return -1
	}
	i := slices.Index(fields, string(name))
	switch {
	case i < 0:
		r.call(a.field(string(name)), unknownDetail)
	case met.has(i):
		r.call(a.field(fields[i]), repeatedDetail)
	default:
		*met |= 1 << i
		return i
	}
	r.skip()
	return -1
}

// unquoted is the text of a JSON string, valid until the next one.
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

// id reads the name of a buyer or a SKU, and returns "" for what is none.
func (r *reader) id(a at, name string) string {
	if r.kind() != jsontext.KindString {
		r.call(a.field(name), idDetail)
		r.skip()
		return ""
	}
	id := string(r.unquoted(r.value()))
	if !stock.ValidID(id) {
		r.call(a.field(name), idDetail)
		return ""
	}
	return id
}

// integer reads a number from least to most that is written without fraction
// and exponent.
func (r *reader) integer(a at, name string, least, most int64, detail string) int64 {
	if r.kind() != jsontext.KindNumber {
		r.call(a.field(name), detail)
		r.skip()
		return 0
	}
	n, err := strconv.ParseInt(string(r.value()), 10, 64)
	if err != nil || n < least || n > most {
		r.call(a.field(name), detail)
		return 0
	}
	return n
}

// requires calls the fields that were not met.
func (r *reader) requires(a at, fields []string, met seen) {
	for i, name := range fields {
		if !met.has(i) {
			r.call(a.field(name), requiredDetail)
		}
	}
}

// order reads an order. Its result counts only where finish says so and
// nothing is bad.
func (r *reader) order() order.Request {
	var (
		fields = [...]string{"buyer_id", "lines"}
		met    seen
		req    order.Request
	)
	if !r.open(jsontext.KindBeginObject) {
		r.call("", objectDetail)
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

// readLines reads the lines of an order, in the client's order.
func (r *reader) readLines() []stock.Line {
	if !r.open(jsontext.KindBeginArray) {
		r.call("lines", linesDetail)
		return nil
	}
	count, kept := 0, 0
	for r.more(jsontext.KindEndArray) {
		line := r.line(at(count), r.lines[:kept])
		if kept < len(r.lines) {
			r.lines[kept] = line
			kept++
		}
		count++
	}
	if count == 0 || count > stock.MaxLines {
		r.call("lines", linesDetail)
	}
	return slices.Clone(r.lines[:kept])
}

// line reads one line, which must not name the SKU of an earlier one.
func (r *reader) line(a at, earlier []stock.Line) (line stock.Line) {
	var (
		fields = [...]string{"sku", "quantity"}
		met    seen
	)
	if !r.open(jsontext.KindBeginObject) {
		r.call(a.field(""), objectDetail)
		return line
	}
	for r.more(jsontext.KindEndObject) {
		switch r.member(a, fields[:], &met) {
		case 0:
			line.SKU = stock.SKU(r.id(a, fields[0]))
		case 1:
			line.Quantity = r.integer(a, fields[1], 1, stock.MaxQuantity, quantityDetail)
		}
	}
	r.requires(a, fields[:], met)
	for _, other := range earlier {
		if line.SKU != "" && other.SKU == line.SKU {
			r.call(a.field(fields[0]), "is the SKU of an earlier line")
			break
		}
	}
	return line
}

// setting reads what an administrator says of a SKU.
func (r *reader) setting() order.Setting {
	var (
		fields = [...]string{"kind", "total", "buyer_limit"}
		met    seen
		set    order.Setting
	)
	if !r.open(jsontext.KindBeginObject) {
		r.call("", objectDetail)
		return set
	}
	for r.more(jsontext.KindEndObject) {
		switch r.member(top, fields[:], &met) {
		case 0:
			set.Kind = r.stockKind(fields[0])
		case 1:
			set.Total = r.integer(top, fields[1], 0, stock.MaxTotal, totalDetail)
		case 2:
			r.integer(top, fields[2], 0, 0, limitDetail)
		}
	}
	r.requires(top, fields[:2], met)
	return set
}

func (r *reader) stockKind(name string) stock.Kind {
	if r.kind() != jsontext.KindString {
		r.call(name, kindDetail)
		r.skip()
		return ""
	}
	kind := stock.Kind(r.unquoted(r.value()))
	if !kind.Valid() {
		r.call(name, kindDetail)
	}
	return kind
}
