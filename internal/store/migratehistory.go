package store

import (
	"fmt"
	"io/fs"
	"maps"
	"regexp"
	"slices"
	"strings"

	"github.com/holdfast-stock/holdfast/migrations"
)

// object is a part of a schema that a migration creates or removes. Examples are a table "stock", a
// column "stock.layout", an index "orders#orders_due", and an inserted row, "ledger()". The text
// begins with the table. A sequence counts as a table without columns.
type object string

func (o object) table() string { return string(o[:strings.IndexAny(string(o)+".", ".#(")]) }

func (o object) String() string {
	rest := string(o[len(o.table()):])
	switch {
	case rest == "":
		return "table " + string(o)
	case rest[0] == '#':
		return "index " + rest[1:]
	case rest[0] == '(':
		return "the row of " + o.table()
	}
	return "column " + string(o)
}

// schema is the set of the objects in a database.
type schema map[object]bool

// statement is one statement of a migration. The database runs it as a whole or not at
// all.
type statement struct {
	text          string
	makes, remove []object
	// converts means that the statement changes rows and no objects. The schema does not show
	// whether it has run. So it must be safe to run again on the schema of its migration.
	converts bool
}

// remains returns the number of the statement's changes that the schema lacks.
func (st statement) remains(in schema) (n int) {
	for _, o := range st.makes {
		if !in[o] {
			n++
		}
	}
	for _, o := range st.remove {
		if in[o] {
			n++
		}
	}
	return n
}

func (st statement) apply(to schema) {
	for _, o := range st.remove {
		if delete(to, o); string(o) == o.table() {
			maps.DeleteFunc(to, func(of object, _ bool) bool { return of.table() == o.table() })
		}
	}
	for _, o := range st.makes {
		to[o] = true
	}
}

// migration is a migration with the schema that it leads to.
type migration struct {
	up, down []statement
	after    schema
}

// history has the migrations of a dialect by their number. The first element is the empty schema,
// which no migration leads to.
type history []migration

// readHistory reads the embedded migrations of a dialect.
func readHistory(dialect string) (history, error) {
	files, err := migrations.Files(dialect)
	if err != nil {
		return nil, err
	}
	h := history{{after: schema{}}}
	indexes := make(map[string]string) // table of each index
	read := func(number int, direction string) ([]statement, error) {
		names, err := fs.Glob(files, fmt.Sprintf("%06d_*.%s.sql", number, direction))
		if err != nil || len(names) != 1 {
			return nil, fmt.Errorf("finding migration %d %s of %s: %d files, error %v", number, direction, dialect, len(names), err)
		}
		text, err := fs.ReadFile(files, names[0])
		if err != nil {
			return nil, err
		}
		var all []statement
		for _, one := range statements(string(text)) {
			st, err := parseStatement(one, indexes)
			if err != nil {
				return nil, fmt.Errorf("reading %s of %s: %w", names[0], dialect, err)
			}
			all = append(all, st)
		}
		return all, nil
	}
	latest, err := migrations.Latest(dialect)
	if err != nil {
		return nil, err
	}
	for number := 1; number <= int(latest); number++ {
		m := migration{after: maps.Clone(h[number-1].after)}
		if m.up, err = read(number, "up"); err != nil {
			return nil, err
		}
		if m.down, err = read(number, "down"); err != nil {
			return nil, err
		}
		for _, st := range m.up {
			st.apply(m.after)
		}
		h = append(h, m)
	}
	return h, nil
}

// statements splits the text of a migration. A statement ends with a semicolon at the end of a
// line. Comments are on separate lines.
func statements(text string) (all []string) {
	var one strings.Builder
	for line := range strings.Lines(text) {
		if strings.HasPrefix(line, "--") || strings.TrimSpace(line) == "" {
			continue
		}
		one.WriteString(line)
		if strings.HasSuffix(strings.TrimSpace(line), ";") {
			all = append(all, one.String())
			one.Reset()
		}
	}
	if one.Len() > 0 {
		all = append(all, one.String())
	}
	return all
}

var (
	firstWords   = regexp.MustCompile(`^(CREATE TABLE|DROP TABLE|ALTER TABLE|CREATE (?:/\*M! )?SEQUENCE|DROP SEQUENCE|CREATE INDEX|DROP INDEX|INSERT INTO|UPDATE) (\w+)(?: ON (\w+))?`)
	tableColumn  = regexp.MustCompile(`(?m)^    (\w+) +\w`)
	changeColumn = regexp.MustCompile(`(ADD|DROP) COLUMN (\w+)`)
	renameColumn = regexp.MustCompile(`RENAME COLUMN (\w+) TO (\w+)`)
	noColumn     = []string{"PRIMARY", "KEY", "CHECK", "UNIQUE", "CONSTRAINT"}
)

