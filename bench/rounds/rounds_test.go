package rounds

import (
	"bytes"
	"errors"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/alecthomas/kong"

	"github.com/holdfast-stock/holdfast/internal/commandline"
)

func TestCheck(t *testing.T) {
	t.Parallel()
	for _, test := range []struct {
		args string
		ok   bool
	}{{"", true}, {"--rounds 1 --seconds 1", true}, {"--rounds 0", false}, {"--seconds -1", false}} {
		var f Flags
		err := commandline.Parse(&f, strings.Fields(test.args), nil, io.Discard, func(*kong.Context) error { return f.Check() }, kong.Vars{"seconds": "8"})
		if (err == nil) != test.ok {
			t.Errorf("%q: %v", test.args, err)
		}
	}
}

func TestReport(t *testing.T) {
	t.Parallel()
	file := filepath.Join(t.TempDir(), "report.md")
	var stdout bytes.Buffer
	f := Flags{Out: file}
	report, closeFile, err := f.Report(&stdout, "./bench", []string{"--rounds", "1"}, "Redis 7", "wrk 4")
	if err != nil {
		t.Fatal(err)
	}
	if _, err := report.Write([]byte("a table")); err != nil {
		t.Fatal(err)
	}
	if err := closeFile(); err != nil {
		t.Fatal(err)
	}
	text, err := os.ReadFile(file)
	if err != nil || !bytes.Equal(text, stdout.Bytes()) {
		t.Errorf("the file has %q (%v), stdout %q", text, err, &stdout)
	}
	for _, has := range []string{"`go run ./bench --rounds 1`, commit ", "; Redis 7; wrk 4.\n", "a table"} {
		if !strings.Contains(stdout.String(), has) {
			t.Errorf("no %q in %q", has, &stdout)
		}
	}
	f.Out = filepath.Join(file, "below-a-file")
	if _, _, err := f.Report(&stdout, "./bench", nil); !errors.As(err, new(commandline.UsageError)) {
		t.Errorf("a file that cannot be created: %v", err)
	}
}
