package httpapi

import (
	"errors"
	"io"
	"mime"
	"net"
	"net/http"
	"reflect"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/gin-gonic/gin"
	"github.com/go-json-experiment/json"
	"github.com/go-json-experiment/json/jsontext"
	"github.com/go-playground/validator/v10"

	"github.com/holdfast-stock/holdfast/internal/stock"
)

const (
	// maxBody is the largest request body, in bytes.
	maxBody = 64 << 10
	// maxEcho is how many bytes of a client's text an answer repeats.
	maxEcho = 128
)

// fieldError describes one bad field of a request.
type fieldError struct {
	Field  string `json:"field"`
	Detail string `json:"detail"`
}

// The bodies of requests. The tags "binding" are rules of the validator. The rules of an
// order are in orderRules: one call of the validator instead of one for each field.
type (
	orderBody struct {
		BuyerID string       `json:"buyer_id"`
		Lines   []stock.Line `json:"lines"`
	}
	paymentBody struct {
		PaymentID string `json:"payment_id" binding:"id"`
	}
	refundBody struct {
		Restock *bool `json:"restock" binding:"required"`
	}
	// settingBody is an administrator's setting of a SKU. The SKU is in the path.
	settingBody struct {
		SKU        stock.SKU           `json:"-" uri:"sku" binding:"id"`
		Kind       stock.Kind          `json:"kind" binding:"kind"`
		Total      *int64              `json:"total" binding:"required,count"`
		BuyerLimit optional[int64]     `json:"buyer_limit" binding:"-"`
		OpensAt    optional[time.Time] `json:"opens_at" binding:"-"`
		ClosesAt   optional[time.Time] `json:"closes_at" binding:"-"`
	}
	// emptyBody has no fields and may be left out.
	emptyBody struct{}
)

// optional is a member that may be left out, which is not the same as null.
type optional[T any] struct {
	given bool
	value *T // nil for null
}

// UnmarshalJSONFrom implements json.UnmarshalerFrom.
func (o *optional[T]) UnmarshalJSONFrom(d *jsontext.Decoder) error {
	o.given = true
	return json.UnmarshalDecode(d, &o.value)
}

// setting returns the setting that the body asks for.
func (b *settingBody) setting() stock.Setting {
	return stock.Setting{
		SKU: b.SKU, Kind: b.Kind, Total: *b.Total,
		BuyerLimit: b.BuyerLimit.value, OpensAt: hour(b.OpensAt), ClosesAt: hour(b.ClosesAt),
	}
}

// hour returns a time in UTC, cut to microseconds: nil if it was left out, the zero
// time for null.
func hour(o optional[time.Time]) *time.Time {
	if !o.given {
		return nil
	}
	var t time.Time
	if o.value != nil {
		t = o.value.UTC().Truncate(time.Microsecond)
	}
	return &t
}

const (
	idDetail       = "must be 1 to 64 of A-Z a-z 0-9 . _ : - and start with a letter or digit"
	requiredDetail = "is required"
	repeatedDetail = "is given more than once"
	objectDetail   = "must be an object"
	hoursDetail    = "must be after opens_at"
	countDetail    = "must be an integer from 0 to 1000000000"
	timeDetail     = "must be an RFC 3339 time in the years 1970 to 9999, or null"
)

// ruleDetails has the details of answers about fields that break a rule, by rule.
var ruleDetails = map[string]string{
	"required": requiredDetail,
	"id":       idDetail,
	"lines":    "must be an array of 1 to 20 lines",
	"distinct": "is the SKU of an earlier line",
	"quantity": "must be an integer from 1 to 1000",
	"kind":     "must be product or coupon",
	"count":    countDetail,
	"time":     timeDetail,
	"hours":    hoursDetail,
}

// newValidator returns the validator of bodies, with the rules of ruleDetails.
func newValidator() *validator.Validate {
	v := validator.New(validator.WithRequiredStructEnabled())
	v.SetTagName("binding")
	v.RegisterTagNameFunc(func(f reflect.StructField) string {
		name, _, _ := strings.Cut(f.Tag.Get("json"), ",")
		if name == "-" {
			return f.Tag.Get("uri")
		}
		return name
	})
	rules := map[string]validator.Func{
		"id":    func(f validator.FieldLevel) bool { return stock.ValidID(f.Field().String()) },
		"kind":  func(f validator.FieldLevel) bool { return stock.Kind(f.Field().String()).Valid() },
		"count": func(f validator.FieldLevel) bool { return f.Field().Int() >= 0 && f.Field().Int() <= stock.MaxTotal },
	}
	for name, rule := range rules {
		if err := v.RegisterValidation(name, rule); err != nil {
			panic(err) // only for an empty name
		}
	}
	v.RegisterStructValidation(orderRules, orderBody{})
	v.RegisterStructValidation(optionalSettings, settingBody{})
	return v
}

