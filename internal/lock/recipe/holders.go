package recipe

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"slices"
	"time"

	"github.com/holdfast-stock/holdfast/internal/lock"
)

// showTimeout bounds adding a holder to the list of holders.
const showTimeout = 2 * time.Second

// Board is a Locker whose servers can list the holders of a name.
type Board interface {
	// Show lists text under the name, beside the texts of other processes, until hide
	// is called. If the process dies, the text disappears when the process's locks do,
	// at most a lease later.
	Show(ctx context.Context, name, text string) (hide func(context.Context), err error)
	// Shown returns the texts that are listed under the name.
	Shown(ctx context.Context, name string) ([]string, error)
}

// ErrNoBoard means that the backend's servers list no holders.
var ErrNoBoard = errors.New("the backend cannot list holders")

// Holder is a holder of a semaphore.
type Holder struct {
	Slot  int
	Token uint64
	Host  string
	PID   int
	// Since is when the slot was granted, by the holder's clock.
	Since time.Time
}

// slot returns a slot, which it adds to the list of holders. A holder that cannot be listed still
// holds its slot.
func (s *Semaphore) slot(number int, lease lock.Lease) *Slot {
	slot := &Slot{Lease: lease, Number: number, hide: func(context.Context) {}}
	board, ok := s.locker.(Board)
	if !ok {
		return slot
	}
	host, _ := os.Hostname() // empty if the name is unknown
	holder := Holder{Slot: number, Token: lease.Token(), Host: host, PID: os.Getpid(), Since: time.Now()}
	text, _ := json.Marshal(holder) // never fails
	ctx, cancel := context.WithTimeout(lease.Context(), showTimeout)
	defer cancel()
	if hide, err := board.Show(ctx, s.name, string(text)); err == nil {
		slot.hide = hide
	}
	return slot
}

// Holders lists the holders by slot. A holder that has died is listed until its lease has ended. It
// returns ErrNoBoard if the backend cannot list holders.
func (s *Semaphore) Holders(ctx context.Context) ([]Holder, error) {
	board, ok := s.locker.(Board)
	if !ok {
		return nil, ErrNoBoard
	}
	texts, err := board.Shown(ctx, s.name)
	if err != nil {
		return nil, err
	}
	bySlot := make(map[int]Holder)
	for _, text := range texts {
		var h Holder
		if err := json.Unmarshal([]byte(text), &h); err != nil {
			return nil, fmt.Errorf("reading the holders of %s: %q: %w", s.name, text, err)
		}
		// The slot of a dead holder may have been granted again.
		if last, found := bySlot[h.Slot]; !found || last.Token < h.Token {
			bySlot[h.Slot] = h
		}
	}
	holders := make([]Holder, 0, len(bySlot))
	for _, h := range bySlot {
		holders = append(holders, h)
	}
	slices.SortFunc(holders, func(a, b Holder) int { return cmp.Compare(a.Slot, b.Slot) })
	return holders, nil
}
