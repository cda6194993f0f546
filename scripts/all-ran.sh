#!/bin/sh
# gotestsum runs this after the tests. It names the tests that failed and then passed
# alone. It fails the run if no test ran or, with CI=true, if a test was skipped: a skipped
# test has shown nothing.
if [ -n "${RERUN_REPORT:-}" ]; then
	# A line is "package.Test: 2 runs, 1 failures".
	sed -n 's/^\(.*\): [0-9]* runs, 1 failures$/passed alone: \1/p' "$RERUN_REPORT"
	rm -f "$RERUN_REPORT"
fi
if [ "$TESTS_TOTAL" -eq 0 ]; then
	echo "no test ran" >&2
	exit 1
fi
if [ "${CI:-}" = true ] && [ "$TESTS_SKIPPED" -gt 0 ]; then
	echo "skipped tests: $TESTS_SKIPPED; with CI=true that is a failure" >&2
	exit 1
fi
