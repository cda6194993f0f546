// Command testreport reads what go test -json writes and prints what a person
// wants of it: a line for each package, and all that failing tests said. Its
// exit status is 1 if anything failed, or if the input holds no package at all.
//
// With CI=true a skipped test is a failure too: a test that did not run has
// shown nothing.
package main

import (
	"bufio"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"slices"
	"strings"
)

func main() {
	failed, err := report(os.Stdin, os.Stdout, os.Getenv("CI") == "true")
	if err != nil {
		fmt.Fprintln(os.Stderr, "testreport:", err)
	}
	if failed || err != nil {
		os.Exit(1)
	}
}

// event is one line of go test -json. See go doc test2json.
type event struct {
	Action, Package, ImportPath, Test, Output string
	Elapsed                                   float64
}

// key names a test, or a package where Test is empty.
type key struct{ pkg, test string }

// report copies what matters of in to out, and says whether the run failed.
func report(in io.Reader, out io.Writer, noSkips bool) (failed bool, err error) {
	var (
		output   = make(map[key][]string)
		running  = make(map[key]bool)
		skipped  []key
		packages int
	)
	lines := bufio.NewScanner(in)
	lines.Buffer(nil, 16<<20)
	for lines.Scan() {
		var e event
		if json.Unmarshal(lines.Bytes(), &e) != nil {
			fmt.Fprintln(out, lines.Text()) // not an event: the go command itself speaks
			continue
		}
		k := key{e.Package, e.Test}
		switch e.Action {
		case "build-output":
			fmt.Fprint(out, e.Output)
		case "build-fail":
			failed = true
		case "run":
			running[k] = true
		case "output":
			output[k] = append(output[k], e.Output)
		case "pass", "bench":
			delete(running, k)
			delete(output, k)
		case "skip":
			delete(running, k)
			if e.Test != "" { // a package without tests is no skipped test
				skipped = append(skipped, k)
			}
		case "fail":
			failed = true
			delete(running, k)
			if e.Test == "" { // what was running when the package ended: a panic, a timeout
				for _, left := range left(running, e.Package) {
					show(out, output[left])
				}
			}
			show(out, output[k])
			delete(output, k)
		}
		if e.Test == "" && (e.Action == "pass" || e.Action == "fail" || e.Action == "skip") {
			packages++
			verdict := map[string]string{"pass": "ok  ", "fail": "FAIL", "skip": "-   "}[e.Action]
			fmt.Fprintf(out, "%s %s %.1fs\n", verdict, e.Package, e.Elapsed)
		}
	}
	if err := lines.Err(); err != nil {
		return true, err
	}
	for _, k := range skipped {
		fmt.Fprintf(out, "SKIP %s %s\n", k.pkg, k.test)
		show(out, output[k])
	}
	if noSkips && len(skipped) > 0 {
		fmt.Fprintf(out, "FAIL %d tests were skipped\n", len(skipped))
		failed = true
	}
	if packages == 0 {
		fmt.Fprintln(out, "FAIL no package was tested")
		failed = true
	}
	return failed, nil
}

// left are the tests of the package that have neither passed nor failed.
func left(running map[key]bool, pkg string) (tests []key) {
	for k := range running {
		if k.pkg == pkg && k.test != "" {
			tests = append(tests, k)
		}
	}
	slices.SortFunc(tests, func(a, b key) int { return strings.Compare(a.test, b.test) })
	return tests
}

// show prints a test's output without the lines that only say that it went on.
func show(out io.Writer, lines []string) {
	for _, line := range lines {
		if !strings.HasPrefix(line, "=== ") {
			fmt.Fprint(out, line)
		}
	}
}
