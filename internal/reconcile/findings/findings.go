// Package findings prints what an audit of all stock finds, for people or as JSON.
package findings

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"strconv"
	"strings"
	"time"

	"github.com/holdfast-stock/holdfast/internal/reconcile"
	"github.com/holdfast-stock/holdfast/internal/stock"
)

// progressPause is the pause between two log lines about the progress of the audit.
const progressPause = 5 * time.Second

// Auditor audits stock. *reconcile.Reconciler is one.
type Auditor interface {
	AuditAll(ctx context.Context, o reconcile.AuditOptions) (reconcile.AuditSummary, error)
}

// Options are the options of Print.
type Options struct {
	Repair bool // correct the differences
	JSON   bool // print one JSON document instead of a table
}

// Print audits all stock and prints each finding as soon as it is known. log gets the progress of
// the audit every few seconds. Print returns an error if the audit or the output fails, or if a
// difference is left.
func Print(ctx context.Context, a Auditor, o Options, stdout io.Writer, log *slog.Logger) error {
	out := bufio.NewWriter(stdout)
	var print printer = &textTable{w: out}
	if o.JSON {
		print = &document{w: out}
	}
	logged := time.Now()
	summary, auditErr := a.AuditAll(ctx, reconcile.AuditOptions{
		Repair: o.Repair,
		Report: func(f reconcile.Finding) error {
			if err := print.finding(f); err != nil {
				return err
			}
			return out.Flush()
		},
		Progress: func(compared int) {
			if time.Since(logged) >= progressPause {
				logged = time.Now()
				log.Info("comparing stock", "skus", compared)
			}
		},
	})
	if err := errors.Join(auditErr, print.end(summary), out.Flush()); err != nil {
		return err
	}
	switch left := summary.Different - summary.Repaired; {
	case left > 0 && o.Repair:
		return fmt.Errorf("SKUs that could not be repaired: %d", left)
	case left > 0:
		return fmt.Errorf("SKUs with differences: %d; reconcile --repair corrects them", left)
	}
	return nil
}

// printer prints the result of an audit while the audit runs.
type printer interface {
	finding(f reconcile.Finding) error
	end(s reconcile.AuditSummary) error
}

// textTable prints a row for each finding. The columns have fixed widths, because a
// row is printed before the next one is known.
type textTable struct {
	w       io.Writer
	started bool
}

func (t *textTable) row(cells ...any) error {
	_, err := fmt.Fprintf(t.w, "%-20s %10s %10s %10s %10s %10s %10s %11s  %s\n", cells...)
	return err
}

func (t *textTable) finding(f reconcile.Finding) error {
	if !t.started {
		t.started = true
		if err := t.row("SKU", "TOTAL", "HELD", "LEDGER", "GATE", "IN FLIGHT", "RECORDED", "UNDELIVERED", "DIFFERENCES"); err != nil {
			return err
		}
	}
	gate, inFlight, recorded := "-", "-", "-"
	if f.Level.Filled {
		gate, inFlight = units(f.Level.Available), units(f.Level.InFlight)
	}
	if f.Recorded != nil {
		recorded = units(*f.Recorded)
	}
	return t.row(f.Count.SKU, units(f.Count.Total), units(f.Count.Held), units(f.Count.Available), gate, inFlight, recorded,
		units(f.Count.Undelivered), describeFinding(f))
}

func (t *textTable) end(s reconcile.AuditSummary) error {
	_, err := fmt.Fprintf(t.w, "SKUs compared: %d, different: %d, repaired: %d, not used since the last change of generation: %d\n",
		s.Compared, s.Different, s.Repaired, s.NotAdopted)
	return err
}

func units(n int64) string { return strconv.FormatInt(n, 10) }

// describeFinding returns the differences of the finding, and whether they were
// repaired, in words.
func describeFinding(f reconcile.Finding) string {
	var parts []string
	for _, d := range f.Differences {
		parts = append(parts, describeDifference(d))
	}
	if len(f.Segments) > 0 {
		counts := make([]string, len(f.Segments))
		for i, segment := range f.Segments {
			counts[i] = "-"
			if segment.Filled {
				counts[i] = units(segment.Available)
			}
		}
		parts = append(parts, "segments "+strings.Join(counts, " "))
	}
	text := strings.Join(parts, ", ")
	switch {
	case f.Repaired:
		text += "; repaired"
	case f.Err != nil:
		text += "; not repaired: " + f.Err.Error()
	}
	return text
}

