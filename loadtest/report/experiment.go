package report

import (
	"fmt"
	"io"
	"slices"
	"strings"
	"unicode"

	"github.com/holdfast-stock/holdfast/internal/lab/table"
	"github.com/holdfast-stock/holdfast/loadtest/results"
)

// Timelines writes experiments for a terminal, in one language.
type Timelines struct {
	out     io.Writer
	chinese bool
	colors  bool
	words   dictionary
}

// NewTimelines returns a writer of timelines in English or, if chinese is set, in Chinese.
func NewTimelines(w io.Writer, chinese, colors bool) (*Timelines, error) {
	words, err := readDictionary()
	return &Timelines{w, chinese, colors, words}, err
}

// say returns a text of the dictionary in the language of t.
func (t *Timelines) say(key string, args ...any) string {
	return t.pick(t.words.say(key, args...))
}

func (t *Timelines) pick(in text) string {
	if t.chinese {
		return in.Chinese
	}
	return in.English
}

// Write writes the timelines of an experiment.
func (t *Timelines) Write(e results.Experiment) {
	fmt.Fprintf(t.out, "%s: %s\n", e.Name, t.pick(pair(e.Title, e.TitleChinese)))
	for _, v := range e.Versions {
		fmt.Fprintf(t.out, "\n  %s: %s\n", t.say(kind(v)), t.title(v))
		if v.NotRun != "" {
			fmt.Fprintf(t.out, "  %s: %s\n", t.say("pitfalls.not-run"), t.pick(pair(v.NotRun, v.NotRunChinese)))
			continue
		}
		widest := 0
		for _, event := range v.Events {
			widest = max(widest, width(t.actor(event)))
		}
		for _, event := range v.Events {
			actor := t.actor(event)
			padding := strings.Repeat(" ", widest-width(actor))
			fmt.Fprintf(t.out, "  %6.0f ms  %s%s  %s\n", event.Millis, actor, padding, t.pick(pair(event.Text, event.TextChinese)))
		}
		fmt.Fprintf(t.out, "  %s: %s\n", t.say("pitfalls.damage"), table.Paint(t.damage(v), v.Damage != "" && t.colors))
		if v.Fault != "" {
			fmt.Fprintf(t.out, "  %s\n", table.Paint(t.say("pitfalls.failed")+": "+t.pick(pair(v.Fault, v.FaultChinese)), t.colors))
		}
	}
	fmt.Fprintln(t.out)
}

func (t *Timelines) title(v results.Version) string { return t.pick(pair(v.Title, v.TitleChinese)) }

func (t *Timelines) actor(e results.Event) string { return t.pick(pair(e.Actor, e.ActorChinese)) }

func (t *Timelines) damage(v results.Version) string {
	if v.Damage == "" {
		return t.say("pitfalls.no-damage")
	}
	return t.pick(pair(v.Damage, v.DamageChinese))
}

// width returns the width of a name on a terminal, where a Chinese character takes two columns.
func width(name string) (n int) {
	for _, r := range name {
		n++
		if unicode.Is(unicode.Han, r) {
			n++
		}
	}
	return n
}

// Summary writes how many experiments ended as expected, and which did not run.
func (t *Timelines) Summary(all []results.Experiment) {
	ran, failed, missing := tally(all)
	fmt.Fprintln(t.out, t.say("pitfalls.summary", ran, ran+len(missing), failed))
	for _, v := range missing {
		fmt.Fprintf(t.out, "%s: %s (%s) %s\n", t.say("pitfalls.not-run"), v.experiment, t.title(v.Version), t.pick(pair(v.NotRun, v.NotRunChinese)))
	}
}

// notRun is a version that did not run.
type notRun struct {
	results.Version
	experiment string
}

// tally counts the versions that ran, and those that did not end as expected. It lists those that
// did not run.
func tally(all []results.Experiment) (ran, failed int, missing []notRun) {
	for _, e := range all {
		for _, v := range e.Versions {
			switch {
			case v.NotRun != "":
				missing = append(missing, notRun{v, e.Name})
				continue
			case v.Fault != "":
				failed++
			}
			ran++
		}
	}
	return ran, failed, missing
}

// kind is the key of what a version is.
func kind(v results.Version) string {
	if v.Flawed {
		return "pitfalls.flawed"
	}
	return "pitfalls.fixed"
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
