package machine

import "testing"

func TestParseStat(t *testing.T) {
	stat := "42 (a b) c) S 1 42 42 0 -1 4194560 1 2 3 4 100 20 5 7 20 0 1 0 999"
	if got := parseStat([]byte(stat)); got != 132*tick {
		t.Errorf("%v", got)
	}
}
