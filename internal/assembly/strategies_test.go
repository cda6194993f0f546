package assembly

import (
	"os"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/google/uuid"

	"github.com/holdfast-stock/holdfast/internal/stock/gate"
	"github.com/holdfast-stock/holdfast/internal/store"
)

// TestLayout checks that a layout names the version of the gate's scripts and the number of slots,
// if the strategy has them.
func TestLayout(t *testing.T) {
	for _, s := range Strategies() {
		layout := s.layout(Backends{LockName: "redis", Segments: 8, Slots: 8})
		if named := strings.Contains(layout, ", scripts "+gate.ScriptsVersion()); named != s.HasGate() {
			t.Errorf("%s: the layout is %q", s.Name, layout)
		}
		if named := strings.Contains(layout, ", 8 slots"); named != s.Slotted() {
			t.Errorf("%s: the layout is %q", s.Name, layout)
		}
	}
}

// TestQueueing checks that the table marks exactly the gates that have a journal.
func TestQueueing(t *testing.T) {
	server, err := store.OpenInProcessRedis(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	defer server.Close()
	for _, s := range Strategies() {
		built, closeGate := s.Build(Backends{Redis: server.Client(), LedgerID: uuid.New(), Segments: 2, Slots: 2})
		if (built.Journal != nil) != s.Queues() || s.Queues() != (Queueing().Name == s.Name) {
			t.Errorf("%s: journal %v, and the table says %v", s.Name, built.Journal, s.Queues())
		}
		closeGate()
	}
}

// TestPages checks that docs/strategies.md and its Chinese twin describe every strategy.
func TestPages(t *testing.T) {
	described := regexp.MustCompile(`(?m)^## (.+?)[:：]`)
	for _, page := range []string{"../../docs/strategies.md", "../../docs/strategies.zh-CN.md"} {
		text, err := os.ReadFile(page)
		if err != nil {
			t.Fatal(err)
		}
		var names []string
		for _, heading := range described.FindAllStringSubmatch(string(text), -1) {
			names = append(names, strings.Fields(heading[1])...)
		}
		for _, s := range Strategies() {
			if !slices.Contains(names, s.Name) {
				t.Errorf("%s has no heading for %s", page, s.Name)
			}
		}
	}
}
