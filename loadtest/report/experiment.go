package report

import (
	"fmt"
	"io"
	"slices"
	"unicode/utf8"

	"github.com/holdfast-stock/holdfast/internal/lab/table"
	"github.com/holdfast-stock/holdfast/loadtest/results"
)

// WriteExperiment writes the timelines of an experiment for a terminal.
func WriteExperiment(w io.Writer, e results.Experiment, colors bool) {
	fmt.Fprintf(w, "%s: %s\n", e.Name, e.Title)
	for _, v := range e.Versions {
		fmt.Fprintf(w, "\n  %s: %s\n", kind(v), v.Title)
		if v.NotRun != "" {
			fmt.Fprintf(w, "  not run: %s\n", v.NotRun)
			continue
		}
		width := 0
		for _, actor := range v.Actors() {
			width = max(width, utf8.RuneCountInString(actor))
		}
		for _, event := range v.Events {
			fmt.Fprintf(w, "  %6.0f ms  %-*s  %s\n", event.Millis, width, event.Actor, event.Text)
		}
		fmt.Fprintf(w, "  damage: %s\n", table.Paint(damage(v), v.Damage != "" && colors))
		if v.Fault != "" {
			fmt.Fprintf(w, "  %s\n", table.Paint("FAILED: "+v.Fault, colors))
		}
	}
	fmt.Fprintln(w)
}

// WriteSummary writes how many experiments ended as expected, and which did not run.
func WriteSummary(w io.Writer, all []results.Experiment) {
	ran, failed, notRun := tally(all)
	fmt.Fprintf(w, "ran %d of %d versions; %d were not as expected\n", ran, ran+len(notRun), failed)
	for _, line := range notRun {
		fmt.Fprintf(w, "not run: %s\n", line)
	}
}

// tally counts the versions that ran, and those that did not end as expected. It lists those that
// did not run.
func tally(all []results.Experiment) (ran, failed int, notRun []string) {
	for _, e := range all {
		for _, v := range e.Versions {
			switch {
			case v.NotRun != "":
				notRun = append(notRun, fmt.Sprintf("%s (%s) %s", e.Name, v.Title, v.NotRun))
				continue
			case v.Fault != "":
				failed++
			}
			ran++
		}
	}
	return ran, failed, notRun
}

func kind(v results.Version) string {
	if v.Flawed {
		return "flawed"
	}
	return "fixed"
}

func damage(v results.Version) string {
	if v.Damage == "" {
		return "none"
	}
	return v.Damage
}

// event is a row of a drawn timeline: time runs downwards, and each actor has a lane.
type event struct {
	results.Event
	Lane  int
	Lanes []string // classes of the lanes in this row
}

// laneColors is the number of colours of lanes in the style sheet.
const laneColors = 8

// timeline returns the rows of a version. The line of an actor goes from the first of
// its events to the last one.
func timeline(v results.Version) []event {
	actors := v.Actors()
	first, last := make(map[string]int), make(map[string]int)
	for i, e := range v.Events {
		if _, seen := first[e.Actor]; !seen {
			first[e.Actor] = i
		}
		last[e.Actor] = i
	}
	rows := make([]event, len(v.Events))
	for i, e := range v.Events {
		rows[i] = event{Event: e, Lane: slices.Index(actors, e.Actor) % laneColors}
		for lane, actor := range actors {
			class := fmt.Sprintf("l%d", lane%laneColors)
			if i < first[actor] || i > last[actor] {
				class += " off-lane"
			}
			if i == first[actor] {
				class += " first"
			}
			if i == last[actor] {
				class += " last"
			}
			if actor == e.Actor {
				class += " dot"
			}
			rows[i].Lanes = append(rows[i].Lanes, class)
		}
	}
	return rows
}
