//go:build mutants

package mutants

// gateway are mutants of deploy/gateway.
var gateway = []mutant{}
