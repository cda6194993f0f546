package rush

import (
	"errors"
	"io"
	"net/http"

	"github.com/go-json-experiment/json"

	"github.com/holdfast-stock/holdfast/internal/console"
)

const (
	// Path is where the Runner is mounted.
	Path = "/console/rush"
	// maxBody bounds the body of a request that starts a run, in bytes.
	maxBody = 4 << 10
)

// ServeHTTP answers requests for Path:
//
//	GET    what can be run, and the progress of the last run
//	POST   starts a run
//	DELETE stops it
//
// The caller decides who may send them, and refuses bodies that are not JSON.
func (r *Runner) ServeHTTP(w http.ResponseWriter, q *http.Request) {
	switch q.Method {
	case http.MethodGet, http.MethodHead:
		r.show(w)
	case http.MethodPost:
		r.start(w, q)
	case http.MethodDelete:
		r.halt(w, q)
	default:
		w.Header().Set("Allow", "GET, HEAD, POST, DELETE")
		console.WriteProblem(w, http.StatusMethodNotAllowed, "method-not-allowed", "Method not allowed", "The path does not support this method.")
	}
}

// overview is the answer to GET.
type overview struct {
	Available  bool      `json:"available"`
	Reason     string    `json:"reason,omitempty"` // why rushes are not available
	Strategies []string  `json:"strategies"`
	Defaults   Settings  `json:"defaults"`
	Limits     limits    `json:"limits"`
	Current    *Progress `json:"current"` // null: no run was started
}

type limits struct {
	Clients int   `json:"clients"`
	Units   int64 `json:"units"`
	Seconds int   `json:"seconds"`
}

func (r *Runner) show(w http.ResponseWriter) {
	o := overview{
		Available: r.o.Unavailable == "", Reason: r.o.Unavailable, Strategies: strategies(), Defaults: Defaults(),
		Limits: limits{MaxClients, MaxUnits, int(MaxDuration.Seconds())},
	}
	if p, ok := r.progress(); ok {
		o.Current = &p
	}
	console.WriteJSON(w, http.StatusOK, "application/json", o)
}

func (r *Runner) start(w http.ResponseWriter, q *http.Request) {
	settings, wrong := decode(http.MaxBytesReader(w, q.Body, maxBody))
	var p Progress
	if wrong == nil {
		p, wrong = r.begin(settings)
	}
	answer(w, http.StatusAccepted, p, wrong)
}

func (r *Runner) halt(w http.ResponseWriter, q *http.Request) {
	p, wrong := r.stop(q.Context())
	answer(w, http.StatusOK, p, wrong)
}

// answer answers with the progress, or with what is wrong.
func answer(w http.ResponseWriter, status int, p Progress, wrong *problem) {
	if wrong != nil {
		console.WriteProblem(w, wrong.status, wrong.name, wrong.title, wrong.detail, wrong.fields...)
		return
	}
	console.WriteJSON(w, status, "application/json", p)
}

// problem is why a request is refused.
type problem struct {
	status              int
	name, title, detail string
	fields              []console.FieldError
}

var (
	malformed = &problem{http.StatusBadRequest, "malformed", "Malformed request", "The body must be exactly one JSON object.", nil}
	tooLarge  = &problem{http.StatusRequestEntityTooLarge, "too-large", "Body too large", "The body is too large.", nil}
	running   = &problem{http.StatusConflict, "rush-running", "A rush is running", "One rush runs at a time. Wait for it, or stop it.", nil}
	noRun     = &problem{http.StatusConflict, "no-rush", "No rush", "No rush was started.", nil}
)

func invalid(fields ...console.FieldError) *problem {
	return &problem{http.StatusUnprocessableEntity, "invalid", "Invalid request", "Some fields are invalid. Nothing was done.", fields}
}

func unavailable(why string) *problem {
	return &problem{http.StatusConflict, "rush-unavailable", "Rushes are not available", "rushes are not available: " + why, nil}
}

// decode reads the settings. Missing settings get their defaults.
func decode(body io.Reader) (Settings, *problem) {
	settings := Defaults()
	given := &settings // JSON null sets it to nil, and is not an object
	err := json.UnmarshalRead(body, &given, json.RejectUnknownMembers(true))
	if wrong, ok := errors.AsType[*json.SemanticError](err); ok && wrong.JSONPointer != "" {
		field, detail := wrong.JSONPointer.LastToken(), "must be a whole number"
		switch {
		case errors.Is(wrong, json.ErrUnknownName):
			detail = "is not known"
		case field == "strategy":
			detail = "must be a string"
		}
		return settings, invalid(console.FieldError{Field: field, Detail: detail})
	}
	switch {
	case errors.As(err, new(*http.MaxBytesError)):
		return settings, tooLarge
	case given == nil || err != nil:
		return settings, malformed
	}
	return settings, nil
}
