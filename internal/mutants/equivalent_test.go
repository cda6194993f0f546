//go:build mutants

package mutants

// equivalent lists mutants of TestRandom that change nothing which the project
// promises, and says why. A key is what TestRandom prints of a survivor, without
// the line.
var equivalent = map[string]string{
	"internal/lock/zookeeper/zookeeper.go grant.waitForTurn: leave out: ctx.Err()": "Only checkTurn records a grant, so acquire refuses one without a turn, and Acquire does not try again after ctx's end.",
}
