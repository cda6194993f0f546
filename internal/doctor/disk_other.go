//go:build !linux

package doctor

// freeBytes returns that the system does not say how many bytes are free.
func freeBytes(string) (n uint64, ok bool) { return 0, false }