// orderRules checks the fields of an order, and that the SKU of each line differs from
// those of the earlier lines.
func orderRules(s validator.StructLevel) {
	b := s.Current().Addr().Interface().(*orderBody)
	if !stock.ValidID(b.BuyerID) {
		s.ReportError(b.BuyerID, "buyer_id", "BuyerID", "id", "")
	}
	if len(b.Lines) == 0 || len(b.Lines) > stock.MaxLines {
		s.ReportError(b.Lines, "lines", "Lines", "lines", "")
		return // stops here, so that thousands of lines are not compared
	}
	for i, line := range b.Lines {
		if !stock.ValidID(string(line.SKU)) {
			s.ReportError(line.SKU, lineField(i, "sku"), "SKU", "id", "")
		}
		if line.Quantity < 1 || line.Quantity > stock.MaxQuantity {
			s.ReportError(line.Quantity, lineField(i, "quantity"), "Quantity", "quantity", "")
		}
	}
	for i, line := range b.Lines {
		if line.SKU != "" && slices.ContainsFunc(b.Lines[:i], func(other stock.Line) bool { return other.SKU == line.SKU }) {
			s.ReportError(line.SKU, lineField(i, "sku"), "SKU", "distinct", "")
		}
	}
}

// lineField is the name of a field of line i.
func lineField(i int, name string) string { return "lines[" + strconv.Itoa(i) + "]." + name }

// optionalSettings checks the members of a setting that may be left out.
func optionalSettings(s validator.StructLevel) {
	b := s.Current().Addr().Interface().(*settingBody)
	if limit := b.BuyerLimit; limit.given && (limit.value == nil || *limit.value < 0 || *limit.value > stock.MaxTotal) {
		s.ReportError(limit, "buyer_limit", "BuyerLimit", "count", "")
	}
	if !validHour(b.OpensAt) {
		s.ReportError(b.OpensAt, "opens_at", "OpensAt", "time", "")
	}
	opens, closes := hour(b.OpensAt), hour(b.ClosesAt)
	switch {
	case !validHour(b.ClosesAt):
		s.ReportError(b.ClosesAt, "closes_at", "ClosesAt", "time", "")
	case opens != nil && closes != nil && !closes.IsZero() && !closes.After(*opens):
		s.ReportError(b.ClosesAt, "closes_at", "ClosesAt", "hours", "")
	}
}

// validHour reports whether a time is left out, null, or in the years 1970 to 9999.
func validHour(o optional[time.Time]) bool {
	if o.value == nil {
		return true
	}
	year := o.value.UTC().Year()
	return year >= 1970 && year <= 9999
}

// strictJSON is a gin binding. Unlike gin's own for JSON, it refuses unknown and
// repeated fields, names in another case, a second value, invalid UTF-8 and more than
// maxBody bytes.
type strictJSON struct{ validate *validator.Validate }

// Name implements binding.Binding.
func (strictJSON) Name() string { return "json" }

// readAll reads a whole body of at most maxBody bytes. The length is known unless the
// body comes in chunks.
func readAll(r *http.Request) ([]byte, error) {
	switch {
	case r.ContentLength > maxBody:
		return nil, &http.MaxBytesError{Limit: maxBody}
	case r.ContentLength < 0:
		return io.ReadAll(http.MaxBytesReader(nil, r.Body, maxBody))
	}
	data := make([]byte, r.ContentLength)
	_, err := io.ReadFull(r.Body, data)
	return data, err
}

// errNoBody: there must be a body.
var errNoBody = errors.New("the body is empty")

