package stock

// Generation numbers the owners of all stock. An owner is a layout together with the Redis data
// that holds the counts. The ledger keeps the current generation and raises it when either changes.
// That writes one row, whatever the number of SKUs. Each epoch belongs to one generation, so a
// stock row or a count of an earlier generation is stale. It is renewed when it is next used.
type Generation int64

// MaxGeneration is the greatest generation. It keeps every epoch below 2⁵³, because Lua's numbers
// are exact only up to there.
const MaxGeneration Generation = 1<<(53-epochBits) - 1

// epochBits is the number of low bits of an epoch that count the renewals of one
// stock row within a generation. One renewal a second fills them in eight years.
const epochBits = 28

// GenerationOf returns the generation that the epoch belongs to.
func GenerationOf(epoch int64) Generation { return Generation(epoch >> epochBits) }

// Epochs returns the first and the last epoch of the generation.
func (g Generation) Epochs() (first, last int64) {
	return int64(g) << epochBits, int64(g+1)<<epochBits - 1
}

// Renew returns an epoch of the generation that is above all the given epochs. It returns
// ErrLaterGeneration if one of them belongs to a later generation.
func (g Generation) Renew(epochs ...int64) (int64, error) {
	next, last := g.Epochs()
	for _, epoch := range epochs {
		next = max(next, epoch)
	}
	if next++; next > last {
		return 0, ErrLaterGeneration
	}
	return next, nil
}

// Mark is the last state of the ledger that a gate's store has seen.
type Mark struct {
	Generation Generation
	// Beat is the ledger's heartbeat counter. If the ledger's next beat is not above the mark's,
	// the ledger was restored from a backup.
	Beat int64
}
