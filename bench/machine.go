package main

import (
	"strings"

	"github.com/holdfast-stock/holdfast/internal/machine"
)

// measuredOn says what this was measured on.
func measuredOn() string {
	postgres := machine.Version("postgres", "--version")
	if postgres == "" {
		postgres = machine.Version("psql", "--version")
	}
	return strings.Join([]string{
		machine.Describe(), machine.Version("redis-server", "--version"), machine.Version("mariadbd", "--version"), postgres, machine.Version("wrk", "-v"),
	}, "; ")
}
