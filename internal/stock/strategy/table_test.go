package strategy

import (
	"strings"
	"testing"

	"github.com/holdfast-stock/holdfast/internal/stock/gate"
)

// TestLayout checks that a layout names the version of the gate's scripts, and nothing
// of the kind without a gate.
func TestLayout(t *testing.T) {
	for _, s := range Table() {
		layout := s.layout(Backends{LockName: "redis", Segments: 8})
		if named := strings.Contains(layout, ", scripts "+gate.ScriptsVersion()); named != s.HasGate() {
			t.Errorf("%s: the layout is %q", s.Name, layout)
		}
	}
}