func describeDifference(d reconcile.Difference) string {
	size := fmt.Sprintf("%+d", d.Least)
	if d.Least != d.Most {
		size += fmt.Sprintf(" to %+d", d.Most)
	}
	switch d.Kind {
	case reconcile.LedgerDiffers:
		return "ledger " + size
	case reconcile.ClaimsDiffer:
		return fmt.Sprintf("wrong claims: %d", d.Least)
	case reconcile.NotFilled:
		return "gate not filled"
	case reconcile.GateDiffers:
		return "gate " + size
	case reconcile.Unrecorded:
		return "in flight " + size + " without a record"
	case reconcile.Unsteady:
		return "changed in every reading"
	}
	return string(d.Kind)
}

// document prints one JSON document, with one finding a line.
type document struct {
	w       io.Writer
	started bool
}

type jsonFinding struct {
	SKU         stock.SKU        `json:"sku"`
	Total       int64            `json:"total"`
	Held        int64            `json:"held"`
	Available   int64            `json:"available"`
	Undelivered int64            `json:"undelivered"`
	Gate        *jsonLevel       `json:"gate"`     // null if the gate is not filled
	Recorded    *int64           `json:"recorded"` // null if records were not counted
	Segments    []*jsonLevel     `json:"segments,omitempty"`
	Claims      []jsonClaim      `json:"claims,omitempty"`
	Differences []jsonDifference `json:"differences"`
	Repaired    bool             `json:"repaired"`
	Error       string           `json:"error,omitempty"`
}

type jsonLevel struct {
	Available int64 `json:"available"`
	InFlight  int64 `json:"in_flight"`
}

type jsonClaim struct {
	BuyerID string `json:"buyer_id"`
	Claimed int64  `json:"claimed"`
	Held    int64  `json:"held"`
}

type jsonDifference struct {
	Kind  reconcile.Kind `json:"kind"`
	Least int64          `json:"least"`
	Most  int64          `json:"most"`
}

func levelJSON(l stock.Level) *jsonLevel {
	if !l.Filled {
		return nil
	}
	return &jsonLevel{l.Available, l.InFlight}
}

func (j *document) finding(f reconcile.Finding) error {
	found := jsonFinding{
		SKU: f.Count.SKU, Total: f.Count.Total, Held: f.Count.Held, Available: f.Count.Available,
		Undelivered: f.Count.Undelivered, Gate: levelJSON(f.Level), Recorded: f.Recorded, Repaired: f.Repaired,
	}
	for _, segment := range f.Segments {
		found.Segments = append(found.Segments, levelJSON(segment))
	}
	for _, c := range f.Claims {
		found.Claims = append(found.Claims, jsonClaim{c.Buyer, c.Claimed, c.Held})
	}
	for _, d := range f.Differences {
		found.Differences = append(found.Differences, jsonDifference(d))
	}
	if f.Err != nil {
		found.Error = f.Err.Error()
	}
	text, err := json.Marshal(found)
	if err != nil {
		return err
	}
	if _, err := io.WriteString(j.w, j.separator()); err != nil {
		return err
	}
	_, err = j.w.Write(text)
	return err
}

// separator returns the text before the next finding.
func (j *document) separator() string {
	if j.started {
		return ",\n"
	}
	j.started = true
	return "{\"findings\":[\n"
}

func (j *document) end(s reconcile.AuditSummary) error {
	if !j.started {
		if _, err := io.WriteString(j.w, "{\"findings\":["); err != nil {
			return err
		}
	}
	_, err := fmt.Fprintf(j.w, "],\n\"compared\":%d,\"different\":%d,\"repaired\":%d,\"not_adopted\":%d}\n",
		s.Compared, s.Different, s.Repaired, s.NotAdopted)
	return err
}
