package doctor

import "syscall"

// freeBytes returns how many bytes a user may still write to the file system of the
// folder. ok is false if the system does not say.
func freeBytes(folder string) (n uint64, ok bool) {
	var fs syscall.Statfs_t
	if err := syscall.Statfs(folder, &fs); err != nil {
		return 0, false
	}
	return fs.Bavail * uint64(fs.Bsize), true
}
