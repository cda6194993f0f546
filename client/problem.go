package client

import (
	"fmt"
	"strconv"
	"time"
)

// ProblemType identifies a kind of error answer. It is an error itself, so that
// errors.Is(err, client.SoldOut) tests for it.
type ProblemType string

// The types of problems that the service answers.
const (
	Malformed        ProblemType = "/problems/malformed"          // 400
	Unauthorized     ProblemType = "/problems/unauthorized"       // 401
	CrossOrigin      ProblemType = "/problems/cross-origin"       // 403
	OtherBuyer       ProblemType = "/problems/other-buyer"        // 403: buyer_id is not the subject of the token
	NotFound         ProblemType = "/problems/not-found"          // 404: the path does not exist
	UnknownSKU       ProblemType = "/problems/unknown-sku"        // 404
	UnknownOrder     ProblemType = "/problems/unknown-order"      // 404
	UnknownPayment   ProblemType = "/problems/unknown-payment"    // 404
	MethodNotAllowed ProblemType = "/problems/method-not-allowed" // 405
	Timeout          ProblemType = "/problems/timeout"            // 408: the request did not arrive in time
	SoldOut          ProblemType = "/problems/sold-out"           // 409
	BuyerLimit       ProblemType = "/problems/buyer-limit"        // 409
	NotOpen          ProblemType = "/problems/not-open"           // 409
	Closed           ProblemType = "/problems/closed"             // 409
	InProgress       ProblemType = "/problems/in-progress"        // 409: the order is being placed, or is queued
	BelowSold        ProblemType = "/problems/below-sold"         // 409
	RefundDue        ProblemType = "/problems/refund-due"         // 409: the payment is recorded, and must be paid back
	WrongStatus      ProblemType = "/problems/wrong-status"       // 409
	TooLarge         ProblemType = "/problems/too-large"          // 413
	NotJSON          ProblemType = "/problems/not-json"           // 415
	Invalid          ProblemType = "/problems/invalid"            // 422: Errors names the fields
	KeyReused        ProblemType = "/problems/key-reused"         // 422: the key names an order with other lines
	RateLimited      ProblemType = "/problems/rate-limited"       // 429: nothing was done
	Internal         ProblemType = "/problems/internal"           // 500
	Busy             ProblemType = "/problems/busy"               // 503: nothing was cut or changed
	Superseded       ProblemType = "/problems/superseded"         // 503: nothing was cut or changed
	Unavailable      ProblemType = "/problems/unavailable"        // 503: the outcome is unknown
)

// blank is the type of an answer that is not a problem document, such as an answer of a proxy.
const blank ProblemType = "about:blank"

// Error returns the type.
func (t ProblemType) Error() string { return string(t) }

// Problem is an error answer (RFC 9457).
type Problem struct {
	// Type is one of the constants, or about:blank if the answer was not a problem document, for
	// example because a proxy has answered.
	Type   ProblemType `json:"type"`
	Title  string      `json:"title"`
	Status int         `json:"status"`
	Detail string      `json:"detail"`

	SKU         string       `json:"sku,omitempty"`          // set for SoldOut, BuyerLimit, NotOpen, Closed and UnknownSKU
	OpensAt     *time.Time   `json:"opens_at,omitempty"`     // set for NotOpen
	PaymentID   string       `json:"payment_id,omitempty"`   // set for RefundDue
	OrderStatus OrderStatus  `json:"order_status,omitempty"` // set for RefundDue and WrongStatus
	Errors      []FieldError `json:"errors,omitempty"`       // set for Invalid

	// RetryAfter is how long the service asked to wait before the next try. It is 0 if the service
	// did not ask.
	RetryAfter time.Duration `json:"-"`
	// RequestID names the request in the service's log.
	RequestID string `json:"-"`
}

// FieldError says what is wrong with one field of a request.
type FieldError struct {
	Field  string `json:"field"` // for example lines[0].quantity; empty: the whole body or query
	Detail string `json:"detail"`
}

// Error returns the status, the type, the detail, and what the problem concerns.
func (p *Problem) Error() string {
	text := strconv.Itoa(p.Status) + " " + string(p.Type) + ": " + p.Detail
	if p.SKU != "" {
		text += " SKU " + strconv.Quote(p.SKU) + "."
	}
	for i, e := range p.Errors {
		if i == 3 {
			return text + fmt.Sprintf(" And %d more.", len(p.Errors)-i)
		}
		text += " " + strconv.Quote(e.Field) + " " + e.Detail + "."
	}
	return text
}

// Is reports whether target is the type of the problem.
func (p *Problem) Is(target error) bool {
	t, ok := target.(ProblemType)
	return ok && t == p.Type
}

// UnknownOutcome is the error of a change that may have been made, or may still be made. The
// answers of the call and of its retries were lost, or say that the outcome is open. If the last
// try was refused, Err is the refusal; an earlier try, whose answer was lost, may still arrive.
// Repeating the call is safe and shows the outcome, except for an order without a key. The service
// works on a request for at most 10 s.
type UnknownOutcome struct {
	// Key is the Idempotency-Key of an order, even if the client has generated it. With the same
	// key, buyer and lines, Place returns the order if there is one, and otherwise places it. Key
	// is empty for all other changes, and for an order without a key, which must not be repeated.
	Key string
	// Err is the error of the last try.
	Err error
}

// Error says that the outcome is unknown, and why.
func (u *UnknownOutcome) Error() string { return "outcome unknown: " + u.Err.Error() }

// Unwrap returns Err.
func (u *UnknownOutcome) Unwrap() error { return u.Err }
