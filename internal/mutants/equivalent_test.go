//go:build mutants

package mutants

// equivalent lists mutants of TestRandom that change nothing which the project
// promises, and says why. A key is what TestRandom prints of a survivor, without
// the line.
var equivalent = map[string]string{
	"internal/journal/journal.go Consumer.commit: take for Refused: order.Unknown": "An order is tried again while its take is not given back, whether it is refused or its outcome is unknown: final is false for errNotGiven.",
	"internal/lock/zookeeper/zookeeper.go grant.waitForTurn: leave out: ctx.Err()": "Only checkTurn records a grant, so acquire refuses one without a turn, and Acquire does not try again after ctx's end.",
}
