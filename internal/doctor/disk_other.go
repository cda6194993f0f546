//go:build !linux

package doctor

// freeBytes always returns that ok is false.
func freeBytes(string) (n uint64, ok bool) { return 0, false }
