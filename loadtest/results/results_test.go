package results

import (
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"testing"
)

// TestWrite reads back what it writes.
func TestWrite(t *testing.T) {
	t.Parallel()
	want, err := Read("testdata/results.json")
	if err != nil {
		t.Fatal(err)
	}
	path := filepath.Join(t.TempDir(), "results.json")
	if err := want.Write(path); err != nil {
		t.Fatal(err)
	}
	got, err := Read(path)
	if err != nil || !reflect.DeepEqual(got, want) {
		t.Errorf("%+v, want %+v (%v)", got, want, err)
	}
	if err := os.WriteFile(path, []byte("no JSON"), 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := Read(path); err == nil || !strings.Contains(err.Error(), path) {
		t.Errorf("a malformed file: %v", err)
	}
}

func TestRun(t *testing.T) {
	t.Parallel()
	for _, test := range []struct {
		flags        map[string]string
		open, search bool
	}{
		{map[string]string{"rate": "0", "search": "false"}, false, false},
		{map[string]string{"rate": "50", "search": "false"}, true, false},
		{map[string]string{"rate": "0", "search": "true"}, true, true},
		{nil, false, false},
	} {
		r := Run{Flags: test.flags}
		if r.Open() != test.open || r.Search() != test.search {
			t.Errorf("%v: open %v, search %v", test.flags, r.Open(), r.Search())
		}
	}
}

func TestRateText(t *testing.T) {
	t.Parallel()
	for _, test := range []struct {
		result Result
		want   string
	}{
		{Result{Rate: 500}, "500"},
		{Result{Rate: 700, Highest: new(700)}, "700"},
		{Result{Rate: 50, Highest: new(0)}, "< 50"},
		{Result{Rate: MaxRate, Highest: new(MaxRate)}, "≥ 200000"},
	} {
		if got := test.result.RateText(); got != test.want {
			t.Errorf("%q, want %q", got, test.want)
		}
	}
}

// TestKept checks the count of orders that were not found.
func TestKept(t *testing.T) {
	t.Parallel()
	crash := &Result{Accepted: 10, Findings: []Finding{{Missing, 3, "x"}, {Early, 2, "x"}}}
	if got := (&Result{Crash: crash}).Kept(); got != "7 of 10" {
		t.Error(got)
	}
	if got := (&Result{}).Kept(); got != "–" {
		t.Error(got)
	}
}

// TestKinds checks that every kind has a meaning.
func TestKinds(t *testing.T) {
	t.Parallel()
	if len(Kinds) != len(meanings) {
		t.Errorf("%d kinds and %d meanings", len(Kinds), len(meanings))
	}
	for _, kind := range Kinds {
		if kind.String() == "" || meanings[kind].chinese == "" {
			t.Errorf("%q has no meaning", string(kind))
		}
	}
}
