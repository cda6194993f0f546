package store

import (
	"os"
	"path/filepath"
	"syscall"
)

// inUse is locked in the folder of an embedded database for as long as the
// process lives that uses it.
const inUse = "in-use"

// claim marks the folder as this process's until the file is closed.
func claim(folder string) (*os.File, error) {
	// Under its name only when it is locked, or removeAbandoned could be faster.
	path := filepath.Join(folder, inUse)
	file, err := os.Create(path + ".new")
	if err != nil {
		return nil, err
	}
	err = syscall.Flock(int(file.Fd()), syscall.LOCK_EX|syscall.LOCK_NB)
	if err == nil {
		err = os.Rename(file.Name(), path)
	}
	if err != nil {
		file.Close()
		return nil, err
	}
	return file, nil
}

// removeAbandoned removes the folders of processes that were killed.
func removeAbandoned() {
	found, _ := filepath.Glob(filepath.Join(os.TempDir(), embeddedFolder+"*", inUse))
	for _, path := range found {
		file, err := os.Open(path)
		if err != nil {
			continue // gone, or another user's
		}
		if syscall.Flock(int(file.Fd()), syscall.LOCK_EX|syscall.LOCK_NB) == nil {
			_ = os.RemoveAll(filepath.Dir(path))
		}
		file.Close()
	}
}
