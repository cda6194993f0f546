package testenv

import (
	"bytes"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"syscall"
)

// dieWithParent makes the kernel send the signal to the process when the thread
// that started it ends. The setting is lost if the process changes its user.
func dieWithParent(a *syscall.SysProcAttr, s syscall.Signal) { a.Pdeathsig = s }

// WithDescendants returns these process IDs, followed by those of the children of the processes, of
// their children and so on.
func WithDescendants(ids ...int) []int {
	parents := make(map[int]int)
	stats, _ := filepath.Glob("/proc/[0-9]*/stat")
	for _, stat := range stats {
		child, err := strconv.Atoi(filepath.Base(filepath.Dir(stat)))
		if err != nil {
			continue
		}
		if fields := statFields(stat); len(fields) > 1 {
			parents[child], _ = strconv.Atoi(string(fields[1]))
		}
	}
	for i := 0; i < len(ids); i++ { // ids grows during the loop
		for child, parent := range parents {
			if parent == ids[i] && !slices.Contains(ids, child) {
				ids = append(ids, child)
			}
		}
	}
	return ids
}

// statFields returns the fields of a stat file, beginning with the third one, the state. The second
// field, the program's name, may contain spaces and brackets.
func statFields(path string) [][]byte {
	stat, err := os.ReadFile(path)
	if err != nil {
		return nil
	}
	return bytes.Fields(stat[bytes.LastIndexByte(stat, ')')+1:])
}

// ended reports whether the process has ended. A zombie counts as ended.
func ended(id int) bool {
	fields := statFields("/proc/" + strconv.Itoa(id) + "/stat")
	return len(fields) == 0 || fields[0][0] == 'Z' || fields[0][0] == 'X'
}

// isStopped reports whether no thread of the process can run: each is stopped or
// has ended.
func isStopped(id int) bool {
	threads, _ := filepath.Glob("/proc/" + strconv.Itoa(id) + "/task/*/stat")
	for _, thread := range threads {
		if fields := statFields(thread); len(fields) > 0 && !bytes.ContainsAny(fields[0], "TtZX") {
			return false
		}
	}
	return true
}
