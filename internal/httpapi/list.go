package httpapi

import (
	"maps"
	"net/http"
	"net/url"
	"slices"
	"strconv"
	"strings"

	"github.com/gin-gonic/gin"

	"github.com/holdfast-stock/holdfast/internal/order"
	"github.com/holdfast-stock/holdfast/internal/stock"
)

const (
	defaultPage  = 100 // entries of a page if the query has no limit
	maxPage      = 1000
	maxErrors    = 100 // maximum number of bad parameters that one answer lists; a query can have thousands
	pageDetail   = "must be an integer from 1 to 1000"
	uuidDetail   = "must be a UUID with hyphens"
	buyerMissing = "is required unless an administrator asks. "
)

// The statuses that filter a list of orders or payments.
var (
	orderStatuses   = []order.Status{"queued", "pending", "paid", "cancelled", "expired", "refunded", "refused", "void"}
	paymentStatuses = []order.PaymentStatus{"paid", "refund-due", "refunded"}
)

// listOrders handles GET /orders. Only administrators may list the orders of all
// buyers. A buyer with a token may list only their own.
func (a *api) listOrders(c *gin.Context) {
	f := order.Filter{Limit: defaultPage}
	f.Buyer = a.caller(c).buyer
	everyBuyer := f.Buyer == ""
	bad := readQuery(c.Request.URL.RawQuery, parameters{
		"buyer_id": func(v string) string {
			f.Buyer, everyBuyer = v, false
			return detailUnless(stock.ValidID(v), idDetail)
		},
		"status": func(v string) string { return readStatus(&f.Status, orderStatuses, v) },
		"after": func(v string) (detail string) {
			if v == "" {
				return ""
			}
			id, err := parseUUID(v)
			f.After = id
			return detailUnless(err == nil, uuidDetail)
		},
		"limit": func(v string) string { return readLimit(&f.Limit, v) },
	})
	if everyBuyer {
		if objection := a.auth.objection(c.Request); objection != "" {
			bad = append(bad, fieldError{"buyer_id", buyerMissing + objection})
		}
	}
	if len(bad) > 0 {
		a.problem(c, invalid, invalidDetail, extras{Errors: bad})
		return
	}
	if !a.mayActFor(c, f.Buyer) {
		a.otherBuyer(c)
		return
	}
	ctx, cancel := a.readContext(c)
	defer cancel()
	page, next, err := a.Orders.List(ctx, f)
	if err != nil {
		a.fail(c, err)
		return
	}
	answer(c, http.StatusOK, jsonType, orderPage{each(page, answerOrder), orNull(next)})
}

// listPayments handles GET /payments.
func (a *api) listPayments(c *gin.Context) {
	f := order.PaymentFilter{Limit: defaultPage}
	bad := readQuery(c.Request.URL.RawQuery, parameters{
		"status": func(v string) string { return readStatus(&f.Status, paymentStatuses, v) },
		"after":  func(v string) string { return readAfter(&f.After, v) },
		"limit":  func(v string) string { return readLimit(&f.Limit, v) },
	})
	if len(bad) > 0 {
		a.problem(c, invalid, invalidDetail, extras{Errors: bad})
		return
	}
	ctx, cancel := a.readContext(c)
	defer cancel()
	page, next, err := a.Orders.Payments(ctx, f)
	if err != nil {
		a.fail(c, err)
		return
	}
	answer(c, http.StatusOK, jsonType, paymentPage{each(page, answerPayment), orNull(next)})
}

// listStock handles GET /stock.
func (a *api) listStock(c *gin.Context) {
	var after stock.SKU
	limit := defaultPage
	bad := readQuery(c.Request.URL.RawQuery, parameters{
		"after": func(v string) string { return readAfter(&after, v) },
		"limit": func(v string) string { return readLimit(&limit, v) },
	})
	if len(bad) > 0 {
		a.problem(c, invalid, invalidDetail, extras{Errors: bad})
		return
	}
	ctx, cancel := a.readContext(c)
	defer cancel()
	page, next, err := a.Stock.ListStock(ctx, after, limit)
	if err != nil {
		a.fail(c, err)
		return
	}
	answer(c, http.StatusOK, jsonType, stockPage{each(page, answerStock), orNull(next)})
}

// parameters has a function for each parameter of a query, by name. Each function reads the value,
// and returns why the value is invalid, or "".
type parameters map[string]func(value string) (detail string)

// readQuery reads a query. It returns an error for each invalid parameter, sorted by name.
func readQuery(query string, known parameters) (bad []fieldError) {
	values, err := url.ParseQuery(query)
	if err != nil {
		return []fieldError{{"", "the query cannot be decoded"}}
	}
	for _, name := range slices.Sorted(maps.Keys(values)) {
		given, read := values[name], known[name]
		var detail string
		switch {
		case read == nil:
			detail = "is not a known parameter"
		case len(given) > 1:
			detail = repeatedDetail
		default:
			detail = read(given[0])
		}
		if detail != "" && len(bad) < maxErrors {
			bad = append(bad, fieldError{clip(name), detail})
		}
	}
	return bad
}

// readAfter reads the ID after which a page begins. Empty means the first page.
func readAfter[S ~string](after *S, v string) (detail string) {
	*after = S(v)
	return detailUnless(v == "" || stock.ValidID(v), idDetail)
}

// readLimit reads the size of a page: an integer as in JSON, without leading zeros.
func readLimit(limit *int, v string) (detail string) {
	n, err := strconv.ParseUint(v, 10, 16)
	*limit = int(n)
	return detailUnless(err == nil && v[0] != '0' && n <= maxPage, pageDetail)
}

// readStatus reads one of the statuses.
func readStatus[S ~string](status *S, all []S, v string) (detail string) {
	*status = S(v)
	if slices.Contains(all, *status) {
		return ""
	}
	names := make([]string, len(all))
	for i, s := range all {
		names[i] = string(s)
	}
	return "must be one of " + strings.Join(names, ", ")
}

// detailUnless returns "" if a value is valid, otherwise detail.
func detailUnless(valid bool, detail string) string {
	if valid {
		return ""
	}
	return detail
}
