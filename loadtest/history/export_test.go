package history

// AllButOne fills r so that only one more call fits.
func (r *Recorder) AllButOne() { r.calls = MaxCalls - 1 }
