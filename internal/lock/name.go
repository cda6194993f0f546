package lock

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"unicode"
	"unicode/utf8"
)

// ErrName means that a lock's name is invalid. See CheckName.
var ErrName = errors.New("invalid lock name")

// maxNameBytes bounds the length of a name.
const maxNameBytes = 255

// reservedPrefixes are the prefixes of Redis keys that are not locks.
var reservedPrefixes = []string{"holdfast:", "holdfast_", "redisson_"}

// contenderPrefix is the prefix of the nodes of contenders in ZooKeeper, which are
// children of the lock's node. The nodes of nested locks are its children too.
const contenderPrefix = "_c_"

// CheckName returns an error that wraps ErrName unless name is a valid name of a
// lock. The error says what is wrong. A Locker checks the name of every request.
//
// The rule is the same for all backends:
//
//   - It has 1 to 255 bytes of UTF-8. All characters are printable and at most
//     U+FFEF, which is the last that ZooKeeper accepts.
//   - Slashes divide it into parts. No part is empty, "." or "..", or begins with
//     "_c_".
//   - Braces enclose a hash tag of Redis Cluster, as in "{order}:1".
//   - It does not begin with "holdfast:", "holdfast_" or "redisson_".
func CheckName(name string) error {
	if wrong := faultOfName(name); wrong != "" {
		return fmt.Errorf("%w %.*q: %s", ErrName, maxNameBytes, name, wrong)
	}
	return nil
}

// faultOfName says why the name is invalid. It returns an empty string for a valid name.
func faultOfName(name string) string {
	switch {
	case name == "":
		return "it is empty"
	case len(name) > maxNameBytes:
		return fmt.Sprintf("it has %d bytes, at most %d are allowed", len(name), maxNameBytes)
	case !utf8.ValidString(name):
		return "it is not valid UTF-8"
	}
	for _, r := range name {
		if !unicode.IsPrint(r) || r > 0xFFEF {
			return fmt.Sprintf("the character %q is not allowed", r)
		}
	}
	for part := range strings.SplitSeq(name, "/") {
		switch {
		case part == "":
			return "it has an empty part before, between or after slashes"
		case part == ".", part == "..":
			return fmt.Sprintf("the part %q is not allowed", part)
		case strings.HasPrefix(part, contenderPrefix):
			return fmt.Sprintf("the part %q begins with %q, as the nodes of contenders in ZooKeeper do", part, contenderPrefix)
		}
	}
	if strings.ContainsAny(name, "{}") && !hasHashTag(name) {
		return "braces must enclose a hash tag, as in {order}:1"
	}
	if i := slices.IndexFunc(reservedPrefixes, func(p string) bool { return strings.HasPrefix(name, p) }); i >= 0 {
		return fmt.Sprintf("the prefix %q is reserved", reservedPrefixes[i])
	}
	return ""
}

// hasHashTag reports whether Redis Cluster finds a hash tag in the name: the text
// between the first { and the next }, which must not be empty.
func hasHashTag(name string) bool {
	_, rest, _ := strings.Cut(name, "{")
	tag, _, closed := strings.Cut(rest, "}")
	return closed && tag != ""
}
