//go:build mutants

package mutants

// laboratory are mutants of loadtest.
var laboratory = []mutant{}
