// Command vegeta prints orders as targets in vegeta's JSON format. Each has its own buyer
// and, with --keys, its own Idempotency-Key. See the README in this folder.
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

// target is a line of vegeta's JSON format, in which the body is in base64.
type target struct {
	Method string      `json:"method"`
	URL    string      `json:"url"`
	Header http.Header `json:"header"`
	Body   []byte      `json:"body"`
}

func main() {
	url := pflag.String("url", "http://127.0.0.1:8080", "`URL` of the service; several, separated by commas, are used in rotation")
	sku := pflag.String("sku", "", "`SKU` to order")
	count := pflag.Int("count", 10_000, "number of orders, at least rate × duration: at the end of the file vegeta starts again and repeats the keys")
	keys := pflag.Bool("keys", true, "send an Idempotency-Key; without one, the gateway itself refuses orders for SKUs that are sold out")
	run := pflag.String("run", fmt.Sprint(time.Now().UnixMilli()), "name of the run, part of every buyer and key so that no two runs share any")
	pflag.Parse()
	if *sku == "" || *count < 1 || pflag.NArg() > 0 {
		fmt.Fprintln(os.Stderr, "vegeta: --sku is required, --count must be at least 1, and there are no arguments")
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
