package store

import (
	"strings"
	"testing"

	"github.com/holdfast-stock/holdfast/internal/testenv"
)

// TestQueueWarning changes the settings of a server while it runs.
func TestQueueWarning(t *testing.T) {
	t.Parallel()
	server := testenv.OwnRedis(t)
	client := openedRedis(t, server.URL())
	for _, test := range []struct{ appendOnly, sync, save, says string }{
		{"no", "always", "", "every order that is still queued"},
		{"no", "everysec", "3600 1", "since the last snapshot"},
		{"yes", "no", "", "appendfsync no"},
		{"yes", "everysec", "", "the last second"},
		{"yes", "always", "", ""},
	} {
		for name, value := range map[string]string{"appendonly": test.appendOnly, "appendfsync": test.sync, "save": test.save} {
			if err := client.ConfigSet(t.Context(), name, value).Err(); err != nil {
				t.Fatal(err)
			}
		}
		got := QueueWarning(t.Context(), client)
		if (got == "") != (test.says == "") || !strings.Contains(got, test.says) || got != "" && !strings.Contains(got, server.Addr()) {
			t.Errorf("%+v: %q", test, got)
		}
	}
}

// TestQueueWarning_Forbidden asks a server that forbids CONFIG GET, and one that forbids
// INFO too.
func TestQueueWarning_Forbidden(t *testing.T) {
	t.Parallel()
	for _, test := range []struct {
		name string
		args []string
		says string
	}{
		{"CONFIG, without an append-only file", []string{"--rename-command", "CONFIG", ""}, "appendonly no, and its snapshots could not be read"},
		{"CONFIG, with an append-only file", []string{"--rename-command", "CONFIG", "", "--appendonly", "yes", "--appendfsync", "always"}, "its appendfsync could not be read"},
		{"CONFIG and INFO", []string{"--rename-command", "CONFIG", "", "--rename-command", "INFO", ""}, "does not let its persistence be read"},
	} {
		t.Run(test.name, func(t *testing.T) {
			t.Parallel()
			client := openedRedis(t, testenv.OwnRedis(t, test.args...).URL())
			if got := QueueWarning(t.Context(), client); !strings.Contains(got, test.says) {
				t.Errorf("%q", got)
			}
		})
	}
}
