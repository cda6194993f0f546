package gate

import (
	"crypto/sha1" //nolint:gosec // Redis names scripts by their SHA-1
	_ "embed"
	"encoding/hex"
	"fmt"

	"github.com/google/uuid"

	"github.com/holdfast-stock/holdfast/internal/stock"
)

var (
	//go:embed take.lua
	takeLua string
	//go:embed settle.lua
	settleLua string
	//go:embed give.lua
	giveLua string
	//go:embed fill.lua
	fillLua string
	//go:embed adjust.lua
	adjustLua string
	//go:embed inflight.lua
	inFlightLua string
	//go:embed read.lua
	readLua string
	//go:embed write.lua
	writeLua string
)

// ScriptsVersion identifies the text of the gate's scripts. Instances with different versions have
// different scripts for the same generation, so they cannot run at the same time. The version is
// part of a strategy's layout: the instance that started last takes over the stock.
func ScriptsVersion() string {
	var text string
	for _, s := range newScripts(uuid.Nil, 0).all() {
		text += s.sha
	}
	return newScript(text).sha[:8]
}

// script is a Lua script and the SHA-1 by which Redis identifies it. Its name is that of its file.
type script struct{ name, text, sha string }

func newScript(text string) script {
	sum := sha1.Sum([]byte(text)) //nolint:gosec // not for security
	return script{text: text, sha: hex.EncodeToString(sum[:])}
}

// scripts are the scripts of one generation of one ledger. The text contains ledger and generation,
// so no other ledger or generation has the same scripts. Redis 7 does not keep scripts over a
// restart, or copy them to replicas. So a Redis that came back with old data cannot run them.
type scripts struct {
	generation stock.Generation

	take, settle, give, fill, adjust, inFlight, read, write script
}

func newScripts(ledgerID uuid.UUID, g stock.Generation) *scripts {
	first, last := g.Epochs()
	of := func(name, text string) script {
		s := newScript(fmt.Sprintf("-- ledger %s\nlocal FIRST_EPOCH, LAST_EPOCH = %d, %d\n", ledgerID, first, last) + text)
		s.name = name
		return s
	}
	return &scripts{
		generation: g,
		take:       of("take", takeLua), settle: of("settle", settleLua), give: of("give", giveLua),
		fill: of("fill", fillLua), adjust: of("adjust", adjustLua), inFlight: of("inflight", inFlightLua),
		read: of("read", readLua), write: of("write", writeLua),
	}
}

// all returns the scripts.
func (s *scripts) all() []script {
	return []script{s.take, s.settle, s.give, s.fill, s.adjust, s.inFlight, s.read, s.write}
}
