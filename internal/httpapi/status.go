package httpapi

import (
	"errors"
	"net/http"

	"github.com/holdfast-stock/holdfast/internal/order"
	"github.com/holdfast-stock/holdfast/internal/stock"
)

// This file decides the status of every error answer: errorProblems maps errors of
// the service to problems, and definitions maps problems to statuses.

// problem names a kind of error answer: the last part of its type URI.
type problem string

const (
	malformed        problem = "malformed"
	unauthorized     problem = "unauthorized"
	crossOrigin      problem = "cross-origin"
	otherBuyer       problem = "other-buyer"
	notFound         problem = "not-found"
	unknownSKU       problem = "unknown-sku"
	unknownOrder     problem = "unknown-order"
	unknownPayment   problem = "unknown-payment"
	methodNotAllowed problem = "method-not-allowed"
	timeout          problem = "timeout"
	soldOut          problem = "sold-out"
	buyerLimit       problem = "buyer-limit"
	notOpen          problem = "not-open"
	closed           problem = "closed"
	inProgress       problem = "in-progress"
	belowSold        problem = "below-sold"
	refundDue        problem = "refund-due"
	wrongStatus      problem = "wrong-status"
	tooLarge         problem = "too-large"
	notJSON          problem = "not-json"
	invalid          problem = "invalid"
	keyReused        problem = "key-reused"
	rateLimited      problem = "rate-limited"
	internal         problem = "internal"
	busy             problem = "busy"
	unavailable      problem = "unavailable"
	superseded       problem = "superseded"
)

// definition is what all answers with one problem have in common.
type definition struct {
	status int
	title  string
	retry  string // Retry-After, in seconds; empty: the answer has no Retry-After
}

// definitions is the table from problems to statuses. Every problem has a row.
var definitions = map[problem]definition{
	malformed:        {http.StatusBadRequest, "Malformed request", ""},
	unauthorized:     {http.StatusUnauthorized, "Not authorized", ""},
	crossOrigin:      {http.StatusForbidden, "Cross-origin request", ""},
	otherBuyer:       {http.StatusForbidden, "Another buyer", ""},
	notFound:         {http.StatusNotFound, "Not found", ""},
	unknownSKU:       {http.StatusNotFound, "Unknown SKU", ""},
	unknownOrder:     {http.StatusNotFound, "Unknown order", ""},
	unknownPayment:   {http.StatusNotFound, "Unknown payment", ""},
	methodNotAllowed: {http.StatusMethodNotAllowed, "Method not allowed", ""},
	timeout:          {http.StatusRequestTimeout, "Request timeout", "1"},
	soldOut:          {http.StatusConflict, "Sold out", ""},
	buyerLimit:       {http.StatusConflict, "Buyer limit reached", ""},
	notOpen:          {http.StatusConflict, "Not open yet", ""},
	closed:           {http.StatusConflict, "Closed", ""},
	inProgress:       {http.StatusConflict, "In progress", "1"},
	belowSold:        {http.StatusConflict, "Below what is sold", ""},
	refundDue:        {http.StatusConflict, "Refund due", ""},
	wrongStatus:      {http.StatusConflict, "Wrong status", ""},
	tooLarge:         {http.StatusRequestEntityTooLarge, "Body too large", ""},
	notJSON:          {http.StatusUnsupportedMediaType, "Not JSON", ""},
	invalid:          {http.StatusUnprocessableEntity, "Invalid request", ""},
	keyReused:        {http.StatusUnprocessableEntity, "Idempotency key reused", ""},
	rateLimited:      {http.StatusTooManyRequests, "Too many requests", ""}, // the limit sets Retry-After
	internal:         {http.StatusInternalServerError, "Internal error", ""},
	busy:             {http.StatusServiceUnavailable, "Busy", "1"},
	unavailable:      {http.StatusServiceUnavailable, "Unavailable", "1"},
	superseded:       {http.StatusServiceUnavailable, "Superseded", "5"},
}

const (
	// internalDetail does not contain the cause, which is only logged.
	internalDetail = "The service failed. The log has the cause under the request ID."
	invalidDetail  = "The request has invalid fields."
)

// errorProblems is the table from the service's errors to problems. The first row
// whose error is wrapped in the given one decides. An error without a row is an
// internal error. The first three rows must stay on top, because their errors may
// wrap a refusal that is not the outcome.
var errorProblems = []struct {
	err     error
	problem problem
	detail  string
}{
	{stock.ErrUnavailable, unavailable, "A store did not answer; the outcome of a change is unknown. Try again; repeat an order with the same Idempotency-Key."},
	{stock.ErrSuperseded, superseded, "An instance with another strategy or layout has taken over the stock. Nothing was cut; use another instance."},
	{stock.ErrBusy, busy, "The service is too busy, or a store is unavailable. Nothing was cut; try again."},
	{order.ErrInProgress, inProgress, "The order is still being placed, by another request with this Idempotency-Key or from the queue. Try again."},
	{order.ErrKeyReused, keyReused, "The Idempotency-Key was used for an order with other lines."},
	{stock.ErrBelowSold, belowSold, "The total would be less than what is sold or in flight."},
	{stock.ErrKindFixed, invalid, invalidDetail},
	{stock.ErrHours, invalid, invalidDetail},
	{order.ErrPaymentReused, invalid, invalidDetail},
	{order.ErrUnknownOrder, unknownOrder, "There is no such order."},
	{order.ErrUnknownPayment, unknownPayment, "There is no such payment."},
	{order.ErrRefundDue, refundDue, "The payment does not pay the order. It is recorded and must be paid back."},
	{order.ErrWrongStatus, wrongStatus, "The status of the order does not allow this."},
	{stock.ErrSoldOut, soldOut, "Fewer units are left than were asked for. Nothing was cut."},
	{stock.ErrBuyerLimit, buyerLimit, "The buyer would hold more units of the SKU than one buyer may. Nothing was cut."},
	{stock.ErrNotOpen, notOpen, "The SKU is not sold before opens_at. Nothing was cut."},
	{stock.ErrClosed, closed, "The SKU is not sold any more. Nothing was cut."},
	{stock.ErrUnknownSKU, unknownSKU, "There is no such SKU."},
}

// problemOf returns the problem that answers err, and its detail.
func problemOf(err error) (p problem, detail string) {
	for _, row := range errorProblems {
		if errors.Is(err, row.err) {
			return row.problem, row.detail
		}
	}
	return internal, internalDetail
}
