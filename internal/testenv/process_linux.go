package testenv

import (
	"bytes"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"syscall"
)

// dieWithParent has the kernel send the signal to the started process when the
// thread that started it ends. A process that changes its user loses this.
func dieWithParent(a *syscall.SysProcAttr, s syscall.Signal) { a.Pdeathsig = s }

// descendants returns the IDs of the processes that id started and that are
// still there, and of those that they started.
func descendants(id int) []int {
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
	found := []int{id}
	for i := 0; i < len(found); i++ {
		for child, parent := range parents {
			if parent == found[i] && !slices.Contains(found, child) {
				found = append(found, child)
			}
		}
	}
	return found[1:]
}

// statFields returns the fields of a stat file from the third, the state, on.
// The second, the program's name, may itself have spaces and brackets.
func statFields(path string) [][]byte {
	stat, err := os.ReadFile(path)
	if err != nil {
		return nil
	}
	return bytes.Fields(stat[bytes.LastIndexByte(stat, ')')+1:])
}

// ended reports whether the process is gone, or dead and not yet asked for its
// exit code.
func ended(id int) bool {
	fields := statFields("/proc/" + strconv.Itoa(id) + "/stat")
	return len(fields) == 0 || fields[0][0] == 'Z' || fields[0][0] == 'X'
}

// halted reports whether no thread of the process runs, for SIGSTOP or because
// it has ended.
func halted(id int) bool {
	threads, _ := filepath.Glob("/proc/" + strconv.Itoa(id) + "/task/*/stat")
	for _, thread := range threads {
		if fields := statFields(thread); len(fields) > 0 && !bytes.ContainsAny(fields[0], "TtZX") {
			return false
		}
	}
	return true
}
