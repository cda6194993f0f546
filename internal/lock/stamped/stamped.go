// Package stamped provides a lock for data in one process, like Java's StampedLock. It is a mutex
// for writers, shared by readers. An optimistic read takes no lock.
package stamped

import (
	"sync"
	"sync/atomic"
)

// maxOptimistic is how often Read reads optimistically before it takes the lock.
const maxOptimistic = 3

// Lock protects data that is read far more often than it is written. An optimistic read
// writes nothing to memory, so readers on several processors do not slow each other
// down. It is a sequence lock: a read is valid if no writer had the lock meanwhile.
//
// Fields that are read optimistically must be read and written atomically, with the types
// of sync/atomic, because a writer may change them at the same time. All fields together
// are consistent if the read is valid.
//
// The zero value is unlocked. A Lock is not reentrant, and must not be copied.
type Lock struct {
	mu       sync.RWMutex
	sequence atomic.Uint64 // odd while a writer has the lock
}

// Lock takes the lock for writing.
func (l *Lock) Lock() {
	l.mu.Lock()
	l.sequence.Add(1)
}

// Unlock frees the lock after Lock.
func (l *Lock) Unlock() {
	l.sequence.Add(1)
	l.mu.Unlock()
}

// RLock takes the lock for reading. Readers share it.
func (l *Lock) RLock() { l.mu.RLock() }

// RUnlock frees the lock after RLock.
func (l *Lock) RUnlock() { l.mu.RUnlock() }

// TryRead begins an optimistic read. ok is false while a writer has the lock.
func (l *Lock) TryRead() (stamp uint64, ok bool) {
	stamp = l.sequence.Load()
	return stamp, stamp%2 == 0
}

// Valid reports whether no writer has had the lock since TryRead returned the stamp. If not, the
// values read in between must be discarded.
func (l *Lock) Valid(stamp uint64) bool { return l.sequence.Load() == stamp }

// Read calls read until a call was valid: at most three times optimistically, and then under the
// lock for reading. read must tolerate inconsistent data, and only its last call counts.
func (l *Lock) Read(read func()) {
	for range maxOptimistic {
		stamp, ok := l.TryRead()
		if !ok {
			continue
		}
		read()
		if l.Valid(stamp) {
			return
		}
	}
	l.RLock()
	defer l.RUnlock()
	read()
}
