// Command healthcheck asks a URL and exits 0 if the answer is 200: what a
// container engine can call where the image has no shell and no curl.
package main

import (
	"fmt"
	"net/http"
	"os"
	"time"
)

// patience is less than what the engine has with this program.
const patience = 2 * time.Second

func main() {
	if len(os.Args) != 2 {
		fmt.Fprintln(os.Stderr, "usage: healthcheck URL")
		os.Exit(2)
	}
	if err := check(os.Args[1]); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

func check(url string) error {
	client := http.Client{Timeout: patience}
	response, err := client.Get(url)
	if err != nil {
		return err
	}
	defer response.Body.Close()
	if response.StatusCode != http.StatusOK {
		return fmt.Errorf("%s answers %s", url, response.Status)
	}
	return nil
}
