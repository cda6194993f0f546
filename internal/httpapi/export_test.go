package httpapi

import (
	"net/http"
	"testing"

	"github.com/getkin/kin-openapi/openapi3"
)

// LoadDocument returns the OpenAPI document.
func LoadDocument(t testing.TB) *openapi3.T { return loadDocument(t).T }

// Judge returns an error if the OpenAPI document does not allow the answer.
func Judge(doc *openapi3.T, r *http.Request, status int, h http.Header, body []byte) error {
	return document{doc}.judge(r, status, h, body)
}

// Validate returns an error if the schema, which must belong to the document, does not allow the
// value.
func Validate(doc *openapi3.T, schema *openapi3.Schema, value any) error {
	return document{doc}.validate(schema, value)
}