// Bind implements binding.Binding.
func (s strictJSON) Bind(r *http.Request, body any) error {
	data, err := readAll(r)
	if err != nil {
		return err
	}
	if len(data) == 0 {
		if _, may := body.(*emptyBody); may {
			return nil
		}
		return errNoBody
	}
	err = json.Unmarshal(data, body, json.RejectUnknownMembers(true))
	if err == nil && jsontext.Value(data).Kind() != jsontext.KindBeginObject { // null
		err = &json.SemanticError{GoType: reflect.TypeOf(body).Elem()}
	}
	if err != nil {
		// Unmarshal stops at the first bad field. The rest may not be JSON.
		return errors.Join(json.Unmarshal(data, new(jsontext.Value), jsontext.AllowDuplicateNames(true)), err)
	}
	return s.validate.Struct(body)
}

// bind reads the body of a request. If it returns false, it has answered the request
// with the problem.
func (a *api) bind(c *gin.Context, body any) bool {
	err := c.ShouldBindWith(body, a.binding)
	if err == nil {
		_ = c.Request.Body.Close() // package http then need not read the rest of the body
		return true
	}
	p, detail, bad := bodyProblem(err)
	if p == timeout { // the bytes that still arrive are not a request
		c.Header("Connection", "close")
	}
	a.problem(c, p, detail, extras{Errors: bad})
	return false
}

// bodyProblem returns the problem that answers an error of strictJSON.
func bodyProblem(err error) (p problem, detail string, bad []fieldError) {
	if fields, ok := errors.AsType[validator.ValidationErrors](err); ok {
		for _, f := range fields {
			_, field, _ := strings.Cut(f.Namespace(), ".") // skip the name of the type
			bad = append(bad, fieldError{field, ruleDetails[f.Tag()]})
		}
		return invalid, invalidDetail, bad
	}
	if errors.Is(err, errNoBody) {
		return malformed, "The body is empty: it must be exactly one JSON value.", nil
	}
	if syntax, ok := errors.AsType[*jsontext.SyntacticError](err); ok {
		if errors.Is(syntax, jsontext.ErrDuplicateName) {
			return invalid, invalidDetail, []fieldError{{fieldAt(syntax.JSONPointer), repeatedDetail}}
		}
		return malformed, "The body is not exactly one JSON value in UTF-8: see byte " + strconv.FormatInt(syntax.ByteOffset, 10) + ".", nil
	}
	if semantic, ok := errors.AsType[*json.SemanticError](err); ok {
		return invalid, invalidDetail, []fieldError{{fieldAt(semantic.JSONPointer), typeDetail(semantic)}}
	}
	if _, ok := errors.AsType[*http.MaxBytesError](err); ok {
		return tooLarge, "The body is larger than 65536 bytes.", nil
	}
	if brokenConnection(err) {
		return timeout, "The body did not arrive completely and in time. Nothing was done; send the request again.", nil
	}
	return malformed, "The chunked encoding of the body is invalid.", nil
}

// fieldAt returns the name of a field as answers give it: lines[0].sku for
// /lines/0/sku. Only lines is an array.
func fieldAt(p jsontext.Pointer) string {
	var b strings.Builder
	depth := 0
	for token := range p.Tokens() {
		switch depth++; depth {
		case 1:
			b.WriteString(token)
		case 2:
			b.WriteString("[" + token + "]")
		default:
			b.WriteString("." + token)
		}
	}
	return clip(b.String())
}

// typeDetail returns the detail of an answer about a value that does not fit its field.
func typeDetail(e *json.SemanticError) string {
	switch {
	case errors.Is(e, json.ErrUnknownName):
		return "is not a known field"
	case e.GoType == reflect.TypeFor[time.Time]():
		return timeDetail
	case e.GoType == nil:
		return "has another type"
	}
	switch e.GoType.Kind() {
	case reflect.String:
		return "must be a string"
	case reflect.Int64:
		return "must be an integer"
	case reflect.Bool:
		return "must be true or false"
	case reflect.Slice:
		return "must be an array"
	default:
		return objectDetail
	}
}

// clip shortens a client's text to maxEcho bytes and an ellipsis.
func clip(s string) string {
	if len(s) <= maxEcho {
		return s
	}
	return strings.ToValidUTF8(s[:maxEcho], "") + "…"
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

// brokenConnection reports whether a read of a body failed because the rest of
// the body did not arrive. Otherwise the bytes that arrived are malformed.
func brokenConnection(err error) bool {
	var network net.Error
	return errors.As(err, &network) || errors.Is(err, io.ErrUnexpectedEOF)
}
