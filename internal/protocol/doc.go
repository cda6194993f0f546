// Package protocol holds the tests of docs/protocol.md. They run the service over
// real databases and a real Redis, and stop or break it between the steps of an order.
// README.md names the tests of each rule.
package protocol
