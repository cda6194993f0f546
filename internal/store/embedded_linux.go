package store

import (
	"os"
	"path/filepath"
	"syscall"
)

// inUse is the name of the file that a process keeps locked in the folder of its
// embedded database. The lock ends with the process.
const inUse = "in-use"

// claim marks the folder as in use by this process until the file is closed.
func claim(folder string) (*os.File, error) {
	// The file gets its name only after it is locked. Otherwise removeAbandoned
	// could find it unlocked and remove the folder.
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
			continue // already removed, or owned by another user
		}
		if syscall.Flock(int(file.Fd()), syscall.LOCK_EX|syscall.LOCK_NB) == nil {
			_ = os.RemoveAll(filepath.Dir(path))
		}
		file.Close()
	}
}
