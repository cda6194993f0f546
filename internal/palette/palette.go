// Package palette has the style that the project's web pages share.
package palette

import _ "embed"

//go:embed palette.css
var css string

// CSS returns a style sheet with the colours, as custom properties of the root element,
// and with the rules for drawings of lines. The colours are light or dark as the system
// prefers; the attribute data-theme of the root element, light or dark, takes precedence.
func CSS() string { return css }
