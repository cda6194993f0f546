package main

import (
	"bytes"
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"syscall"
)

// onlyZombies reports whether all processes of the group have ended, and only wait for a parent to
// read their exit codes. Where process 1 does not do that, as in many containers, they stay. It
// returns false if /proc shows no process of the group.
//
// A process may start another after the list was read, and end. The next list then shows the new
// process, or the zombie of the old one.
func onlyZombies(group int) bool {
	first, ended := zombies(group)
	if !ended || len(first) == 0 {
		return false
	}
	second, ended := zombies(group)
	return ended && slices.Equal(first, second)
}

// zombies returns the entries of /proc for the processes of the group that have ended.
// ended is false if a process of the group has not.
func zombies(group int) (found []string, ended bool) {
	stats, err := filepath.Glob("/proc/[0-9]*/stat")
	if err != nil {
		return nil, false
	}
	wanted := []byte(strconv.Itoa(group))
	for _, path := range stats {
		stat, err := os.ReadFile(path)
		switch {
		case errors.Is(err, fs.ErrNotExist), errors.Is(err, syscall.ESRCH): // the process is gone
			continue
		case err != nil: // the process may belong to the group
			return nil, false
		}
		// The fields after the program's name, which may contain brackets, are the
		// state, the parent and the group; the 18th is the number of threads.
		fields := bytes.Fields(stat[bytes.LastIndexByte(stat, ')')+1:])
		if len(fields) < 18 || !bytes.Equal(fields[2], wanted) {
			continue
		}
		threads, err := strconv.Atoi(string(fields[17]))
		// A process whose first thread has ended is in the state Z while others run.
		if fields[0][0] != 'Z' && fields[0][0] != 'X' || err != nil || threads > 1 {
			return nil, false
		}
		found = append(found, path)
	}
	return found, true
}
