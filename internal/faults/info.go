package faults

import (
	"bufio"
	"fmt"
	"io"
	"net"
	"strconv"
	"strings"

	"github.com/holdfast-stock/holdfast/internal/testenv"
)

// Info is a proxy in front of a Redis that changes what INFO says in its section server, so
// that the Redis looks like another engine. It does not support TLS.
type Info struct {
	testenv.Proxy
	fields map[string]string
}

// NewInfo starts a server in front of the Redis of the URL for this test, and returns its URL.
// fields replace those of the section server; one that is empty is removed.
func NewInfo(t testenv.T, redisURL string, fields map[string]string) (infoURL string) {
	t.Helper()
	i := &Info{fields: fields}
	i.Start(t, redisURL, i.forward)
	return i.Through(redisURL)
}

func (i *Info) forward(client, server net.Conn) {
	go func() { // it ends with the connections
		defer server.Close()
		_, _ = io.Copy(server, client)
	}()
	_ = i.answers(client, bufio.NewReader(server))
}

// answers forwards answers until the connection ends. It reads an array as a line and its
// elements, so every answer is a sequence of lines and texts.
func (i *Info) answers(client io.Writer, server *bufio.Reader) error {
	for {
		line, err := server.ReadString('\n')
		if err != nil {
			return err
		}
		length := -1
		if line[0] == '$' || line[0] == '=' { // in RESP3, INFO is a verbatim string, which begins with its format
			if length, err = strconv.Atoi(strings.TrimSpace(line[1:])); err != nil {
				return err
			}
		}
		if length >= 0 {
			text := make([]byte, length+2)
			if _, err := io.ReadFull(server, text); err != nil {
				return err
			}
			changed := i.change(string(text[:length]))
			line = fmt.Sprintf("%c%d\r\n%s\r\n", line[0], len(changed), changed)
		}
		if _, err := io.WriteString(client, line); err != nil {
			return err
		}
	}
}

// change replaces fields of a text if the text is INFO's section server.
func (i *Info) change(text string) string {
	format := ""
	if rest, ok := strings.CutPrefix(text, "txt:"); ok {
		format, text = "txt:", rest
	}
	if !strings.HasPrefix(text, "# Server\r\n") {
		return format + text
	}
	var changed strings.Builder
	changed.WriteString(format)
	for line := range strings.Lines(text) {
		name, _, _ := strings.Cut(line, ":")
		if _, replaced := i.fields[name]; !replaced {
			changed.WriteString(line)
		}
	}
	for name, value := range i.fields {
		if value != "" {
			changed.WriteString(name + ":" + value + "\r\n")
		}
	}
	return changed.String()
}
