// Command vegeta prints orders as targets in vegeta's JSON format, each with a
// buyer of its own and, unless told otherwise, an Idempotency-Key of its own. See
// the README beside it.
package main

import (
	"bufio"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"os"
	"strings"
	"time"

	"github.com/spf13/pflag"
)

// target is a line of vegeta's JSON format. Its body is base64, as encoding/json
// writes bytes.
type target struct {
	Method string      `json:"method"`
	URL    string      `json:"url"`
	Header http.Header `json:"header"`
	Body   []byte      `json:"body"`
}

func main() {
	url := pflag.String("url", "http://127.0.0.1:8080", "where the service is; several, with commas between, take turns")
	sku := pflag.String("sku", "", "what is ordered")
	count := pflag.Int("count", 10_000, "how many orders: at least rate × duration, for vegeta starts again at the end and repeats keys")
	keys := pflag.Bool("keys", true, "whether orders have an Idempotency-Key; without one the gateway refuses what is sold out by itself")
	run := pflag.String("run", fmt.Sprint(time.Now().UnixMilli()), "part of every buyer and key, so that no run repeats another's")
	pflag.Parse()
	if *sku == "" || *count < 1 || pflag.NArg() > 0 {
		fmt.Fprintln(os.Stderr, "vegeta: --sku is what is ordered, --count at least 1; there are no arguments")
		os.Exit(2)
	}
	if err := write(os.Stdout, strings.Split(*url, ","), *sku, *run, *count, *keys); err != nil {
		fmt.Fprintf(os.Stderr, "vegeta: %v\n", err)
		os.Exit(1)
	}
}

func write(w io.Writer, urls []string, sku, run string, count int, keys bool) error {
	out := bufio.NewWriter(w)
	lines := json.NewEncoder(out)
	for n := range count {
		body := fmt.Appendf(nil, `{"buyer_id":"v-%s-%d","lines":[{"sku":%q,"quantity":1}]}`, run, n, sku)
		header := http.Header{"Content-Type": {"application/json"}}
		if keys {
			header.Set("Idempotency-Key", fmt.Sprintf("%s-%d", run, n))
		}
		err := lines.Encode(target{Method: http.MethodPost, URL: urls[n%len(urls)] + "/orders", Body: body, Header: header})
		if err != nil {
			return err
		}
	}
	return out.Flush()
}