// parseStatement finds the objects that a statement creates and removes. It knows the forms used in
// the migrations, and refuses every other one.
func parseStatement(text string, indexes map[string]string) (st statement, err error) {
	st.text = text
	words := firstWords.FindStringSubmatch(text)
	if words == nil {
		return st, fmt.Errorf("unknown statement %q", text)
	}
	name := words[2]
	switch words[1] {
	case "CREATE TABLE":
		st.makes = append(st.makes, object(name))
		for _, column := range tableColumn.FindAllStringSubmatch(text, -1) {
			if !slices.Contains(noColumn, column[1]) {
				st.makes = append(st.makes, object(name+"."+column[1]))
			}
		}
	case "CREATE SEQUENCE", "CREATE /*M! SEQUENCE": // MySQL creates a table instead
		st.makes = append(st.makes, object(name))
	case "DROP TABLE", "DROP SEQUENCE":
		st.remove = append(st.remove, object(name))
	case "ALTER TABLE":
		st.alter(name)
	case "CREATE INDEX":
		indexes[name] = words[3]
		st.makes = append(st.makes, object(words[3]+"#"+name))
	case "DROP INDEX":
		st.remove = append(st.remove, object(indexes[name]+"#"+name))
	case "INSERT INTO":
		st.makes = append(st.makes, object(name+"()"))
	case "UPDATE":
		st.converts = true
	}
	if len(st.makes)+len(st.remove) == 0 && !st.converts {
		return st, fmt.Errorf("unknown statement %q", text)
	}
	return st, nil
}

// alter finds the columns that an ALTER TABLE statement creates and removes.
func (st *statement) alter(table string) {
	for _, change := range changeColumn.FindAllStringSubmatch(st.text, -1) {
		if column := object(table + "." + change[2]); change[1] == "ADD" {
			st.makes = append(st.makes, column)
		} else {
			st.remove = append(st.remove, column)
		}
	}
	for _, names := range renameColumn.FindAllStringSubmatch(st.text, -1) {
		st.remove = append(st.remove, object(table+"."+names[1]))
		st.makes = append(st.makes, object(table+"."+names[2]))
	}
}

// contradictions returns why the schema cannot come from a run of migration number, up or down,
// that was killed. Tables that no migration creates do not count, because they belong to other
// programs.
func (h history) contradictions(number int, found schema) (all []string) {
	before, after := h[number-1].after, h[number].after
	known := make(map[string]bool)
	for _, m := range h {
		for o := range m.after {
			known[o.table()] = true
		}
	}
	for o := range found {
		ours := known[o.table()] && (o.column() || h.makes(o))
		if ours && !before[o] && !after[o] {
			all = append(all, "there is "+o.String())
		}
	}
	for o := range before {
		if after[o] && !found[o] {
			all = append(all, o.String()+" is missing")
		}
	}
	for _, st := range slices.Concat(h[number].up, h[number].down) {
		if left := st.remains(found); left > 0 && left < len(st.makes)+len(st.remove) {
			all = append(all, fmt.Sprintf("%.40q is done by half", st.text))
		}
	}
	slices.Sort(all)
	return all
}

// killed returns the number of the migration that was killed on its way to the version: up from the
// previous version, or down from the next. ok is false if there is none.
func (h history) killed(version int, found schema) (number int, ok bool) {
	for _, number := range []int{version, version + 1} {
		if number > 0 && number < len(h) && len(h.contradictions(number, found)) == 0 {
			return number, true
		}
	}
	return 0, false
}

// column reports whether o is a column.
func (o object) column() bool { return strings.Contains(string(o), ".") }

// makes reports whether a migration creates o.
func (h history) makes(o object) bool {
	return slices.ContainsFunc(h, func(m migration) bool { return m.after[o] })
}

// is reports whether found is the schema that migration number leaves.
func (h history) is(number int, found schema) bool {
	neighbour := max(number, 1)
	if len(h.contradictions(neighbour, found)) > 0 {
		return false
	}
	last := h[neighbour].up
	if number == 0 {
		last = h[neighbour].down
	}
	return !slices.ContainsFunc(last, func(st statement) bool { return st.remains(found) > 0 })
}
