// Package mutants has no code of its own: its tests, built with the tag
// mutants, break the sound code in one place at a time.
package mutants
