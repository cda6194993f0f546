//go:build mutants

package mutants

// equivalent lists mutants of TestRandom that break no promise of the project, with the reasons. A
// key is the text that TestRandom prints for a survivor, without the line.
var equivalent = map[string]string{
	"internal/lock/zookeeper/zookeeper.go grant.waitForTurn: leave out: ctx.Err()": "Only checkTurn records a grant, so acquire refuses one without a turn, and Acquire does not try again after ctx's end.",
}
