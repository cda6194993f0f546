// Command vegeta prints orders as targets in vegeta's JSON format. Each has its own buyer
// and, with --keys, its own Idempotency-Key. See the README in this folder.
package main

import (
	"bufio"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"strconv"
	"time"

	"github.com/alecthomas/kong"

	"github.com/holdfast-stock/holdfast/internal/commandline"
	"github.com/holdfast-stock/holdfast/internal/lab/command"
)

// target is a line of vegeta's JSON format, in which the body is in base64.
type target struct {
	Method string      `json:"method"`
	URL    string      `json:"url"`
	Header http.Header `json:"header"`
	Body   []byte      `json:"body"`
}

// settings are the command line. The tags define the flags.
type settings struct {
	URLs  []string `name:"url" default:"http://127.0.0.1:8080" help:"URLs of the service; several are used in rotation."`
	SKU   string   `placeholder:"SKU" required:"" help:"SKU to order."`
	Count int      `default:"10000" help:"Number of orders, at least rate × duration: at the end of the file vegeta starts again and repeats the keys."`
	Keys  bool     `default:"on" help:"Send an Idempotency-Key; without one, the gateway itself refuses orders for SKUs that are sold out (on|off, default on)."`
	Run   string   `default:"${now}" help:"Name of the run, part of every buyer and key so that no two runs share any."`
}

func (s *settings) check(*kong.Context) error {
	if s.Count < 1 {
		return fmt.Errorf("--count: %d is less than 1", s.Count)
	}
	return nil
}

func main() { command.Main("vegeta", run) }

func run(ctx context.Context, args []string, stdout, _ io.Writer) error {
	var s settings
	err := commandline.Parse(&s, args, nil, stdout, s.check,
		kong.Name("go run ./loadtest/vegeta"),
		kong.Description("Prints orders as targets in vegeta's JSON format."),
		kong.Vars{"now": strconv.FormatInt(time.Now().UnixMilli(), 10)})
	if err != nil {
		return err
	}
	return write(ctx, stdout, s.URLs, s.SKU, s.Run, s.Count, s.Keys)
}

func write(ctx context.Context, w io.Writer, urls []string, sku, run string, count int, keys bool) error {
	out := bufio.NewWriter(w)
	lines := json.NewEncoder(out)
	for n := range count {
		if ctx.Err() != nil {
			return ctx.Err()
		}
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
