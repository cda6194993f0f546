package stock

import (
	"errors"
	"testing"
)

// TestBusy checks that an error says only once that nothing was changed, however many callers
// answer it as ErrBusy.
func TestBusy(t *testing.T) {
	t.Parallel()
	cause := errors.New("the store is unreachable")
	for name, err := range map[string]error{"once": Busy(cause), "twice": Busy(Busy(cause))} {
		if !errors.Is(err, ErrBusy) || !errors.Is(err, cause) || err.Error() != "nothing was changed: the store is unreachable" {
			t.Errorf("%s: %v", name, err)
		}
	}
}
