package report

import (
	"cmp"
	"encoding/json"
	"fmt"
	"html/template"
	"regexp"
	"strconv"
	"strings"
)

// text is a text of the page in its two languages.
type text struct {
	English string `json:"en"`
	Chinese string `json:"zh-CN"`
}

// same returns a text that is the same in both languages, such as a name or a figure.
func same(s string) text { return text{s, s} }

// pair returns a text of the results. Older results have no Chinese text.
func pair(english, chinese string) text { return text{english, cmp.Or(chinese, english)} }

// dictionary has the texts of the page by their keys. {1} stands for the first argument
// of a text.
type dictionary struct{ english, chinese map[string]string }

// readDictionary reads the embedded files.
func readDictionary() (d dictionary, err error) {
	for name, words := range map[string]*map[string]string{"page/words.en.json": &d.english, "page/words.zh-CN.json": &d.chinese} {
		file, err := files.ReadFile(name)
		if err == nil {
			err = json.Unmarshal(file, words)
		}
		if err != nil {
			return d, fmt.Errorf("reading the dictionary of the report: %s: %w", name, err)
		}
	}
	return d, nil
}

// say returns the text with this key. An argument can be a text; integers get commas between their
// thousands. If the key is missing, say returns the key; a test looks for such keys.
func (d dictionary) say(key string, args ...any) text {
	t := same(key)
	if english, ok := d.english[key]; ok {
		t = text{english, d.chinese[key]}
	}
	for i, arg := range args {
		var a text
		switch arg := arg.(type) {
		case text:
			a = arg
		case int:
			a = same(grouped(int64(arg)))
		case int64:
			a = same(grouped(arg))
		default:
			a = same(fmt.Sprint(arg))
		}
		place := "{" + strconv.Itoa(i+1) + "}"
		t.English = strings.ReplaceAll(t.English, place, a.English)
		t.Chinese = strings.ReplaceAll(t.Chinese, place, a.Chinese)
	}
	return t
}

// counted returns the text for n things. Unless n is 1, the text begins with n in words.
func (d dictionary) counted(key string, n int, one string) text {
	if n == 1 {
		return d.say(key+".1", one)
	}
	return d.say(key+".n", d.number(n))
}

// number returns a number in words for the beginning of a sentence, or in digits if it has no word.
func (d dictionary) number(n int) text {
	words := d.say("numbers")
	english, chinese := strings.Fields(words.English), strings.Fields(words.Chinese)
	if n < 0 || n >= min(len(english), len(chinese)) {
		return same(strconv.Itoa(n))
	}
	return text{english[n], chinese[n]}
}

// list joins names.
func list(names []string) text {
	if len(names) < 2 {
		return same(strings.Join(names, ""))
	}
	most, last := names[:len(names)-1], names[len(names)-1]
	return text{strings.Join(most, ", ") + " and " + last, strings.Join(most, "、") + " 与 " + last}
}

// joined makes a paragraph of sentences.
func joined(sentences []text) (paragraph text) {
	for i, s := range sentences {
		if i > 0 {
			paragraph.English += " "
		}
		paragraph.English += s.English
		paragraph.Chinese += s.Chinese
	}
	return paragraph
}

// spans writes a text into the page in both languages. Style sheets hide the language that is not
// chosen.
func spans(t text) template.HTML {
	if t.English == t.Chinese {
		return template.HTML(template.HTMLEscapeString(t.English))
	}
	return template.HTML(`<span class="en" lang="en">` + template.HTMLEscapeString(t.English) +
		`</span><span class="zh" lang="zh-CN">` + template.HTMLEscapeString(t.Chinese) + `</span>`)
}

// grouped formats a number with commas between the thousands.
func grouped(n int64) string {
	sign := ""
	if n < 0 {
		sign, n = "−", -n
	}
	digits := strconv.FormatInt(n, 10)
	for i := len(digits) - 3; i > 0; i -= 3 {
		digits = digits[:i] + "," + digits[i:]
	}
	return sign + digits
}

var large = regexp.MustCompile(`\d{4,}(\.\d+)?`)

// readable puts commas between the thousands of numbers in a figure. It drops the fraction of
// numbers from 1,000 up.
func readable(figure string) string {
	return large.ReplaceAllStringFunc(figure, func(digits string) string {
		n, err := strconv.ParseFloat(digits, 64)
		if err != nil {
			return digits
		}
		return grouped(int64(n + 0.5))
	})
}

// decimal formats a number with two digits after the point. From 1,000 up it drops them, as
// readable does.
func decimal(n float64) string { return readable(fmt.Sprintf("%.2f", n)) }
