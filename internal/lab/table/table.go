// Package table lays out measurements in columns.
//
// It exists because text/tabwriter aligns all columns to the same side, and counts
// the escape codes of colours as text.
package table

import (
	"fmt"
	"io"
	"math"
	"strings"
	"unicode/utf8"
)

// Unknown stands for a figure that could not be measured.
const Unknown = "–"

const (
	red   = "\x1b[31;1m"
	plain = "\x1b[0m"
)

// Cell is one field of a table.
type Cell struct {
	Text  string
	Alarm bool // red on a terminal
}

// Paint returns the text in red if alarm is true.
func Paint(text string, alarm bool) string {
	if alarm {
		return red + text + plain
	}
	return text
}

// Figure formats a value. NaN means that the value is not known.
func Figure(format string, value float64) string {
	if math.IsNaN(value) {
		return Unknown
	}
	return fmt.Sprintf(format, value)
}

// Optional formats a value. A nil value is not known.
func Optional[N int64 | float64](format string, value *N) string {
	if value == nil {
		return Unknown
	}
	return fmt.Sprintf(format, *value)
}

// Table is a heading with rows below it.
type Table struct{ rows [][]Cell }

// New returns a table whose columns have these titles.
func New(titles ...string) *Table {
	t := &Table{}
	heading := make([]Cell, len(titles))
	for i, title := range titles {
		heading[i].Text = title
	}
	t.rows = append(t.rows, heading)
	return t
}

// Add appends a row. A cell is a [Cell] or a value that fmt prints. A row with fewer
// cells than the table has columns ends with empty ones.
func (t *Table) Add(cells ...any) {
	row := make([]Cell, len(t.rows[0]))
	for i, value := range cells {
		if cell, ok := value.(Cell); ok {
			row[i] = cell
		} else {
			row[i].Text = fmt.Sprint(value)
		}
	}
	t.rows = append(t.rows, row)
}

// WriteText writes the table for a terminal. The first and the last column are
// aligned to the left, the others to the right.
func (t *Table) WriteText(w io.Writer, colors bool) {
	widths := make([]int, len(t.rows[0]))
	for _, row := range t.rows {
		for i, cell := range row {
			widths[i] = max(widths[i], utf8.RuneCountInString(cell.Text))
		}
	}
	for _, row := range t.rows {
		for i, cell := range row {
			padding := strings.Repeat(" ", widths[i]-utf8.RuneCountInString(cell.Text))
			text := padding + cell.Text
			if i == 0 || i == len(row)-1 {
				text = cell.Text + padding
			}
			fmt.Fprint(w, Paint(text, cell.Alarm && colors), "  ")
		}
		fmt.Fprintln(w)
	}
}

// WriteMarkdown writes the table for a Markdown page.
func (t *Table) WriteMarkdown(w io.Writer) {
	for i, row := range t.rows {
		for _, cell := range row {
			fmt.Fprint(w, "|")
			if cell.Text != "" {
				fmt.Fprint(w, " ", cell.Text)
			}
			fmt.Fprint(w, " ")
		}
		fmt.Fprintln(w, "|")
		if i == 0 {
			fmt.Fprintln(w, strings.Repeat("|---", len(row))+"|")
		}
	}
}
