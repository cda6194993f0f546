// Package mutants has no code of its own. Its tests, built with the tag mutants,
// break the code in one place at a time and expect a test to fail.
package mutants
