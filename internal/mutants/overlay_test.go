//go:build mutants

package mutants

import (
	"bytes"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"strconv"
)

// overlay has the files that the go command reads instead of the module's, so that the files on
// disk do not change.
type overlay struct {
	root, folder string            // folders of the module and of the overlay's files
	replace      map[string]string // files by path in the module
}

// awaitFile defines how long tests wait for an event. On a mutant, most such events never come.
const awaitFile = "internal/testenv/await.go"

// newOverlay returns an overlay in which tests wait for an event 15 seconds instead of a minute.
// TestControl shows whether that is enough.
func newOverlay(root, folder string) (*overlay, error) {
	o := &overlay{root: root, folder: folder, replace: map[string]string{}}
	source, err := os.ReadFile(filepath.Join(root, awaitFile))
	if err != nil {
		return nil, err
	}
	const minute = "const Patience = time.Minute"
	if bytes.Count(source, []byte(minute)) != 1 {
		return nil, fmt.Errorf("%s does not have %q once", awaitFile, minute)
	}
	_, err = o.put(awaitFile, bytes.Replace(source, []byte(minute), []byte("const Patience = 15 * time.Second"), 1))
	return o, err
}

// put makes the go command read the text as the file of the module, which need not exist. It
// returns the name of the file that contains the text.
func (o *overlay) put(name string, text []byte) (file string, err error) {
	file = filepath.Join(o.folder, strconv.Itoa(len(o.replace))+".go")
	o.replace[filepath.Join(o.root, name)] = file
	return file, os.WriteFile(file, text, 0o600)
}

// putSwitch adds mutantIs and its helpers to the package in the folder of the module.
func (o *overlay) putSwitch(folder, pkg string) error {
	_, err := o.put(filepath.Join(folder, "mutant_switch.go"), fmt.Appendf(nil, switchSource, pkg))
	return err
}

// save writes the file that go build -overlay reads, and returns its name.
func (o *overlay) save() (file string, err error) {
	text, err := json.Marshal(map[string]any{"Replace": o.replace})
	if err != nil {
		return "", err
	}
	file = filepath.Join(o.folder, "overlay.json")
	return file, os.WriteFile(file, text, 0o600)
}

// place is a line that the compiler rejects.
type place struct {
	file    string // file as named by the compiler: relative to its working directory, or absolute
	line    int
	message string
}

var compilerMessage = regexp.MustCompile(`(?m)^(\S+\.go):(\d+):\d+: .*`)

// refusedBy returns the lines that the compiler rejects, from its output.
func refusedBy(output []byte) (places []place, err error) {
	for _, found := range compilerMessage.FindAllSubmatch(output, -1) {
		line, err := strconv.Atoi(string(found[2]))
		if err != nil {
			return nil, err
		}
		places = append(places, place{string(found[1]), line, string(found[0])})
	}
	return places, nil
}
