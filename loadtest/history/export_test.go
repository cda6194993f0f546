package history

// AllButOne makes r as full as it is when one more call fits.
func (r *Recorder) AllButOne() { r.calls = MaxCalls - 1 }
