package stock

// Generation numbers the owners of all stock: the layout it is sold under and
// the Redis that holds its counts. The ledger keeps the current one and raises
// it when either changes. Nothing else is written then, however many SKUs there
// are: an epoch belongs to one generation, so a stock row or a count whose epoch
// is of an earlier generation is stale, and is renewed when it is next used.
type Generation int64

// MaxGeneration keeps every epoch below 2⁵³, so that Lua counts them exactly.
const MaxGeneration Generation = 1<<(53-epochBits) - 1

// epochBits is how many bits of an epoch count the renewals of one stock row
// within a generation: one a second lasts eight years.
const epochBits = 28

// GenerationOf returns the generation that the epoch belongs to.
func GenerationOf(epoch int64) Generation { return Generation(epoch >> epochBits) }

// Epochs returns the first and the last epoch of the generation.
func (g Generation) Epochs() (first, last int64) {
	return int64(g) << epochBits, int64(g+1)<<epochBits - 1
}

// Holds reports whether the epoch belongs to the generation.
func (g Generation) Holds(epoch int64) bool { return GenerationOf(epoch) == g }

// Renew returns an epoch of the generation that is above all of those given.
// ErrSuperseded: one of them belongs to a later generation.
func (g Generation) Renew(epochs ...int64) (int64, error) {
	next, last := g.Epochs()
	for _, epoch := range epochs {
		next = max(next, epoch)
	}
	if next++; next > last {
		return 0, ErrSuperseded
	}
	return next, nil
}

// Mark is what a gate's store says of the ledger it was last used with.
type Mark struct {
	Generation Generation
	// Beat is a number that the ledger raises all the time. A ledger whose
	// next beat is not above the mark's was restored from a backup.
	Beat int64
}
