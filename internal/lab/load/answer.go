package load

import (
	"context"
	"encoding/json"
	"errors"
	"net/http"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/holdfast-stock/holdfast/client"
)

// Outcomes of one order.
const (
	Accepted = "accepted" // 201
	Queued   = "queued"   // 202
	Refused  = "refused"  // sold out or at the buyer limit, which are correct answers
	Failed   = "failed"
)

// Causes of a failure without an answer, in the place of a problem type.
const (
	NoConnection client.ProblemType = "connection refused" // nothing was sent
	TimedOut     client.ProblemType = "timeout"
	NoAnswer     client.ProblemType = "no answer"
)

// Answer is the answer to one request as it came over the wire.
type Answer struct {
	Status   int                // HTTP status; 0: no answer
	Problem  client.ProblemType // empty: the answer has none; without an answer, the cause
	Body     []byte
	Order    *client.Order // the order in the answer; nil: the public client found none
	Replayed bool          // the answer is marked as a repetition of the first answer to its key
	Took     time.Duration
}

// Outcome returns what the answer to an order means.
func (a Answer) Outcome() string {
	switch {
	case a.Status == http.StatusCreated:
		return Accepted
	case a.Status == http.StatusAccepted:
		return Queued
	case a.Status == http.StatusConflict && (a.Problem == client.SoldOut || a.Problem == client.BuyerLimit):
		return Refused
	}
	return Failed
}

// ProblemName returns the last part of the problem type or, without an answer, the cause.
func (a Answer) ProblemName() string { return strings.TrimPrefix(string(a.Problem), "/problems/") }

// Failure names a failure by its status and problem type.
func (a Answer) Failure() string {
	if a.Status == 0 {
		return a.ProblemName()
	}
	return strings.TrimSpace(strconv.Itoa(a.Status) + " " + a.ProblemName())
}

// Unknown reports whether a request that failed may have had its effect. Its answer was then lost,
// is "unavailable", or is a server error of a proxy, which has no problem type. All other failures
// promise that nothing was changed.
func (a Answer) Unknown() bool {
	switch {
	case a.Status == 0:
		return a.Problem != NoConnection
	case a.Status >= 500:
		return a.Problem == client.Unavailable || a.Problem == ""
	}
	return false
}

// readProblem sets the problem of an answer that is not a success.
func (a *Answer) readProblem() {
	if a.Status/100 == 2 {
		return
	}
	var problem struct {
		Type client.ProblemType `json:"type"`
	}
	_ = json.Unmarshal(a.Body, &problem) // a body that is not JSON has no problem type
	a.Problem = problem.Type
}

// causeOf names the reason why there is no answer.
func causeOf(err error) client.ProblemType {
	switch {
	case errors.Is(err, syscall.ECONNREFUSED):
		return NoConnection
	case errors.Is(err, context.DeadlineExceeded):
		return TimedOut
	}
	return NoAnswer
}
