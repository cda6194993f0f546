#!/bin/sh
# gotestsum runs this after the tests. It fails the run if no test ran or, with
# CI=true, if a test was skipped: a skipped test has shown nothing.
if [ "$TESTS_TOTAL" -eq 0 ]; then
	echo "no test ran" >&2
	exit 1
fi
if [ "${CI:-}" = true ] && [ "$TESTS_SKIPPED" -gt 0 ]; then
	echo "skipped tests: $TESTS_SKIPPED; with CI=true that is a failure" >&2
	exit 1
fi
