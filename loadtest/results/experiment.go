package results

import "slices"

// Experiment is the result of one pitfall. Each of its versions, flawed or fixed, was run
// once.
type Experiment struct {
	Name         string    `json:"name"`
	Title        string    `json:"title"`
	TitleChinese string    `json:"title_chinese"`
	Versions     []Version `json:"versions"`
}

// Version is the result of one way of writing the code.
type Version struct {
	Title        string  `json:"title"`
	TitleChinese string  `json:"title_chinese"`
	Flawed       bool    `json:"flawed"` // the version must do damage; other versions must not
	Events       []Event `json:"events"`

	Damage        string `json:"damage"` // empty if there was no damage
	DamageChinese string `json:"damage_chinese,omitempty"`
	NotRun        string `json:"not_run,omitempty"` // why the version did not run
	NotRunChinese string `json:"not_run_chinese,omitempty"`
	Fault         string `json:"fault,omitempty"` // why the experiment failed
	FaultChinese  string `json:"fault_chinese,omitempty"`
}

// Event is one action of an actor.
type Event struct {
	Millis float64 `json:"millis"` // time since the start
	Actor  string  `json:"actor"`
	Text   string  `json:"text"`

	ActorChinese string `json:"actor_chinese"`
	TextChinese  string `json:"text_chinese"`
}

// AsExpected reports whether every version that ran did damage if it is flawed, and
// none if it is not.
func (e Experiment) AsExpected() bool {
	return !slices.ContainsFunc(e.Versions, func(v Version) bool { return v.Fault != "" })
}

// Actors returns the actors in the order in which they appear.
func (v Version) Actors() (actors []string) {
	for _, e := range v.Events {
		if !slices.Contains(actors, e.Actor) {
			actors = append(actors, e.Actor)
		}
	}
	return actors
}
