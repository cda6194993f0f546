package gate

import (
	"testing"

	"github.com/holdfast-stock/holdfast/internal/testenv"
)

// child is a process that the test talks to by lines.
type child struct{ *testenv.Child }

// startChild runs the test program as another process, until the test ends. The
// environment variable says what that process does.
func startChild(t *testing.T, variable string) child {
	t.Helper()
	c, err := testenv.StartSelf(variable)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(c.End)
	return child{c}
}

func (c child) line(t *testing.T) string {
	t.Helper()
	text, err := c.Line(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	return text
}
