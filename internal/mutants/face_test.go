//go:build mutants

package mutants

// face are mutants of the HTTP face and of the command.
var face = []mutant{}
